// SPDX-License-Identifier: Apache-2.0
// Tokenizer and markup of a model directory, loaded when text has to be tokenised and not before: rows of token ids and
// a token cache that fits need neither.
// Errors: kModel where there is no tokenizer or it has more ids than the embedding has rows; kConfig for chat_markup.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/file.h"
#include "data/render.h"
#include "data/tokenizer.h"

namespace expertmesh::data {

class TextSetup {
 public:
  TextSetup(const base::FileSystem& fs, std::string model_dir, std::string chat_markup, std::string custom_template);

  // Chosen by chat_markup, the custom template or the model's own.
  const Markup& markup();
  // Changes with the tokenizer's files; does not load them.
  const std::string& fingerprint();
  const Tokenizer& tokenizer();
  const Renderer& renderer();

 private:
  const base::FileSystem& fs_;
  std::string model_dir_, chat_markup_, custom_template_;
  const Markup* markup_ = nullptr;
  std::string fingerprint_;
  std::optional<Tokenizer> tokenizer_;
  std::optional<Renderer> renderer_;
};

// Refuses a tokenizer whose ids do not fit into the embedding. 0 rows = unknown.
void check_vocabulary(int64_t id_limit, int64_t vocabulary_rows);

}  // namespace expertmesh::data
