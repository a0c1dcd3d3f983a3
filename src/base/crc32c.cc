// SPDX-License-Identifier: Apache-2.0
#include "base/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace expertmesh::base {
namespace {

constexpr std::array<uint32_t, 256> make_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1U) != 0 ? 0x82f63b78U : 0U);
    table[i] = value;
  }
  return table;
}
constexpr auto kTable = make_table();

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) uint32_t crc32c_hardware(std::span<const std::byte> data, uint32_t previous) {
  uint64_t crc = ~previous;
  while (data.size() >= sizeof(uint64_t)) {
    uint64_t word;
    std::memcpy(&word, data.data(), sizeof word);
    crc = _mm_crc32_u64(crc, word);
    data = data.subspan(sizeof word);
  }
  auto narrow = static_cast<uint32_t>(crc);
  for (const std::byte byte : data) narrow = _mm_crc32_u8(narrow, static_cast<uint8_t>(byte));
  return ~narrow;
}
#endif

}  // namespace

namespace detail {

uint32_t crc32c_table(std::span<const std::byte> data, uint32_t previous) {
  uint32_t crc = ~previous;
  for (const std::byte byte : data) crc = kTable[(crc ^ static_cast<uint8_t>(byte)) & 0xffU] ^ (crc >> 8);
  return ~crc;
}

}  // namespace detail

uint32_t crc32c(std::span<const std::byte> data, uint32_t previous) {
#if defined(__x86_64__)
  static const bool has_instruction = __builtin_cpu_supports("sse4.2") != 0;
  if (has_instruction) return crc32c_hardware(data, previous);
#endif
  return detail::crc32c_table(data, previous);
}

}  // namespace expertmesh::base
