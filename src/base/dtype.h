// SPDX-License-Identifier: Apache-2.0
// Element types of tensors in files and in memory, without torch. Names are those of safetensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace expertmesh::base {

enum class DType : uint8_t {
  kBool,
  kU8,
  kI8,
  kF8E4M3,
  kF8E5M2,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kI64,
  kU64,
  kF64,
};

// Bytes of one element.
constexpr size_t dtype_bytes(DType dtype) {
  switch (dtype) {
    case DType::kBool:
    case DType::kU8:
    case DType::kI8:
    case DType::kF8E4M3:
    case DType::kF8E5M2:
      return 1;
    case DType::kI16:
    case DType::kU16:
    case DType::kF16:
    case DType::kBF16:
      return 2;
    case DType::kI32:
    case DType::kU32:
    case DType::kF32:
      return 4;
    case DType::kI64:
    case DType::kU64:
    case DType::kF64:
      return 8;
  }
  return 0;
}

constexpr bool is_floating(DType dtype) {
  return dtype == DType::kF8E4M3 || dtype == DType::kF8E5M2 || dtype == DType::kF16 || dtype == DType::kBF16 ||
         dtype == DType::kF32 || dtype == DType::kF64;
}

// "F32", "BF16", ... as safetensors spells them.
std::string_view dtype_name(DType dtype);

// The type of a safetensors name; nothing for an unknown one (names are case-sensitive).
std::optional<DType> try_dtype(std::string_view name);

// bf16 conversions: round to nearest even, NaN stays NaN.
inline float bf16_to_float(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  __builtin_memcpy(&value, &wide, sizeof value);
  return value;
}

inline uint16_t float_to_bf16(float value) {
  uint32_t wide;
  __builtin_memcpy(&wide, &value, sizeof wide);
  if ((wide & 0x7fffffffU) > 0x7f800000U) return static_cast<uint16_t>((wide >> 16) | 0x40U);
  wide += 0x7fffU + ((wide >> 16) & 1U);
  return static_cast<uint16_t>(wide >> 16);
}

}  // namespace expertmesh::base
