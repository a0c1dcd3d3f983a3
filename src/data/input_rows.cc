// SPDX-License-Identifier: Apache-2.0
#include "data/input_rows.h"

#include <fmt/format.h>

#include <array>

#include "base/crc32c.h"
#include "base/error.h"
#include "data/convert/converters.h"
#include "data/convert/fields.h"
#include "data/markup/model_template.h"
#include "data/parallel.h"
#include "data/row_source.h"

namespace expertmesh::data {
namespace {

using base::Json;
using fields::bad_row;

// Messages with blocks are in the internal format, all others in OpenAI's.
bool has_blocks(const Json& messages) {
  const Json::Array* list = messages.try_array();
  if (list == nullptr) return false;
  for (const Json& message : *list) {
    const Json* content = message.find("content");
    const Json::Array* parts = content == nullptr ? nullptr : content->try_array();
    if (parts != nullptr && !parts->empty() && parts->front().find("value") != nullptr) return true;
  }
  return false;
}

// The one key of the three that the row has.
std::string_view kind_of(const Json& row) {
  constexpr std::array<std::string_view, 3> kKinds = {"input_ids", "text", "messages"};
  std::string_view found;
  for (const std::string_view kind : kKinds) {
    if (fields::find(row, kind) == nullptr) continue;
    if (!found.empty()) throw bad_row("the row has both {} and {}", found, kind).hint("Keep one of them.");
    found = kind;
  }
  if (found.empty()) throw bad_row("a row needs input_ids, text or messages");
  return found;
}

// A list of integers in [0, limit); `refuse` makes the error for one outside.
template <typename Refuse>
std::vector<int32_t> read_integers(const Json& list, std::string_view what, int64_t limit, const Refuse& refuse) {
  std::vector<int32_t> values;
  for (const Json& item : fields::list(list, what)) {
    const auto value = item.try_int64();
    if (!value) throw bad_row("{} must be a list of integers, but holds {}", what, item.kind());
    if (*value < 0 || *value >= limit) throw refuse(*value);
    values.push_back(static_cast<int32_t>(*value));
  }
  return values;
}

}  // namespace

InputReader::InputReader(const base::FileSystem& fs, InputOptions options)
    : fs_(fs),
      options_(std::move(options)),
      text_(fs, options_.model_dir, options_.chat_markup, options_.custom_chat_template) {}

InputRow InputReader::read(const Json& row) {
  const std::string_view kind = kind_of(row);
  const Json& value = *row.find(kind);
  InputRow result;
  const Json* positions = fields::find(row, "position_ids");
  if (positions != nullptr && kind != "input_ids") {
    throw bad_row("the row has position_ids beside {}", kind).hint("They belong to input_ids.");
  }
  if (kind == "input_ids") {
    result = read_ids(value);
    if (positions != nullptr) result.positions = read_positions(*positions, result.input_ids.size());
  } else if (kind == "text") {
    result = read_text(fields::text(value, "text"));
  } else {
    result = read_conversation(has_blocks(value) ? convert_internal(row) : convert_openai(row));
  }
  if (result.input_ids.empty()) throw bad_row("{} gives no tokens", kind);
  return result;
}

InputRow InputReader::read_ids(const Json& column) const {
  const int64_t limit = options_.vocabulary_rows > 0 ? options_.vocabulary_rows : INT32_MAX;
  return {.input_ids = read_integers(column, "input_ids", limit, [&](int64_t id) {
            return bad_row("token id {} is outside the model's vocabulary: its embedding has {} rows", id, limit);
          })};
}

std::vector<std::vector<int32_t>> InputReader::read_positions(const Json& column, size_t num_tokens) const {
  constexpr int64_t kMostPositions = int64_t{1} << 20;  // a table of angles has a row for each
  const Json::Array& list = fields::list(column, "position_ids");
  const bool is_by_axis = !list.empty() && list.front().try_array() != nullptr;
  std::vector<std::vector<int32_t>> axes;
  const auto read_axis = [&](const Json& axis) {
    axes.push_back(read_integers(axis, "position_ids", kMostPositions, [&](int64_t place) {
      return bad_row("position_ids holds {}, outside [0, {})", place, kMostPositions);
    }));
    if (axes.back().size() != num_tokens) {
      throw bad_row("position_ids has {} entries for {} tokens", axes.back().size(), num_tokens);
    }
  };
  if (is_by_axis) {
    for (const Json& axis : list) read_axis(axis);
  } else {
    read_axis(column);
  }
  const auto num_axes = static_cast<int64_t>(axes.size());
  if (options_.position_axes == 0) throw bad_row("position_ids are for score: here, tokens stand one after the other");
  if (num_axes != 1 && num_axes != options_.position_axes) {
    throw bad_row("position_ids has {} axes, the model's positions have {}", num_axes, options_.position_axes)
        .hint("Give one list, or one list an axis.");
  }
  return axes;
}

InputRow InputReader::read_text(const std::string& text) { return {.input_ids = tokenizer().encode(text)}; }

InputRow InputReader::read_conversation(const Row& row) {
  if (row.messages.empty()) throw bad_row("messages is empty");
  if (!options_.opens_answer) return {.input_ids = renderer().encode_conversation(row), .is_conversation = true};
  Renderer::Question question = renderer().encode_question(row, options_.thinking);
  return {.input_ids = std::move(question.ids), .is_conversation = true, .opens_thought = question.opens_thought};
}

bool InputReader::has_markup() {
  return options_.chat_markup != "auto" || !options_.custom_chat_template.empty() ||
         read_chat_template(fs_, options_.model_dir).has_value();
}

bool InputReader::has_tokenizer() const { return Tokenizer::exists(fs_, options_.model_dir); }

const Tokenizer& InputReader::tokenizer() {
  const std::scoped_lock lock(mutex_);
  const Tokenizer& tokenizer = text_.tokenizer();
  check_vocabulary(tokenizer.id_limit(), options_.vocabulary_rows);
  return tokenizer;
}

const Renderer& InputReader::renderer() {
  tokenizer();
  const std::scoped_lock lock(mutex_);
  return text_.renderer();
}

std::vector<InputRow> load_input_rows(const base::FileSystem& fs, const std::string& path, InputReader& reader,
                                      int threads) {
  const RowFile file(fs, path);
  const std::vector<RowText> texts = file.split();
  if (texts.empty()) throw bad_row("the file is empty: it has no rows").at(path);
  std::vector<InputRow> rows(texts.size());
  parallel_pieces(texts.size(), threads, [&](size_t i) {
    const Json json = file.parse(texts[i]);
    rows[i] = at_row(file, texts[i], [&] { return reader.read(json); });
  });
  return rows;
}

std::string fingerprint(std::span<const InputRow> rows) {
  uint32_t checksum = 0;
  const auto add = [&](std::span<const int32_t> values) {
    const std::array<size_t, 1> count{values.size()};
    checksum = base::crc32c(std::as_bytes(values), base::crc32c(std::as_bytes(std::span(count)), checksum));
  };
  for (const InputRow& row : rows) {
    add(row.input_ids);
    for (const auto& axis : row.positions) add(axis);
  }
  return fmt::format("{} {}, checksum {:08x}", rows.size(), rows.size() == 1 ? "row" : "rows", checksum);
}

}  // namespace expertmesh::data
