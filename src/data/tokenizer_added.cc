// SPDX-License-Identifier: Apache-2.0
#include "data/tokenizer_added.h"

#include <algorithm>

#include "data/tokenizer_unicode.h"

namespace expertmesh::data {
namespace {

bool is_space_at(std::string_view text, size_t at, size_t& length) {
  const CodePoint point = code_point_at(text.data() + at);
  length = point.length;
  return (char_flags()[point.value] & kSpace) != 0;
}

size_t skip_spaces_back(std::string_view text, size_t from, size_t at) {
  while (at > from) {
    size_t before = at - 1;
    while (before > from && (static_cast<unsigned char>(text[before]) & 0xc0U) == 0x80U) --before;
    size_t length = 0;
    if (!is_space_at(text, before, length)) break;
    at = before;
  }
  return at;
}

size_t skip_spaces(std::string_view text, size_t at) {
  size_t length = 0;
  while (at < text.size() && is_space_at(text, at, length)) at += length;
  return at;
}

}  // namespace

AddedTokenSearch::AddedTokenSearch(const std::vector<AddedToken>& tokens) : tokens_(tokens), nodes_(1) {
  for (size_t i = 0; i < tokens_.size(); ++i) insert(tokens_[i].content, static_cast<int32_t>(i));
  if (nodes_[0].edges.size() == 1) only_start_ = nodes_[0].edges[0].byte;
  for (const Edge& edge : nodes_[0].edges) starts_[edge.byte] = true;
}

const AddedTokenSearch::Edge* AddedTokenSearch::find_edge(uint32_t node, unsigned char byte) const {
  const auto& edges = nodes_[node].edges;
  const auto found = std::lower_bound(edges.begin(), edges.end(), byte,
                                      [](const Edge& edge, unsigned char value) { return edge.byte < value; });
  return found != edges.end() && found->byte == byte ? &*found : nullptr;
}

void AddedTokenSearch::insert(const std::string& content, int32_t token) {
  uint32_t node = 0;
  for (const char c : content) {
    const auto byte = static_cast<unsigned char>(c);
    if (const Edge* edge = find_edge(node, byte)) {
      node = edge->node;
      continue;
    }
    const auto made = static_cast<uint32_t>(nodes_.size());
    nodes_.emplace_back();
    auto& edges = nodes_[node].edges;
    const auto place = std::lower_bound(edges.begin(), edges.end(), byte,
                                        [](const Edge& edge, unsigned char value) { return edge.byte < value; });
    edges.insert(place, Edge{byte, made});
    node = made;
  }
  nodes_[node].token = token;
}

size_t AddedTokenSearch::next_start(std::string_view text, size_t from) const {
  if (only_start_ >= 0) {
    const size_t found = text.find(static_cast<char>(only_start_), from);
    return found == std::string_view::npos ? text.size() : found;
  }
  while (from < text.size() && !starts_[static_cast<unsigned char>(text[from])]) ++from;
  return from;
}

std::optional<AddedTokenSearch::Match> AddedTokenSearch::find(std::string_view text, size_t from) const {
  if (tokens_.empty()) return std::nullopt;
  for (size_t start = next_start(text, from); start < text.size(); start = next_start(text, start + 1)) {
    uint32_t node = 0;
    const AddedToken* longest = nullptr;
    for (size_t at = start; at < text.size(); ++at) {
      const Edge* edge = find_edge(node, static_cast<unsigned char>(text[at]));
      if (edge == nullptr) break;
      node = edge->node;
      if (nodes_[node].token >= 0) longest = &tokens_[static_cast<size_t>(nodes_[node].token)];
    }
    if (longest == nullptr) continue;
    size_t first = start, last = start + longest->content.size();
    if (longest->lstrip) first = skip_spaces_back(text, from, first);
    if (longest->rstrip) last = skip_spaces(text, last);
    return Match{first, last, longest->id};
  }
  return std::nullopt;
}

}  // namespace expertmesh::data
