// SPDX-License-Identifier: Apache-2.0
// Rotary angles from several positions a token (time, height, width), for Operators::rope.
// Shapes: T tokens, A axes, P positions of a table, R rotary dim / 2.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

namespace expertmesh::ops {

// Tables with a row of angles for each token, and the row of each token: its own number.
struct TokenAngles {
  at::Tensor positions_T;
  at::Tensor cos_TR;
  at::Tensor sin_TR;
};

// Interleaved as Qwen3.5 does it: column r belongs to axis r % A while r / A < sections[r % A], and to axis 0
// otherwise. sections hold a count of columns for each axis and sum to R. Text has the same position on all axes: the
// result is then that of `rope` with the tables themselves. No graph.
TokenAngles interleaved_angles(const at::Tensor& positions_AT, const at::Tensor& cos_PR, const at::Tensor& sin_PR,
                               std::span<const int64_t> sections);

}  // namespace expertmesh::ops
