// SPDX-License-Identifier: Apache-2.0
#include "data/text_setup.h"

#include "data/content_hash.h"
#include "data/markup/model_template.h"

namespace expertmesh::data {

using base::Code;
using base::make_error;

TextSetup::TextSetup(const base::FileSystem& fs, std::string model_dir, std::string chat_markup,
                     std::string custom_template)
    : fs_(fs),
      model_dir_(std::move(model_dir)),
      chat_markup_(std::move(chat_markup)),
      custom_template_(std::move(custom_template)) {}

const Markup& TextSetup::markup() {
  if (markup_ == nullptr) {
    std::optional<std::string> text;
    if (!custom_template_.empty()) {
      text = custom_template_;
    } else if (chat_markup_ == "auto") {
      text = read_chat_template(fs_, model_dir_);
    }
    markup_ = &choose_markup(chat_markup_, text);
  }
  return *markup_;
}

const std::string& TextSetup::fingerprint() {
  if (!fingerprint_.empty()) return fingerprint_;
  if (!Tokenizer::exists(fs_, model_dir_)) {
    throw make_error(Code::kModel, "data/tokenizer", "the model directory has no tokenizer.json, and the rows are text")
        .at(model_dir_)
        .hint("Copy the tokenizer's files into it, or give rows of token ids with converter: tokenized.");
  }
  for (const std::string_view name : {"tokenizer.json", "tokenizer_config.json"}) {
    const std::string path = base::join_path(model_dir_, name);
    if (!fs_.stat(path).is_regular) continue;
    const auto map = fs_.map(path);
    fingerprint_ += content_hash(map->bytes()).hex();
  }
  return fingerprint_;
}

const Tokenizer& TextSetup::tokenizer() {
  if (!tokenizer_) {
    fingerprint();  // says what is missing
    tokenizer_ = Tokenizer::load(fs_, model_dir_);
  }
  return *tokenizer_;
}

const Renderer& TextSetup::renderer() {
  if (!renderer_) renderer_.emplace(tokenizer(), markup());
  return *renderer_;
}

void check_vocabulary(int64_t id_limit, int64_t vocabulary_rows) {
  if (vocabulary_rows == 0 || id_limit <= vocabulary_rows) return;
  throw make_error(Code::kModel, "data/vocabulary",
                   "the tokenizer has {} token ids, the model's embedding only {} rows", id_limit, vocabulary_rows)
      .hint("Take the tokenizer that belongs to the model.");
}

}  // namespace expertmesh::data
