// SPDX-License-Identifier: Apache-2.0
#include "base/rng.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>
#include <utility>

#include "base/check.h"

namespace expertmesh::base {
namespace {

constexpr int kShift = 397;

// A bijection of 64 bits that lets every input bit reach every output bit.
uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

uint64_t hash_name(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325U;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
  return mix(hash);
}

std::vector<uint32_t> words_of(uint64_t seed) {
  std::vector<uint32_t> words{static_cast<uint32_t>(seed)};
  if (seed >> 32 != 0) words.push_back(static_cast<uint32_t>(seed >> 32));
  return words;
}

// 53 bits of two words as a number in [0, 1).
double uniform_of(uint32_t high, uint32_t low) { return ((high >> 5) * 67108864.0 + (low >> 6)) / 9007199254740992.0; }

// Two independent normals from two uniform words.
std::pair<float, float> box_muller(uint32_t a, uint32_t b) {
  const float uniform = (static_cast<float>(a) + 0.5F) * 0x1p-32F;  // never 0
  const float radius = std::sqrt(-2.0F * std::log(uniform < 1.0F ? uniform : 1.0F));
  const float angle = static_cast<float>(b) * (0x1p-32F * 2 * std::numbers::pi_v<float>);
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

}  // namespace

Mt19937::Mt19937(uint32_t seed) : state_{} {
  state_[0] = seed;
  for (uint32_t i = 1; i < kWords; ++i) state_[i] = 1812433253U * (state_[i - 1] ^ (state_[i - 1] >> 30)) + i;
}

Mt19937 Mt19937::from_key(std::span<const uint32_t> key) {
  EXPERTMESH_CHECK(!key.empty());
  Mt19937 engine(19650218U);
  auto& s = engine.state_;
  uint32_t i = 1;
  const auto advance = [&] {
    if (++i >= kWords) {
      s[0] = s[kWords - 1];
      i = 1;
    }
  };
  size_t j = 0;
  for (size_t k = std::max<size_t>(kWords, key.size()); k > 0; --k) {
    s[i] = (s[i] ^ ((s[i - 1] ^ (s[i - 1] >> 30)) * 1664525U)) + key[j] + static_cast<uint32_t>(j);
    advance();
    if (++j >= key.size()) j = 0;
  }
  for (int k = kWords - 1; k > 0; --k) {
    s[i] = (s[i] ^ ((s[i - 1] ^ (s[i - 1] >> 30)) * 1566083941U)) - i;
    advance();
  }
  s[0] = 0x80000000U;
  return engine;
}

void Mt19937::refill() {
  for (int i = 0; i < kWords; ++i) {
    const uint32_t y = (state_[i] & 0x80000000U) | (state_[(i + 1) % kWords] & 0x7fffffffU);
    state_[i] = state_[(i + kShift) % kWords] ^ (y >> 1) ^ ((y & 1U) != 0 ? 0x9908b0dfU : 0U);
  }
  at_ = 0;
}

uint32_t Mt19937::next() {
  if (at_ == kWords) refill();
  uint32_t y = state_[at_++];
  y ^= y >> 11;
  y ^= (y << 7) & 0x9d2c5680U;
  y ^= (y << 15) & 0xefc60000U;
  return y ^ (y >> 18);
}

std::vector<int64_t> torch_randperm(int64_t n, uint64_t seed) {
  EXPERTMESH_CHECK(n >= 0, "n = {}", n);
  std::vector<int64_t> permutation(static_cast<size_t>(n));
  std::iota(permutation.begin(), permutation.end(), int64_t{0});
  Mt19937 engine(static_cast<uint32_t>(seed));
  // 32 bits an element, as torch draws them; where that would be visibly uneven, 64.
  const bool is_small = n < std::numeric_limits<uint32_t>::max() / 20;
  for (int64_t i = 0; i + 1 < n; ++i) {
    uint64_t bits = engine.next();
    if (!is_small) bits = (bits << 32) | engine.next();
    std::swap(permutation[i], permutation[i + static_cast<int64_t>(bits % static_cast<uint64_t>(n - i))]);
  }
  return permutation;
}

PythonRandom::PythonRandom(uint64_t seed) : engine_(Mt19937::from_key(words_of(seed))) {}

double PythonRandom::random() {
  const uint32_t high = engine_.next(), low = engine_.next();
  return uniform_of(high, low);
}

std::vector<int64_t> PythonRandom::choices(int64_t n, int64_t count) {
  EXPERTMESH_CHECK(n > 0 && count >= 0, "{} of {}", count, n);
  std::vector<int64_t> chosen(static_cast<size_t>(count));
  for (auto& index : chosen) index = static_cast<int64_t>(std::floor(random() * static_cast<double>(n)));
  return chosen;
}

RandomField::RandomField(uint64_t seed, std::string_view name)
    : key_(mix(seed + 0x9e3779b97f4a7c15U)), stream_(hash_name(name)) {}

std::array<uint32_t, 4> RandomField::block(uint64_t counter) const {
  std::array<uint32_t, 4> x{static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32),
                            static_cast<uint32_t>(stream_), static_cast<uint32_t>(stream_ >> 32)};
  auto k0 = static_cast<uint32_t>(key_), k1 = static_cast<uint32_t>(key_ >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xd2511f53U} * x[0], b = uint64_t{0xcd9e8d57U} * x[2];
    x = {static_cast<uint32_t>(b >> 32) ^ x[1] ^ k0, static_cast<uint32_t>(b),
         static_cast<uint32_t>(a >> 32) ^ x[3] ^ k1, static_cast<uint32_t>(a)};
    k0 += 0x9e3779b9U;
    k1 += 0xbb67ae85U;
  }
  return x;
}

float RandomField::normal(uint64_t index) const {
  float value;
  fill_normal(index, {&value, 1}, 0, 1);
  return value;
}

double RandomField::uniform(uint64_t index) const {
  const auto words = block(index / 2);
  const size_t lane = index % 2 * 2;
  return uniform_of(words[lane], words[lane + 1]);
}

void RandomField::fill_normal(uint64_t begin, std::span<float> out, float mean, float stddev) const {
  size_t done = 0;
  while (done < out.size()) {
    const uint64_t index = begin + done;
    const auto words = block(index / 4);
    const auto first = box_muller(words[0], words[1]), second = box_muller(words[2], words[3]);
    const std::array<float, 4> values{first.first, first.second, second.first, second.second};
    for (uint64_t lane = index % 4; lane < 4 && done < out.size(); ++lane) out[done++] = mean + stddev * values[lane];
  }
}

}  // namespace expertmesh::base
