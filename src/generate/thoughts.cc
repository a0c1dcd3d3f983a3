// SPDX-License-Identifier: Apache-2.0
#include "generate/thoughts.h"

#include <algorithm>

namespace expertmesh::generate {
namespace {

constexpr std::string_view kBegin = "<think>", kEnd = "</think>";

// Bytes at the end of the text that `tag` begins with.
size_t begun_tag(std::string_view text, std::string_view tag) {
  for (size_t length = std::min(text.size(), tag.size() - 1); length > 0; --length) {
    if (text.ends_with(tag.substr(0, length))) return length;
  }
  return 0;
}

}  // namespace

std::vector<ThoughtSplitter::Piece> ThoughtSplitter::push(std::string_view text) {
  pending_ += text;
  std::vector<Piece> pieces;
  const auto hand_out = [&](size_t length) {
    if (length > 0) pieces.push_back({pending_.substr(0, length), is_thought_});
    pending_.erase(0, length);
  };
  while (true) {
    const std::string_view tag = is_thought_ ? kEnd : kBegin;
    const size_t at = pending_.find(tag);
    if (at == std::string::npos) {
      hand_out(pending_.size() - begun_tag(pending_, tag));
      return pieces;
    }
    if (is_thought_) {
      hand_out(at + tag.size());
      is_thought_ = false;
    } else {
      hand_out(at);
      is_thought_ = true;
    }
  }
}

std::vector<ThoughtSplitter::Piece> ThoughtSplitter::finish() {
  std::vector<Piece> pieces;
  if (!pending_.empty()) pieces.push_back({std::move(pending_), is_thought_});
  pending_.clear();
  return pieces;
}

}  // namespace expertmesh::generate
