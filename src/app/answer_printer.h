// SPDX-License-Identifier: Apache-2.0
// Shows an answer on stdout while it is generated, thoughts dimmed where that is wanted, and keeps what it said.
// Threads: one.
#pragma once

#include <cstdint>
#include <string>

#include "data/tokenizer.h"
#include "generate/thoughts.h"

namespace expertmesh::app {

class AnswerPrinter {
 public:
  // The tokenizer must outlive it. `starts_in_thought`: the prompt ended with <think>.
  AnswerPrinter(const data::Tokenizer& tokenizer, bool starts_in_thought, bool dims_thoughts);

  void add(int32_t id);
  // Shows what is left, and ends the line.
  void finish();
  // What the conversation goes on with: all that was said, but for a thought that was never finished.
  const std::string& said() const { return splitter_.is_in_thought() ? text_ : all_; }

 private:
  void show(const std::vector<generate::ThoughtSplitter::Piece>& pieces);

  data::StreamDecoder decoder_;
  generate::ThoughtSplitter splitter_;
  bool dims_thoughts_;
  std::string all_, text_;  // text_: without thoughts
};

}  // namespace expertmesh::app
