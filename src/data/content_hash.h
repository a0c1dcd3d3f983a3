// SPDX-License-Identifier: Apache-2.0
// A fast 128-bit hash of bytes, to notice that files changed. Not for adversaries. Stable: cache keys and checkpoints
// hold it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace expertmesh::data {

struct ContentHash {
  uint64_t high = 0, low = 0;
  bool operator==(const ContentHash&) const = default;
  std::string hex() const;  // 32 digits
};

ContentHash content_hash(std::span<const std::byte> bytes);
inline ContentHash content_hash(std::string_view text) {
  return content_hash(std::as_bytes(std::span(text.data(), text.size())));
}

}  // namespace expertmesh::data
