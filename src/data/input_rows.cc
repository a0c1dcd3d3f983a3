// SPDX-License-Identifier: Apache-2.0
#include "data/input_rows.h"

#include <array>

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

}  // namespace

InputReader::InputReader(const base::FileSystem& fs, InputOptions options)
    : fs_(fs),
      options_(std::move(options)),
      text_(fs, options_.model_dir, options_.chat_markup, options_.custom_chat_template) {}

InputRow InputReader::read(const Json& row) {
  const std::string_view kind = kind_of(row);
  const Json& value = *row.find(kind);
  InputRow result;
  if (kind == "input_ids") {
    result = read_ids(value);
  } else if (kind == "text") {
    result = read_text(fields::text(value, "text"));
  } else {
    result = read_conversation(has_blocks(value) ? convert_internal(row) : convert_openai(row));
  }
  if (result.input_ids.empty()) throw bad_row("{} gives no tokens", kind);
  return result;
}

InputRow InputReader::read_ids(const Json& column) const {
  InputRow row;
  const int64_t limit = options_.vocabulary_rows > 0 ? options_.vocabulary_rows : INT32_MAX;
  for (const Json& item : fields::list(column, "input_ids")) {
    const auto id = item.try_int64();
    if (!id) throw bad_row("input_ids must be a list of integers, but holds {}", item.kind());
    if (*id < 0 || *id >= limit) {
      throw bad_row("token id {} is outside the model's vocabulary: its embedding has {} rows", *id, limit);
    }
    row.input_ids.push_back(static_cast<int32_t>(*id));
  }
  return row;
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

}  // namespace expertmesh::data
