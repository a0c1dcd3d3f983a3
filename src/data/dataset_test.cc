// SPDX-License-Identifier: Apache-2.0
#include "data/dataset.h"

#include <gmock/gmock.h>

#include <filesystem>

#include "base/rng.h"
#include "data/testing.h"

namespace expertmesh::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::TempDir;

// 300 one-turn rows; three times a chunk, so that threads share the work.
std::string many_rows() {
  std::string text;
  for (int i = 0; i < 300; ++i) text += testing::turn_row(std::string(600, 'q'), fmt::format("answer {}", i));
  return text;
}

std::vector<std::vector<int32_t>> all_ids(const Dataset& dataset) {
  std::vector<std::vector<int32_t>> ids;
  ids.reserve(static_cast<size_t>(dataset.size()));
  for (int64_t i = 0; i < dataset.size(); ++i) ids.push_back(dataset.sample(i).input_ids);
  return ids;
}

TEST(Dataset, SampleOfText) {
  const TempDir dir;
  const auto dataset = testing::build(testing::text_options(dir.write("rows.jsonl", testing::turn_row("q", "a"))));
  const Sample sample = dataset->sample(0);
  ASSERT_EQ(sample.labels.size(), sample.input_ids.size());
  const auto first = std::ranges::find_if(sample.labels, [](int32_t label) { return label != kIgnoredLabel; });
  const auto prompt = static_cast<size_t>(first - sample.labels.begin());
  for (size_t t = 0; t < sample.labels.size(); ++t) {
    EXPECT_EQ(sample.labels[t], t < prompt ? kIgnoredLabel : sample.input_ids[t]);
    EXPECT_EQ(sample.loss_weights[t], t < prompt ? 0.0F : 1.0F);
  }
  const DataSummary& summary = dataset->summary();
  EXPECT_EQ(summary.tokens, static_cast<int64_t>(sample.input_ids.size()));
  EXPECT_EQ(summary.supervised_tokens, static_cast<int64_t>(sample.labels.size() - prompt));
  EXPECT_EQ(summary.markup, "qwen3");
  EXPECT_EQ(dataset->cut(0), 2);
}

TEST(Dataset, TheNumberOfThreadsChangesNothing) {
  const TempDir dir;
  DatasetOptions options = testing::text_options(dir.write("rows.jsonl", many_rows()));
  options.threads = 1;
  const auto one = testing::build(options);
  options.threads = 7;
  const auto seven = testing::build(options);
  EXPECT_EQ(all_ids(*one), all_ids(*seven));
  EXPECT_EQ(one->fingerprint(), seven->fingerprint());
}

// A bad row stops the run before training, the first of the file whichever thread meets which.
TEST(Row36, TheFirstBadRowIsNamed) {
  const TempDir dir;
  std::string text = many_rows();
  text += testing::turn_row("q", "") + many_rows() + "{}\n";
  DatasetOptions options = testing::text_options(dir.write("rows.jsonl", text));
  for (int threads = 1; threads <= 8; ++threads) {
    options.threads = threads;
    EXPECT_THAT(testing::error_of([&] { testing::build(options); }).where(), ::testing::EndsWith("rows.jsonl:301"));
  }
  options.skip_bad_rows = true;
  const auto dataset = testing::build(options);
  EXPECT_EQ(dataset->size(), 600);
  EXPECT_EQ(dataset->summary().skipped_bad_rows, 2);
  EXPECT_THAT(dataset->summary().skipped_places, ElementsAre(::testing::EndsWith(":301"), ::testing::EndsWith(":602")));
  EXPECT_THAT(dataset->where(300), ::testing::EndsWith(":302"));
}

TEST(Dataset, OnlyBadRowsIsAnError) {
  const TempDir dir;
  DatasetOptions options = testing::text_options(dir.write("rows.jsonl", "{}\n[]\n"));
  options.skip_bad_rows = true;
  EXPECT_THAT(testing::error_of([&] { testing::build(options); }).text(), HasSubstr("no samples are left of 2 rows"));
}

