// SPDX-License-Identifier: Apache-2.0
// Tells an answer's thoughts from its text as it streams: a thought stands between <think> and </think>, which belong
// to it. No text is lost: the pieces together are what was pushed. Threads: one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace expertmesh::generate {

class ThoughtSplitter {
 public:
  struct Piece {
    std::string text;
    bool is_thought = false;
    bool operator==(const Piece&) const = default;
  };

  // `starts_in_thought`: the prompt ended with <think>.
  explicit ThoughtSplitter(bool starts_in_thought) : is_thought_(starts_in_thought) {}

  // What can be told by now; the beginning of what may become a tag is kept back.
  std::vector<Piece> push(std::string_view text);
  std::vector<Piece> finish();
  // Whether what comes next would be a thought.
  bool is_in_thought() const { return is_thought_; }

 private:
  bool is_thought_;
  std::string pending_;
};

}  // namespace expertmesh::generate
