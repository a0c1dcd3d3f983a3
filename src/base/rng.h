// SPDX-License-Identifier: Apache-2.0
// Random numbers that other programs can reproduce (torch's permutations, Python's choices) and numbers that do not
// depend on the order in which they are asked for (weight initialisation). Generators are not thread-safe; RandomField
// is.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace expertmesh::base {

// The 32-bit Mersenne Twister in the two seedings in use.
class Mt19937 {
 public:
  explicit Mt19937(uint32_t seed);                         // torch: the low 32 bits of the seed
  static Mt19937 from_key(std::span<const uint32_t> key);  // Python: the 32-bit words of the seed
  uint32_t next();

 private:
  static constexpr int kWords = 624;
  void refill();
  std::array<uint32_t, kWords> state_;
  int at_ = kWords;
};

// torch.randperm(n, generator=torch.Generator().manual_seed(seed)) of a CPU generator for n < 2^32 / 20 (214 million);
// larger ones get a permutation of our own, as fixed but not torch's.
std::vector<int64_t> torch_randperm(int64_t n, uint64_t seed);

// random.Random(seed) of CPython.
class PythonRandom {
 public:
  explicit PythonRandom(uint64_t seed);
  double random();                                         // [0, 1), 53 bits
  std::vector<int64_t> choices(int64_t n, int64_t count);  // random.choices(range(n), k=count)

 private:
  Mt19937 engine_;
};

// An endless array of random numbers, a pure function of (seed, name, index): any rank computes any part of a tensor
// and gets what one rank alone would have got. Philox 4x32-10 and Box-Muller. Threads: any.
class RandomField {
 public:
  RandomField(uint64_t seed, std::string_view name);
  float normal(uint64_t index) const;    // standard normal
  double uniform(uint64_t index) const;  // [0, 1), 53 bits
  // out[i] = mean + stddev * normal(begin + i)
  void fill_normal(uint64_t begin, std::span<float> out, float mean, float stddev) const;

 private:
  std::array<uint32_t, 4> block(uint64_t counter) const;
  uint64_t key_;
  uint64_t stream_;
};

}  // namespace expertmesh::base
