// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/expert_rows.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace expertmesh::ops::cpu {
namespace {

using base::DType;

constexpr int64_t kChunk = 256;  // columns summed at a time: the sums stay in the first cache level

float load(const float* p) { return *p; }
float load(const uint16_t* p) { return base::bf16_to_float(*p); }
void store(float value, float* p) { *p = value; }
void store(float value, uint16_t* p) { *p = base::float_to_bf16(value); }

template <typename T>
void combine_token(const CombineArgs& args, int64_t token, int64_t column, int64_t columns) {
  float sum[kChunk] = {};
  for (int64_t k = 0; k < args.top_k; ++k) {
    const int64_t choice = token * args.top_k + k;
    const int64_t row = args.row_of_choice ? args.row_of_choice[choice] : choice;
    const float weight = args.weights ? args.weights[choice] : 1.0F;
    const T* values = static_cast<const T*>(args.rows) + row * args.width + column;
    for (int64_t i = 0; i < columns; ++i) sum[i] += weight * load(values + i);
  }
  T* out = static_cast<T*>(args.out) + token * args.width + column;
  for (int64_t i = 0; i < columns; ++i) store(sum[i], out + i);
}

template <typename T>
void combine_range(const CombineArgs& args, int64_t begin, int64_t end) {
  for (int64_t token = begin; token < end; ++token) {
    for (int64_t column = 0; column < args.width; column += kChunk) {
      combine_token<T>(args, token, column, std::min(kChunk, args.width - column));
    }
  }
}

}  // namespace

void gather_rows(const void* source, const int64_t* index, int64_t row_bytes, void* out, int64_t begin, int64_t end) {
  const auto* from = static_cast<const std::byte*>(source);
  auto* to = static_cast<std::byte*>(out);
  for (int64_t row = begin; row < end; ++row) {
    std::memcpy(to + row * row_bytes, from + index[row] * row_bytes, static_cast<size_t>(row_bytes));
  }
}

void combine_rows(const CombineArgs& args, int64_t begin, int64_t end) {
  EXPERTMESH_CHECK(args.dtype == DType::kF32 || args.dtype == DType::kBF16, "{}", base::dtype_name(args.dtype));
  if (args.dtype == DType::kF32) {
    combine_range<float>(args, begin, end);
  } else {
    combine_range<uint16_t>(args, begin, end);
  }
}

}  // namespace expertmesh::ops::cpu
