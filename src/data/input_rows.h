// SPDX-License-Identifier: Apache-2.0
// Rows that a model reads without being trained on them, as `score` and `generate` take them: {"input_ids": [...]},
// {"text": ...} or {"messages": [...]}, turned into token ids. Token ids may stand at places of their own, for `score`:
// "position_ids", a list, or one list an axis (time, height, width) where the model rotates by three.
// Threads: any. Errors: kData (at FILE:LINE, the first bad row of a file); those of TextSetup.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "data/text_setup.h"

namespace expertmesh::data {

struct InputRow {
  std::vector<int32_t> input_ids;                    // at least one
  std::vector<std::vector<int32_t>> positions = {};  // of each token, by axis (1 or 3); empty: 0, 1, 2, ...
  bool is_conversation = false;                      // of messages
  bool opens_thought = false;                        // what comes next stands inside <think>
};

struct InputOptions {
  std::string model_dir;
  std::string chat_markup = "auto";
  std::string custom_chat_template;
  int64_t vocabulary_rows = 0;
  int64_t position_axes = 0;          // of the model: 1 or 3; 0: rows cannot say where their tokens stand
  bool opens_answer = false;          // messages are a question: they end with the opening of the assistant's answer
  std::optional<bool> thinking = {};  // of that answer; nothing: the markup's default
};

class InputReader {
 public:
  // `fs` must outlive it.
  InputReader(const base::FileSystem& fs, InputOptions options);

  // One of the three kinds. Messages may be in the internal format or have text for content.
  InputRow read(const base::Json& row);
  InputRow read_text(const std::string& text);
  InputRow read_conversation(const Row& row);

  // Whether the model directory or the configuration says how conversations are written.
  bool has_markup();
  bool has_tokenizer() const;
  // Loaded by the first row that needs it.
  const Tokenizer& tokenizer();

 private:
  InputRow read_ids(const base::Json& column) const;
  std::vector<std::vector<int32_t>> read_positions(const base::Json& column, size_t num_tokens) const;
  const Renderer& renderer();

  const base::FileSystem& fs_;
  InputOptions options_;
  std::mutex mutex_;
  TextSetup text_;
};

// All rows in the order of the file. threads 0: as many as the machine has.
std::vector<InputRow> load_input_rows(const base::FileSystem& fs, const std::string& path, InputReader& reader,
                                      int threads = 0);

// "7 rows, checksum 0badcafe": for ranks to compare.
std::string fingerprint(std::span<const InputRow> rows);

}  // namespace expertmesh::data
