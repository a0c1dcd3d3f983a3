// SPDX-License-Identifier: Apache-2.0
// Added tokens ("<|im_end|>", "<think>") and their search in text: at the first place where one fits, the longest one.
// Threads: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace expertmesh::data {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool lstrip = false;      // takes the white space before it
  bool rstrip = false;      // and after it
  bool normalized = false;  // is searched in the normalised text, not in the raw one
  bool special = false;
};

class AddedTokenSearch {
 public:
  AddedTokenSearch() : nodes_(1) {}
  explicit AddedTokenSearch(const std::vector<AddedToken>& tokens);

  bool empty() const { return tokens_.empty(); }

  // The first added token at or after `from`, with the white space it takes (never before `from`).
  struct Match {
    size_t first, last;
    int32_t id;
    bool operator==(const Match& other) const = default;
  };
  std::optional<Match> find(std::string_view text, size_t from) const;

 private:
  struct Edge {
    unsigned char byte;
    uint32_t node;
  };
  struct Node {
    std::vector<Edge> edges;
    int32_t token = -1;  // index of the token that ends here
  };
  size_t next_start(std::string_view text, size_t from) const;
  const Edge* find_edge(uint32_t node, unsigned char byte) const;
  void insert(const std::string& content, int32_t token);

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_;  // a trie; node 0 is its root
  bool starts_[256] = {};
  int only_start_ = -1;  // the first byte where all tokens share it
};

}  // namespace expertmesh::data
