// SPDX-License-Identifier: Apache-2.0
// Everything goes through fp32, which holds all the narrower types exactly. The loops are plain so that the compiler
// vectorises them; they are built twice, for any x86-64 and for AVX2, and chosen at run time.
#include "ckpt/convert.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"

namespace expertmesh::ckpt {
namespace {

#if defined(__x86_64__)
#define EXPERTMESH_INLINE inline __attribute__((always_inline))
#else
#define EXPERTMESH_INLINE inline
#endif

template <typename T>
EXPERTMESH_INLINE T read(const unsigned char* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

struct FromF32 {
  static constexpr size_t kBytes = 4;
  static EXPERTMESH_INLINE float get(const unsigned char* at) { return read<float>(at); }
};

struct FromBf16 {
  static constexpr size_t kBytes = 2;
  static EXPERTMESH_INLINE float get(const unsigned char* at) {
    return std::bit_cast<float>(static_cast<uint32_t>(read<uint16_t>(at)) << 16);
  }
};

struct FromF64 {
  static constexpr size_t kBytes = 8;
  static EXPERTMESH_INLINE float get(const unsigned char* at) { return static_cast<float>(read<double>(at)); }
};

EXPERTMESH_INLINE float half_to_float(uint16_t half) {
  const uint32_t sign = (half & 0x8000U) << 16, rest = (half & 0x7fffU) << 13;
  // The exponent is moved by a multiplication, which also makes denormals right.
  const uint32_t finite = std::bit_cast<uint32_t>(std::bit_cast<float>(rest) * 0x1p112F);
  return std::bit_cast<float>(sign | (rest >= 0x0f800000U ? rest | 0x7f800000U : finite));
}

struct FromF16 {
  static constexpr size_t kBytes = 2;
  static EXPERTMESH_INLINE float get(const unsigned char* at) { return half_to_float(read<uint16_t>(at)); }
};

// One byte: sign, 5 bits of exponent, 2 of mantissa: the upper half of an F16.
struct FromF8E5M2 {
  static constexpr size_t kBytes = 1;
  static EXPERTMESH_INLINE float get(const unsigned char* at) { return half_to_float(static_cast<uint16_t>(*at << 8)); }
};

// One byte: sign, 4 bits of exponent (bias 7), 3 of mantissa; no infinity, and NaN is all ones.
struct FromF8E4M3 {
  static constexpr size_t kBytes = 1;
  static EXPERTMESH_INLINE float get(const unsigned char* at) {
    const uint32_t sign = (*at & 0x80U) << 24, rest = (*at & 0x7fU) << 20;
    const uint32_t finite = std::bit_cast<uint32_t>(std::bit_cast<float>(rest) * 0x1p120F);
    return std::bit_cast<float>(sign | ((*at & 0x7fU) == 0x7fU ? 0x7fc00000U : finite));
  }
};

struct ToF32 {
  static constexpr size_t kBytes = 4;
  static EXPERTMESH_INLINE void put(unsigned char* at, float value) { std::memcpy(at, &value, sizeof value); }
};

struct ToBf16 {
  static constexpr size_t kBytes = 2;
  static EXPERTMESH_INLINE void put(unsigned char* at, float value) {
    const auto wide = std::bit_cast<uint32_t>(value);
    const uint32_t rounded = (wide + 0x7fffU + ((wide >> 16) & 1U)) >> 16;
    const bool is_nan = (wide & 0x7fffffffU) > 0x7f800000U;
    const auto half = static_cast<uint16_t>(is_nan ? (wide >> 16) | 0x40U : rounded);
    std::memcpy(at, &half, sizeof half);
  }
};

struct ToF64 {
  static constexpr size_t kBytes = 8;
  static EXPERTMESH_INLINE void put(unsigned char* at, float value) {
    const double wide = value;
    std::memcpy(at, &wide, sizeof wide);
  }
};

uint16_t float_to_half(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000U);
  const float magnitude = std::fabs(value);
  if (std::isnan(value)) return sign | 0x7e00U;
  if (magnitude >= 65520.0F) return sign | 0x7c00U;  // rounds past the largest finite half
  if (magnitude < 0x1p-14F) {                        // denormal: multiples of 2^-24, rounded by the addition
    return sign | static_cast<uint16_t>(std::bit_cast<uint32_t>(magnitude + 0.5F) - std::bit_cast<uint32_t>(0.5F));
  }
  const uint32_t wide = bits & 0x7fffffffU;
  return sign | static_cast<uint16_t>((wide - (112U << 23) + 0xfffU + ((wide >> 13) & 1U)) >> 13);
}

struct ToF16 {
  static constexpr size_t kBytes = 2;
  static EXPERTMESH_INLINE void put(unsigned char* at, float value) {
    const uint16_t half = float_to_half(value);
    std::memcpy(at, &half, sizeof half);
  }
};

template <typename From, typename To>
EXPERTMESH_INLINE void loop(const unsigned char* from, unsigned char* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) To::put(to + i * To::kBytes, From::get(from + i * From::kBytes));
}

#if defined(__x86_64__)
template <typename From, typename To>
__attribute__((target("avx2"), optimize("O3"))) void loop_avx2(const unsigned char* from, unsigned char* to,
                                                               int64_t count) {
  loop<From, To>(from, to, count);
}
#endif

template <typename From, typename To>
__attribute__((optimize("O3"))) void run(const unsigned char* from, unsigned char* to, int64_t count) {
#if defined(__x86_64__)
  static const bool has_avx2 = __builtin_cpu_supports("avx2") != 0;
  if (has_avx2) return loop_avx2<From, To>(from, to, count);
#endif
  loop<From, To>(from, to, count);
}

using Function = void (*)(const unsigned char*, unsigned char*, int64_t);

template <typename To>
Function widen_to(DType from) {
  switch (from) {
    case DType::kF32:
      return run<FromF32, To>;
    case DType::kBF16:
      return run<FromBf16, To>;
    case DType::kF16:
      return run<FromF16, To>;
    case DType::kF64:
      return run<FromF64, To>;
    case DType::kF8E4M3:
      return run<FromF8E4M3, To>;
    case DType::kF8E5M2:
      return run<FromF8E5M2, To>;
    default:
      return nullptr;
  }
}

template <typename To>
Function from_working_type(DType from) {
  if (from == DType::kF32) return run<FromF32, To>;
  return from == DType::kBF16 ? run<FromBf16, To> : nullptr;
}

Function find(DType from, DType to) {
  if (to == DType::kF32) return widen_to<ToF32>(from);
  if (to == DType::kBF16) return widen_to<ToBf16>(from);
  if (to == DType::kF16) return from_working_type<ToF16>(from);
  return to == DType::kF64 ? from_working_type<ToF64>(from) : nullptr;
}

}  // namespace

bool can_convert(DType from, DType to) { return from == to || find(from, to) != nullptr; }

void convert_elements(const void* from, DType from_type, void* to, DType to_type, int64_t count) {
  EXPERTMESH_CHECK(can_convert(from_type, to_type), "{} to {}", dtype_name(from_type), dtype_name(to_type));
  if (count == 0) return;
  if (from_type == to_type) {
    std::memcpy(to, from, static_cast<size_t>(count) * dtype_bytes(from_type));
  } else {
    find(from_type, to_type)(static_cast<const unsigned char*>(from), static_cast<unsigned char*>(to), count);
  }
}

}  // namespace expertmesh::ckpt
