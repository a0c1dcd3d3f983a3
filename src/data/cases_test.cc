// SPDX-License-Identifier: Apache-2.0
// Every file of tests/cases/data with its outcome in expected.json: read as train_dataset for its command.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>

#include "data/dataset_info.h"
#include "data/row_source.h"
#include "data/testing.h"
#include "data/text_setup.h"

namespace expertmesh::data {
namespace {

using base::Json;

struct Case {
  std::string file;
  Json expected;
};

std::vector<Case> load_cases() {
  std::vector<Case> cases;
  const Json all = testing::read_json(testing::source_path("tests/cases/data/expected.json"));
  for (const auto& [file, expected] : *all.try_object()) cases.push_back({file, expected});
  return cases;
}

std::string text_of(const Json& json, std::string_view key, const std::string& fallback = "") {
  const Json* value = json.find(key);
  return value == nullptr || value->try_string() == nullptr ? fallback : *value->try_string();
}

std::string lower(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

std::vector<Json> as_list(const Json& value) {
  const auto* list = value.try_array();
  return list == nullptr ? std::vector<Json>{value} : std::vector<Json>(list->begin(), list->end());
}

// One file, one markup.
class CaseRun {
 public:
  CaseRun(const Case& data_case, std::string markup) : case_(data_case), markup_(std::move(markup)) {
    const Json empty{Json::Object{}};
    const Json& given = case_.expected.find("given") == nullptr ? empty : *case_.expected.find("given");
    converter_ = text_of(given, "converter");
    is_preference_ = text_of(given, "command", "sft") != "sft";
    path_ = "data/" + case_.file;
    options_ = testing::text_options(path_);
    options_.chat_markup = markup_;
    options_.model_dir = markup_ == "qwen3_5" ? "render/tokenizer_3_5" : "render/tokenizer";
    const Json* skip = given.find("skip_bad_rows");
    options_.skip_bad_rows = skip != nullptr && skip->try_bool() == true;
    if (text_of(given, "model") == "weights/models/nano_qwen3") options_.vocabulary_rows = 16;
    if (!converter_.empty()) options_.train_dataset = dir_.write_info(path_, converter_);
  }

  void run() {
    if (const Json* error = case_.expected.find("error")) {
      check_error(testing::error_of([&] { load(); }), *error);
      return;
    }
    load();
    const Json& ok = *case_.expected.find("ok");
    EXPECT_EQ(*ok.find("rows")->try_int64(), dataset_ ? dataset_->summary().rows : static_cast<int64_t>(rows_.size()));
    EXPECT_EQ(*ok.find("samples")->try_int64(), dataset_ ? dataset_->size() : num_cuts());
    check_cuts(ok);
    check_messages(ok, "messages");
    check_messages(ok, "chosen");
    check_weights(ok);
    check_rendering(ok);
    check_skipped(ok);
  }

 private:
  // For sft the whole path to tokens, and the rows once more for a look at them; pairs have no batches yet.
  void load() {
    const auto fs = testing::file_system();
    if (!is_preference_) dataset_ = testing::build(options_);
    if (options_.skip_bad_rows) return;
    const Use use = is_preference_ ? Use::kPreference : Use::kSft;
    for (const DatasetEntry& entry : load_dataset_entries(*fs, options_.train_dataset)) {
      for (const std::string& path : list_row_files(*fs, entry.path)) {
        const RowFile file(*fs, path);
        for (const RowText& text : file.split()) {
          rows_.push_back(load_row(file, text, *find_converter(entry.converter), use));
        }
      }
    }
  }

  int64_t num_cuts() const {
    int64_t count = 0;
    for (const LoadedRow& row : rows_) count += static_cast<int64_t>(row.cuts.size());
    return count;
  }

  // Entries are looked for outside the file's path, unless they name it.
  void check_error(const base::Error& error, const Json& expected) const {
    const std::string full = lower(error.text());
    std::string bare = full;
    for (size_t at = bare.find(path_); at != std::string::npos; at = bare.find(path_)) bare.erase(at, path_.size());
    std::vector<int64_t> exits;
    for (const Json& code : as_list(*expected.find("exit"))) exits.push_back(*code.try_int64());
    EXPECT_TRUE(std::ranges::count(exits, static_cast<int64_t>(error.code()))) << full;
    for (const Json& entry : *expected.find("contains")->try_array()) {
      bool found = false;
      for (const Json& word : as_list(entry)) {
        const std::string wanted = lower(*word.try_string());
        const bool names_file = wanted.find(lower(case_.file)) != std::string::npos;
        found |= (names_file ? full : bare).find(wanted) != std::string::npos;
      }
      EXPECT_TRUE(found) << base::dump_json(entry) << " is not in: " << error.text();
    }
    for (const char* foreign : {"bad_alloc", "yaml-cpp", "std::", "terminate called"}) {
      EXPECT_EQ(full.find(foreign), std::string::npos) << full;
    }
  }

  void check_cuts(const Json& ok) const {
    const Json* cuts = ok.find("cuts");
    if (cuts == nullptr) return;
    Json::Array got;
    for (const LoadedRow& row : rows_) {
      Json::Array list;
      for (const int cut : row.cuts) list.emplace_back(cut);
      got.emplace_back(list);
    }
    EXPECT_EQ(Json(got), *cuts);
  }

  static Json message_json(const Message& message) {
    Json::Array content;
    for (const Block& block : message.content) {
      content.emplace_back(Json::Object{{"type", Json(block_type_name(block.type))}, {"value", Json(block.value)}});
    }
    return Json(Json::Object{{"role", Json(role_name(message.role))},
                             {"content", Json(content)},
                             {"loss_weight", Json(static_cast<double>(message.loss_weight))}});
  }

  // "messages" lists the turns of every row, "chosen" those of the only one.
  void check_messages(const Json& ok, std::string_view key) const {
    const Json* expected = ok.find(key);
    if (expected == nullptr) return;
    Json::Array got;
    for (const LoadedRow& row : rows_) {
      Json::Array messages;
      for (const Message& message : row.row.messages) messages.push_back(message_json(message));
      got.emplace_back(messages);
    }
    EXPECT_EQ(key == "chosen" ? got.front() : Json(got), *expected) << base::dump_json(Json(got));
  }

  void check_weights(const Json& ok) const {
    const Json* expected = ok.find("target_weights");
    if (expected == nullptr) return;
    Json::Array got;
    for (int64_t i = 0; i < dataset_->size(); ++i) {
      got.emplace_back(static_cast<double>(std::ranges::max(dataset_->sample(i).loss_weights)));
    }
    EXPECT_EQ(Json(got), *expected);
  }

  void check_rendering(const Json& ok) const {
    const Json* contains = ok.find("rendered_contains");
    if (contains == nullptr) return;
    const auto fs = testing::file_system();
    TextSetup text(*fs, options_.model_dir, options_.chat_markup, "");
    const Rendered rendered = text.renderer().render(rows_.front().row, rows_.front().cuts.front());
    for (const Json& part : *contains->try_array()) {
      EXPECT_NE(rendered.text.find(*part.try_string()), std::string::npos) << rendered.text;
    }
    EXPECT_EQ(rendered.text.substr(rendered.prompt_bytes), text_of(ok, "supervised"));
  }

  void check_skipped(const Json& ok) const {
    const Json* lines = ok.find("skipped_lines");
    if (lines == nullptr) return;
    std::vector<std::string> places;
    for (const Json& line : *lines->try_array()) places.push_back(fmt::format("{}:{}", path_, *line.try_int64()));
    EXPECT_EQ(dataset_->summary().skipped_places, places);
    EXPECT_EQ(dataset_->summary().skipped_bad_rows, static_cast<int64_t>(places.size()));
    options_like_without_skip();
  }

  // The same file without the key stops at its first bad row.
  void options_like_without_skip() const {
    DatasetOptions options = options_;
    options.skip_bad_rows = false;
    const base::Error error = testing::error_of([&] { testing::build(options); });
    EXPECT_EQ(error.where(), dataset_->summary().skipped_places.front());
  }

  const Case& case_;
  std::string markup_, converter_, path_;
  bool is_preference_ = false;
  testing::TempDir dir_;
  DatasetOptions options_;
  std::shared_ptr<const Dataset> dataset_;
  std::vector<LoadedRow> rows_;
};

class DataCases : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    before_ = std::filesystem::current_path();
    std::filesystem::current_path(testing::source_path("tests/cases"));
  }
  void TearDown() override { std::filesystem::current_path(before_); }

