// SPDX-License-Identifier: Apache-2.0
#include "base/dtype.h"

#include <array>
#include <utility>

namespace expertmesh::base {
namespace {

constexpr std::array<std::pair<DType, std::string_view>, 15> kNames{{
    {DType::kBool, "BOOL"},
    {DType::kU8, "U8"},
    {DType::kI8, "I8"},
    {DType::kF8E4M3, "F8_E4M3"},
    {DType::kF8E5M2, "F8_E5M2"},
    {DType::kI16, "I16"},
    {DType::kU16, "U16"},
    {DType::kF16, "F16"},
    {DType::kBF16, "BF16"},
    {DType::kI32, "I32"},
    {DType::kU32, "U32"},
    {DType::kF32, "F32"},
    {DType::kI64, "I64"},
    {DType::kU64, "U64"},
    {DType::kF64, "F64"},
}};

}  // namespace

std::string_view dtype_name(DType dtype) {
  for (const auto& [type, name] : kNames) {
    if (type == dtype) return name;
  }
  return "?";
}

std::optional<DType> try_dtype(std::string_view name) {
  for (const auto& [type, known] : kNames) {
    if (known == name) return type;
  }
  return std::nullopt;
}

}  // namespace expertmesh::base
