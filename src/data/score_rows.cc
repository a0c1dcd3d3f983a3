// SPDX-License-Identifier: Apache-2.0
#include "data/score_rows.h"

#include <array>
#include <atomic>
#include <mutex>

#include "base/error.h"
#include "data/convert/converters.h"
#include "data/convert/fields.h"
#include "data/parallel.h"
#include "data/row_source.h"
#include "data/text_setup.h"

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

std::vector<int32_t> read_ids(const Json& column, int64_t vocabulary_rows) {
  std::vector<int32_t> ids;
  for (const Json& item : fields::list(column, "input_ids")) {
    const auto id = item.try_int64();
    if (!id) throw bad_row("input_ids must be a list of integers, but holds {}", item.kind());
    const int64_t limit = vocabulary_rows > 0 ? vocabulary_rows : INT32_MAX;
    if (*id < 0 || *id >= limit) {
      throw bad_row("token id {} is outside the model's vocabulary: its embedding has {} rows", *id, limit);
    }
    ids.push_back(static_cast<int32_t>(*id));
  }
  return ids;
}

class ScoreReader {
 public:
  ScoreReader(const base::FileSystem& fs, const ScoreOptions& options)
      : options_(options), text_(fs, options.model_dir, options.chat_markup, options.custom_chat_template) {}

  std::vector<int32_t> read(const Json& row) {
    constexpr std::array<std::string_view, 3> kKinds = {"input_ids", "text", "messages"};
    std::string found;
    for (const std::string_view kind : kKinds) {
      if (fields::find(row, kind) == nullptr) continue;
      if (!found.empty()) throw bad_row("the row has both {} and {}", found, kind).hint("Keep one of them.");
      found = kind;
    }
    if (found.empty()) throw bad_row("a row needs input_ids, text or messages");
    std::vector<int32_t> ids = tokens(row, found);
    if (ids.empty()) throw bad_row("{} gives no tokens", found);
    return ids;
  }

 private:
  std::vector<int32_t> tokens(const Json& row, const std::string& kind) {
    const Json& value = *row.find(kind);
    if (kind == "input_ids") return read_ids(value, options_.vocabulary_rows);
    if (kind == "text") {
      const std::string& text = fields::text(value, "text");
      return tokenizer().encode(text);
    }
    const Row converted = has_blocks(value) ? convert_internal(row) : convert_openai(row);
    if (converted.messages.empty()) throw bad_row("messages is empty");
    return renderer().encode_conversation(converted);
  }

  // Loaded by the first row that needs it.
  const Tokenizer& tokenizer() {
    const std::scoped_lock lock(mutex_);
    const Tokenizer& tokenizer = text_.tokenizer();
    check_vocabulary(tokenizer.id_limit(), options_.vocabulary_rows);
    return tokenizer;
  }
  const Renderer& renderer() {
    tokenizer();
    const std::scoped_lock lock(mutex_);
    return text_.renderer();
  }

  const ScoreOptions& options_;
  std::mutex mutex_;
  TextSetup text_;
};

}  // namespace

std::vector<ScoreRow> load_score_rows(const base::FileSystem& fs, const ScoreOptions& options) {
  const RowFile file(fs, options.input);
  const std::vector<RowText> texts = file.split();
  if (texts.empty()) throw bad_row("the file is empty: it has no rows").at(options.input);
  ScoreReader reader(fs, options);
  std::vector<ScoreRow> rows(texts.size());
  parallel_pieces(texts.size(), options.threads, [&](size_t i) {
    const Json json = file.parse(texts[i]);
    rows[i] = {at_row(file, texts[i], [&] { return reader.read(json); }), texts[i].line};
  });
  return rows;
}

}  // namespace expertmesh::data
