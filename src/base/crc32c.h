// SPDX-License-Identifier: Apache-2.0
// CRC-32C (Castagnoli) of bytes; uses the processor's instruction where there is one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace expertmesh::base {

// The checksum of `data`, or of what gave `previous` followed by `data`.
uint32_t crc32c(std::span<const std::byte> data, uint32_t previous = 0);

inline uint32_t crc32c(std::string_view text, uint32_t previous = 0) {
  return crc32c(std::as_bytes(std::span(text.data(), text.size())), previous);
}

namespace detail {
// The table form, for machines without the instruction; public so that the tests can compare both.
uint32_t crc32c_table(std::span<const std::byte> data, uint32_t previous);
}  // namespace detail

}  // namespace expertmesh::base
