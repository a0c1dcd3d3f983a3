// SPDX-License-Identifier: Apache-2.0
// Causal convolution of each channel and SiLU, forward and backward, fp32 inside. Channels are independent: callers
// spread ranges of them over threads. No torch.
#pragma once

#include <cstdint>
#include <span>

#include "ops/cpu/vec.h"

namespace expertmesh::ops::cpu {

struct CausalConvShape {
  int64_t channels = 0;
  int64_t taps = 0;
  int64_t x_stride = 0;  // elements from a token of x to the next; everything else is contiguous
};

template <typename T>
struct CausalConvTensors {
  const T* x = nullptr;           // [T, C]
  const float* weight = nullptr;  // [taps, C]
  const T* before = nullptr;      // [B, taps - 1, C]: the inputs before each document; null: 0
  T* out = nullptr;               // [T, C]
  const T* grad_out = nullptr;    // [T, C]
  T* grad_x = nullptr;            // [T, C]
  double* grad_weight = nullptr;  // [taps, C], written
  T* grad_before = nullptr;       // [B, taps - 1, C]; null: not wanted
};

// Channels of a range at most, and floats of scratch memory for the backward of one.
constexpr int64_t kConvChannels = 128;
int64_t causal_conv_scratch(const CausalConvShape& shape);

// Channels [begin, end) of all documents.
void causal_conv_forward(const CausalConvTensors<float>& tensors, const CausalConvShape& shape,
                         std::span<const int64_t> cu_seqlens, int64_t begin, int64_t end);
void causal_conv_forward(const CausalConvTensors<Bf16>& tensors, const CausalConvShape& shape,
                         std::span<const int64_t> cu_seqlens, int64_t begin, int64_t end);
void causal_conv_backward(const CausalConvTensors<float>& tensors, const CausalConvShape& shape,
                          std::span<const int64_t> cu_seqlens, int64_t begin, int64_t end, float* scratch);
void causal_conv_backward(const CausalConvTensors<Bf16>& tensors, const CausalConvShape& shape,
                          std::span<const int64_t> cu_seqlens, int64_t begin, int64_t end, float* scratch);

}  // namespace expertmesh::ops::cpu