TEST(Cutoff, CutsCountsAndDrops) {
  const TempDir dir;
  const std::string rows =
      "{\"input_ids\": [1, 2, 3, 4, 5], \"labels\": [-100, -100, 3, 4, 5]}\n"
      "{\"input_ids\": [1, 2, 3, 4, 5, 6], \"labels\": [-100, -100, -100, -100, 5, 6]}\n"
      "{\"input_ids\": [9], \"labels\": [9]}\n"
      "{\"input_ids\": [1, 2, 3], \"labels\": [-100, 2, 3]}\n";
  const auto dataset = testing::build_tokenized(dir, rows, 3);
  EXPECT_THAT(dataset->sample(0).input_ids, ElementsAre(1, 2, 3));
  EXPECT_THAT(dataset->sample(0).labels, ElementsAre(-100, -100, 3));
  EXPECT_THAT(dataset->sample(0).loss_weights, ElementsAre(0, 0, 1));
  EXPECT_TRUE(dataset->is_dropped(1));
  EXPECT_FALSE(dataset->is_dropped(2));
  const DataSummary& summary = dataset->summary();
  EXPECT_EQ(summary.cut, 2);
  EXPECT_EQ(summary.dropped, 1);
  EXPECT_EQ(summary.without_target, 1);
  EXPECT_EQ(summary.longest, 6);
  EXPECT_EQ(summary.tokens, 3 + 1 + 3);
  EXPECT_EQ(summary.supervised_tokens, 1 + 0 + 2);
}

TEST(Cutoff, NothingLeftIsAnError) {
  const TempDir dir;
  const std::string rows = "{\"input_ids\": [1, 2, 3], \"labels\": [-100, -100, 3]}\n";
  const base::Error error = testing::error_of([&] { testing::build_tokenized(dir, rows, 2); });
  EXPECT_EQ(error.code(), base::Code::kData);
  EXPECT_THAT(error.text(), HasSubstr("cutoff_len 2 cuts 1"));
}

TEST(Resampling, DrawsAsPython) {
  const TempDir dir;
  const std::string rows =
      "{\"input_ids\": [0, 0], \"labels\": [0, 0]}\n{\"input_ids\": [1, 1], \"labels\": [1, 1]}\n"
      "{\"input_ids\": [2, 2], \"labels\": [2, 2]}\n";
  const auto dataset = testing::build_tokenized(dir, rows, 2048, "  size: 5\n  weight: 1.5\n");
  base::PythonRandom random(42);
  const auto size = random.choices(3, 5);
  std::vector<int64_t> expected;
  expected.reserve(7);
  for (const int64_t i : random.choices(5, 7)) expected.push_back(size[static_cast<size_t>(i)]);
  std::vector<int64_t> got;
  for (int64_t i = 0; i < dataset->size(); ++i) got.push_back(dataset->sample(i).input_ids[0]);
  EXPECT_EQ(got, expected);
  EXPECT_EQ(dataset->summary().rows, 3);
  EXPECT_THAT(testing::error_of([&] { testing::build_tokenized(dir, rows, 2048, "  weight: 0.1\n"); }).text(),
              HasSubstr("leaves none"));
}

TEST(Fingerprint, KnowsContentOrderAndCut) {
  const TempDir dir;
  const std::string a = "{\"input_ids\": [1, 2], \"labels\": [1, 2]}\n";
  const std::string b = "{\"input_ids\": [3, 4], \"labels\": [3, 4]}\n";
  const auto fingerprint = [&](const std::string& rows, int cutoff_len, std::string_view more) {
    return testing::build_tokenized(dir, rows, cutoff_len, more)->fingerprint();
  };
  const uint64_t plain = fingerprint(a + b, 8, "");
  EXPECT_EQ(fingerprint(a + b, 8, ""), plain);
  EXPECT_NE(fingerprint(b + a, 8, ""), plain);
  EXPECT_NE(fingerprint(a + b, 9, ""), plain);
  EXPECT_NE(fingerprint(a + b, 8, "  size: 2\n"), plain);
}