 private:
  std::filesystem::path before_;
};

TEST_P(DataCases, HasItsOutcome) {
  const Json& expected = GetParam().expected;
  std::vector<std::string> markups = {"qwen3"};
  if (const Json* given = expected.find("given"); given != nullptr && given->find("markup") != nullptr) {
    markups.clear();
    markups.reserve(4);
    for (const Json& markup : as_list(*given->find("markup"))) markups.push_back(*markup.try_string());
  }
  for (const std::string& markup : markups) {
    SCOPED_TRACE(markup);
    CaseRun(GetParam(), markup).run();
  }
}

// "render" of a case: the same file with other markups, accepted or refused.
TEST_P(DataCases, RendersAsSaid) {
  const Json* ok = GetParam().expected.find("ok");
  const Json* render = ok == nullptr ? nullptr : ok->find("render");
  if (render == nullptr) return;
  for (const auto& [markup, outcome] : *render->try_object()) {
    SCOPED_TRACE(markup);
    Case other = GetParam();
    if (outcome.is_object()) {
      Json::Object without_ok;
      for (const auto& [key, value] : *other.expected.try_object()) {
        if (key != "ok") without_ok.emplace_back(key, value);
      }
      without_ok.emplace_back("error", outcome);
      other.expected = Json(without_ok);
    }
    CaseRun(other, markup).run();
  }
}

INSTANTIATE_TEST_SUITE_P(Files, DataCases, ::testing::ValuesIn(load_cases()),
                         [](const ::testing::TestParamInfo<Case>& param) {
                           std::string name = param.param.file;
                           std::ranges::replace_if(name, [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
                           return name;
                         });

TEST_F(DataCases, EverySampleKnowsItsDataSet) {
  const auto dataset = testing::build(testing::text_options("data/ok_dataset_info.yaml"));
  std::vector<std::string> names;
  for (int64_t i = 0; i < dataset->size(); ++i) names.push_back(dataset->name(i));
  EXPECT_EQ(names, (std::vector<std::string>{"first", "first", "first", "second", "second", "second", "second"}));
}

// The bytes of some files are the case.
TEST_F(DataCases, FilesAreAllListed) {
  for (const auto& entry : std::filesystem::directory_iterator("data")) {
    const std::string name = entry.path().filename();
    if (name == "expected.json" || name == "waiting.md") continue;
    EXPECT_TRUE(std::ranges::any_of(load_cases(), [&](const Case& known) { return known.file == name; })) << name;
  }
}

}  // namespace
}  // namespace expertmesh::data
