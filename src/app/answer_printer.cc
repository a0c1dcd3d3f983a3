// SPDX-License-Identifier: Apache-2.0
#include "app/answer_printer.h"

#include <cstdio>

namespace expertmesh::app {

AnswerPrinter::AnswerPrinter(const data::Tokenizer& tokenizer, bool starts_in_thought, bool dims_thoughts)
    : decoder_(tokenizer), splitter_(starts_in_thought), dims_thoughts_(dims_thoughts) {}

void AnswerPrinter::show(const std::vector<generate::ThoughtSplitter::Piece>& pieces) {
  for (const auto& [text, is_thought] : pieces) {
    all_ += text;
    if (!is_thought) text_ += text;
    const bool dims = is_thought && dims_thoughts_;
    if (dims) std::fputs("\033[2m", stdout);
    std::fwrite(text.data(), 1, text.size(), stdout);
    if (dims) std::fputs("\033[0m", stdout);
  }
  std::fflush(stdout);
}

void AnswerPrinter::add(int32_t id) { show(splitter_.push(decoder_.push(id))); }

void AnswerPrinter::finish() {
  show(splitter_.push(decoder_.finish()));
  show(splitter_.finish());
  std::fputc('\n', stdout);
  std::fflush(stdout);
}

}  // namespace expertmesh::app