TEST(Vocabulary, ATokenizerLargerThanTheEmbeddingIsRefused) {
  const TempDir dir;
  DatasetOptions options = testing::text_options(dir.write("rows.jsonl", testing::turn_row("q", "a")));
  options.cache_dir = dir.path() + "/cache";
  testing::build(options);
  options.vocabulary_rows = 256;  // also where the tokens come from the cache
  const base::Error error = testing::error_of([&] { testing::build(options); });
  EXPECT_EQ(error.code(), base::Code::kModel);
  EXPECT_THAT(error.text(), ::testing::AllOf(HasSubstr("256"), HasSubstr("380")));
}

TEST(Vocabulary, TextNeedsATokenizerAndTokensDoNot) {
  const TempDir dir;
  DatasetOptions options = testing::text_options(dir.write("rows.jsonl", testing::turn_row("q", "a")));
  options.model_dir = dir.path();
  EXPECT_THAT(testing::error_of([&] { testing::build(options); }).text(), HasSubstr("tokenizer.json"));
  EXPECT_EQ(testing::build_tokenized(dir, "{\"input_ids\": [1, 2], \"labels\": [1, 2]}\n")->size(), 1);
}

// The token cache: what it depends on, and what becomes of a broken one.
class CacheTest : public ::testing::Test {
 protected:
  CacheTest() {
    options_ = testing::text_options(dir_.write("rows.jsonl", rows_));
    options_.cache_dir = dir_.path() + "/cache";
  }
  std::shared_ptr<const Dataset> build() { return testing::build(options_); }
  std::vector<std::string> cached() const {
    std::vector<std::string> files;
    for (const auto& entry : std::filesystem::directory_iterator(options_.cache_dir)) files.push_back(entry.path());
    return files;
  }

  std::string rows_ = testing::turn_row("q", "one") + testing::turn_row("q", "two");
  TempDir dir_;
  DatasetOptions options_;
};

TEST_F(CacheTest, SecondStartTokenisesNothing) {
  const auto first = build();
  EXPECT_FALSE(first->summary().from_cache);
  EXPECT_EQ(cached().size(), 1U);
  const auto second = build();
  EXPECT_TRUE(second->summary().from_cache);
  EXPECT_EQ(all_ids(*first), all_ids(*second));
  EXPECT_EQ(first->fingerprint(), second->fingerprint());
  EXPECT_EQ(first->summary().supervised_tokens, second->summary().supervised_tokens);
  EXPECT_EQ(second->where(1), first->where(1));
  options_.cutoff_len = static_cast<int>(first->length(0)) - 1;  // cut when samples are taken, not when they are kept
  EXPECT_TRUE(build()->summary().from_cache);
}

TEST_F(CacheTest, DependsOnEveryInput) {
  build();
  const DatasetOptions before = options_;
  const auto expect_miss = [&] {
    EXPECT_FALSE(build()->summary().from_cache);
    EXPECT_TRUE(build()->summary().from_cache);
    options_ = before;
  };
  options_.chat_markup = "qwen3_2507";
  expect_miss();
  options_.skip_bad_rows = true;
  expect_miss();
  options_.model_dir = testing::source_path("tests/cases/render/tokenizer_3_5");
  expect_miss();
  dir_.write("rows.jsonl", testing::turn_row("q", "one") + testing::turn_row("q", "2wo"));
  expect_miss();
}

TEST_F(CacheTest, OtherFileOfTheSameBytesIsAHitWithItsOwnName) {
  build();
  options_.train_dataset = dir_.write("other.jsonl", rows_);
  const auto dataset = build();
  EXPECT_TRUE(dataset->summary().from_cache);
  EXPECT_THAT(dataset->where(0), ::testing::EndsWith("other.jsonl:1"));
}

