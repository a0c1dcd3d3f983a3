// SPDX-License-Identifier: Apache-2.0
// Four independent lanes take 16 bytes each in turn; a lane multiplies two words to 128 bits and folds the halves, and
// keeps the sum of its input beside the product, so that a zero factor cannot erase what came before.
#include "data/content_hash.h"

#include <fmt/format.h>

#include <array>
#include <cstring>

namespace expertmesh::data {
namespace {

constexpr size_t kLanes = 4;
constexpr size_t kLaneBytes = 16;
constexpr size_t kBlockBytes = kLanes * kLaneBytes;
constexpr std::array<uint64_t, kLanes> kSeeds = {0x243f6a8885a308d3U, 0x13198a2e03707344U, 0xa4093822299f31d0U,
                                                 0x082efa98ec4e6c89U};  // digits of pi

uint64_t fold(uint64_t a, uint64_t b) {
  const unsigned __int128 product = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

// Every input bit reaches every output bit.
uint64_t scramble(uint64_t x) {
  x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93U;
  x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93U;
  return x ^ (x >> 32);
}

struct Lane {
  uint64_t product, sum;
  void take(const std::byte* bytes) {
    uint64_t a = 0, b = 0;
    std::memcpy(&a, bytes, 8);
    std::memcpy(&b, bytes + 8, 8);
    product = fold(product ^ a, b ^ 0x9e3779b97f4a7c15U) + a;
    sum = (sum << 27 | sum >> 37) + (a ^ (b << 1 | b >> 63));
  }
};

}  // namespace

std::string ContentHash::hex() const { return fmt::format("{:016x}{:016x}", high, low); }

ContentHash content_hash(std::span<const std::byte> bytes) {
  std::array<Lane, kLanes> lanes{};
  for (size_t i = 0; i < kLanes; ++i) lanes[i] = {kSeeds[i], ~kSeeds[i]};
  size_t at = 0;
  for (; at + kBlockBytes <= bytes.size(); at += kBlockBytes) {
    for (size_t i = 0; i < kLanes; ++i) lanes[i].take(bytes.data() + at + i * kLaneBytes);
  }
  std::array<std::byte, kBlockBytes> rest{};
  if (at < bytes.size()) std::memcpy(rest.data(), bytes.data() + at, bytes.size() - at);
  for (size_t i = 0; i < kLanes; ++i) lanes[i].take(rest.data() + i * kLaneBytes);

  ContentHash hash{bytes.size(), ~static_cast<uint64_t>(bytes.size())};
  for (const Lane& lane : lanes) {
    hash.high = scramble(hash.high ^ lane.product) + lane.sum;
    hash.low = scramble(hash.low + lane.sum) ^ lane.product;
  }
  return {scramble(hash.high ^ hash.low), scramble(hash.low + (hash.high << 1))};
}

}  // namespace expertmesh::data
