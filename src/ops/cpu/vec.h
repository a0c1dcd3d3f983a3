// SPDX-License-Identifier: Apache-2.0
// Sixteen floats at a time for the native kernels, as compiler vectors: one source for AVX-512, AVX2 and plain x86-64.
// Kernels are written as inline templates over these and compiled three times by EXPERTMESH_CPU_KERNEL; the processor
// is asked once. Why not target_clones: its resolvers run before the sanitizers are ready. No torch.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>

namespace expertmesh::ops::cpu {

struct Bf16 {
  uint16_t bits;
};

// Two neighbouring bf16, wherever they start.
using BfPair [[gnu::aligned(1), gnu::may_alias]] = uint32_t;

constexpr int64_t kLanes = 16;

using Vec = float __attribute__((vector_size(64)));
using IntVec = int32_t __attribute__((vector_size(64)));
using UintVec = uint32_t __attribute__((vector_size(64)));
using ShortVec = uint16_t __attribute__((vector_size(32)));

#define EXPERTMESH_INLINE inline __attribute__((always_inline))

EXPERTMESH_INLINE Vec splat(float x) { return Vec{} + x; }

EXPERTMESH_INLINE Vec load(const float* p) {
  Vec v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

EXPERTMESH_INLINE void store(float* p, Vec v) { std::memcpy(p, &v, sizeof v); }

EXPERTMESH_INLINE Vec load(const Bf16* p) {
  ShortVec s;
  std::memcpy(&s, p, sizeof s);
  return reinterpret_cast<Vec>(__builtin_convertvector(s, UintVec) << 16);
}

// Round to nearest even; NaN stays NaN.
EXPERTMESH_INLINE void store(Bf16* p, Vec v) {
  const UintVec bits = reinterpret_cast<UintVec>(v);
  const UintVec rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
  const UintVec is_nan = reinterpret_cast<UintVec>(v != v);
  const ShortVec s = __builtin_convertvector((is_nan & 0x7fc0U) | (~is_nan & rounded), ShortVec);
  std::memcpy(p, &s, sizeof s);
}

// How many of the 16 lanes from i on are elements of a row of `size`.
EXPERTMESH_INLINE int64_t lanes_at(int64_t i, int64_t size) { return size - i < kLanes ? size - i : kLanes; }

// The first n <= 16 elements; the other lanes are `fill`.
EXPERTMESH_INLINE Vec load(const float* p, int64_t n, float fill = 0.0F) {
  if (n == kLanes) [[likely]]
    return load(p);
  float lanes[kLanes];
  for (float& lane : lanes) lane = fill;
  std::memcpy(lanes, p, static_cast<size_t>(n) * sizeof(float));
  return load(lanes);
}

EXPERTMESH_INLINE Vec load(const Bf16* p, int64_t n, float fill = 0.0F) {
  if (n == kLanes) [[likely]]
    return load(p);
  uint32_t fill_bits;
  std::memcpy(&fill_bits, &fill, sizeof fill);
  Bf16 lanes[kLanes];
  for (Bf16& lane : lanes) lane.bits = static_cast<uint16_t>(fill_bits >> 16);
  std::memcpy(lanes, p, static_cast<size_t>(n) * sizeof(Bf16));
  return load(lanes);
}

template <typename T>
EXPERTMESH_INLINE void store(T* p, Vec v, int64_t n) {
  if (n == kLanes) [[likely]] {
    store(p, v);
    return;
  }
  T lanes[kLanes];
  store(lanes, v);
  std::memcpy(p, lanes, static_cast<size_t>(n) * sizeof(T));
}

EXPERTMESH_INLINE UintVec load_bits(const uint16_t* p, int64_t n) {
  ShortVec s{};
  if (n == kLanes) [[likely]] {
    std::memcpy(&s, p, sizeof s);
  } else {
    std::memcpy(&s, p, static_cast<size_t>(n) * sizeof(uint16_t));
  }
  return __builtin_convertvector(s, UintVec);
}

EXPERTMESH_INLINE void store_bits(uint16_t* p, UintVec v, int64_t n) {
  const ShortVec s = __builtin_convertvector(v, ShortVec);
  if (n == kLanes) [[likely]] {
    std::memcpy(p, &s, sizeof s);
  } else {
    std::memcpy(p, &s, static_cast<size_t>(n) * sizeof(uint16_t));
  }
}

// first, first + 1, ...
EXPERTMESH_INLINE IntVec lane_numbers(int64_t first) {
  IntVec lanes;
  for (int i = 0; i < kLanes; ++i) lanes[i] = static_cast<int32_t>(first) + i;
  return lanes;
}

EXPERTMESH_INLINE Vec max(Vec a, Vec b) { return a > b ? a : b; }

EXPERTMESH_INLINE Vec sqrt(Vec x) {
  for (int64_t i = 0; i < kLanes; ++i) x[i] = __builtin_sqrtf(x[i]);
  return x;
}

// Pairwise, so that the order does not depend on the instruction set.
EXPERTMESH_INLINE float sum(Vec v) {
  float lanes[kLanes];
  store(lanes, v);
  for (int64_t width = kLanes / 2; width > 0; width /= 2) {
    for (int64_t i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  }
  return lanes[0];
}

EXPERTMESH_INLINE float max(Vec v) {
  float lanes[kLanes];
  store(lanes, v);
  float most = lanes[0];
  for (int64_t i = 1; i < kLanes; ++i) most = lanes[i] > most ? lanes[i] : most;
  return most;
}

// e^x within 1 ulp; 0 below -86.29 (no subnormals), infinite above 88.73, NaN for NaN.
EXPERTMESH_INLINE Vec exp(Vec x) {
  const Vec bounded = x > 89.0F ? splat(89.0F) : x;
  // n = round(x / ln 2): adding 1.5 * 2^23 rounds to an integer that sits in the low bits.
  const Vec shifted = bounded * 1.44269504F + 12582912.0F;
  const Vec n = shifted - 12582912.0F;
  Vec r = bounded - n * 0.693359375F;
  r = r + n * 2.12194440e-4F;
  Vec p = splat(1.9875691500e-4F);
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * (r * r) + r + 1.0F;
  // 2^(n - 1), then twice that: n is up to 128, the exponent of a float up to 127. Unsigned: where x is far below, the
  // sum wraps, and what it gives is not used.
  const UintVec exponent = (reinterpret_cast<UintVec>(shifted) - 1U) << 23;
  const Vec y = reinterpret_cast<Vec>(reinterpret_cast<UintVec>(p) + exponent) * 2.0F;
  const Vec flushed = x < -86.29F ? splat(0.0F) : y;
  return x != x ? x : flushed;
}

enum class Isa { kBaseline, kAvx2, kAvx512 };

// Which instruction sets kernels are compiled for here.
struct InstructionSets {
  Isa isa = Isa::kBaseline;
  bool has_bf16 = false;       // AVX-512 BF16
  bool prefers_dots = false;   // its dot products to FMAs (pair_engines.h)
  bool may_use_tiles = false;  // AMX, where amx.h finds it

  bool operator==(const InstructionSets&) const = default;
};

inline InstructionSets processor_sets() {
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq")) {
    const bool has_bf16 = __builtin_cpu_supports("avx512bf16") != 0;
    return {Isa::kAvx512, has_bf16, has_bf16 && __builtin_cpu_is("intel") == 0, has_bf16};
  }
  return {__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? Isa::kAvx2 : Isa::kBaseline};
}

// What kernels run with: the processor's best, unless a test asks for less.
inline std::atomic<InstructionSets> g_instruction_sets{processor_sets()};

inline InstructionSets instruction_sets() { return g_instruction_sets.load(std::memory_order_relaxed); }
inline Isa processor_isa() { return instruction_sets().isa; }
inline bool has_bf16() { return instruction_sets().has_bf16; }

// All kernels from now on, for all threads; what this processor lacks stays off.
inline void TEST_use_instruction_sets(InstructionSets wanted) {
  const InstructionSets own = processor_sets();
  const Isa isa = wanted.isa < own.isa ? wanted.isa : own.isa;
  const bool has_bf16 = isa == Isa::kAvx512 && own.has_bf16 && wanted.has_bf16;
  g_instruction_sets.store({isa, has_bf16, has_bf16 && wanted.prefers_dots, has_bf16 && wanted.may_use_tiles});
}

// Defines the exported function `name` with `parameters`, which runs `body` (an inline function) with `arguments`,
// compiled for the best instruction set of this processor:
//   EXPERTMESH_CPU_KERNEL(void, add, (float* x, int64_t n), add_body, (x, n))
#define EXPERTMESH_CPU_KERNEL(result, name, parameters, body, arguments)                           \
  namespace {                                                                                      \
  [[gnu::target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")]] result name##_avx512 parameters { \
    return body arguments;                                                                         \
  }                                                                                                \
  [[gnu::target("avx2,fma")]] result name##_avx2 parameters { return body arguments; }             \
  }                                                                                                \
  result name parameters {                                                                         \
    switch (processor_isa()) {                                                                     \
      case Isa::kAvx512:                                                                           \
        return name##_avx512 arguments;                                                            \
      case Isa::kAvx2:                                                                             \
        return name##_avx2 arguments;                                                              \
      case Isa::kBaseline:                                                                         \
        break;                                                                                     \
    }                                                                                              \
    return body arguments;                                                                         \
  }

}  // namespace expertmesh::ops::cpu