TEST_F(CacheTest, DamagedAtEveryByteIsMadeAgain) {
  const auto first = build();
  const std::string path = cached().front();
  const std::string good = testing::read_text(path);
  for (size_t at = 0; at < good.size(); at += at < 128 ? 1 : 37) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 0x40);
    testing::file_system()->create(path)->append(bad);
    const auto dataset = build();
    ASSERT_FALSE(dataset->summary().from_cache) << at;
    ASSERT_EQ(all_ids(*dataset), all_ids(*first));
    ASSERT_EQ(testing::read_text(path), good);
  }
  for (size_t length = 0; length < good.size(); length += 41) {
    testing::file_system()->create(path)->append(good.substr(0, length));
    ASSERT_FALSE(build()->summary().from_cache) << length;
  }
}

TEST_F(CacheTest, WithoutAPlaceToWriteTrainingGoesOn) {
  options_.cache_dir = dir_.write("a_file", "x") + "/cache";
  EXPECT_EQ(build()->size(), 2);
  options_.cache_dir = "";
  EXPECT_EQ(build()->size(), 2);
}

TEST_F(CacheTest, BadRowsAreRemembered) {
  dir_.write("rows.jsonl", rows_ + "{}\n");
  options_.skip_bad_rows = true;
  build();
  const auto second = build();
  EXPECT_TRUE(second->summary().from_cache);
  EXPECT_THAT(second->summary().skipped_places, ElementsAre(::testing::EndsWith("rows.jsonl:3")));
  EXPECT_EQ(second->summary().rows, 3);
}

TEST_F(CacheTest, LeftoversOfAKilledWriteAreRemoved) {
  build();
  const std::string leftover = cached().front() + ".tmp-1-0";
  testing::file_system()->create(leftover)->append("x");
  std::filesystem::last_write_time(leftover, std::filesystem::file_time_type::clock::now() - std::chrono::hours(25));
  options_.chat_markup = "chatml";
  build();
  EXPECT_FALSE(std::filesystem::exists(leftover));
  EXPECT_EQ(cached().size(), 2U);
}

TEST(Progress, ReachesTheWholeFile) {
  const TempDir dir;
  DatasetOptions options = testing::text_options(dir.write("rows.jsonl", many_rows()));
  uint64_t last = 0, total = 0;
  int calls = 0;
  options.progress = [&](uint64_t done, uint64_t all) {
    EXPECT_GE(done, last);
    last = done;
    total = all;
    ++calls;
  };
  testing::build(options);
  EXPECT_GT(calls, 2);
  EXPECT_GE(total, last);
  EXPECT_GE(last + 300, total);  // newlines are not part of rows
}

TEST(Directory, FilesAreReadInOrderOfName) {
  const TempDir dir;
  std::filesystem::create_directory(dir.path() + "/rows");
  dir.write("rows/b.jsonl", testing::turn_row("q", "second"));
  dir.write("rows/a.jsonl", testing::turn_row("q", "first"));
  const auto dataset = testing::build(testing::text_options(dir.path() + "/rows"));
  EXPECT_THAT(dataset->where(0), ::testing::EndsWith("a.jsonl:1"));
  EXPECT_THAT(dataset->where(1), ::testing::EndsWith("b.jsonl:1"));
}

// One sample a supervised turn, each a prefix of the row.
TEST(MultiTurn, OneSampleATurn) {
  const TempDir dir;
  const std::string row =
      "{\"conversations\": [{\"from\": \"human\", \"value\": \"q1\"}, {\"from\": \"gpt\", \"value\": \"a1\"}, "
      "{\"from\": \"human\", \"value\": \"q2\"}, {\"from\": \"gpt\", \"value\": \"a2\"}]}\n";
  DatasetOptions options = testing::text_options(dir.write_info(dir.write("rows.jsonl", row), "sharegpt"));
  const auto dataset = testing::build(options);
  ASSERT_EQ(dataset->size(), 2);
  EXPECT_EQ(dataset->cut(0), 2);
  EXPECT_EQ(dataset->cut(1), 4);
  EXPECT_LT(dataset->length(0), dataset->length(1));
}

}  // namespace
}  // namespace expertmesh::data
