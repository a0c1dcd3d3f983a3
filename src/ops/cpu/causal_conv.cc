// SPDX-License-Identifier: Apache-2.0
// The backward walks a document backwards in blocks of tokens. With u the sums before SiLU, an input at position p (the
// ones before the document have negative positions) meets the outputs p to p + taps - 1, so the gradients of u of a
// block stay for the block before it: scratch rows [block + taps - 1]. The weight's gradient is summed in further rows,
// one a tap.
#include "ops/cpu/causal_conv.h"

#include <algorithm>

#include "ops/cpu/column_sums.h"
#include "ops/cpu/sigmoid.h"

namespace expertmesh::ops::cpu {
namespace {

constexpr int64_t kBlock = kSumRows;  // tokens

// One document: its inputs by position.
template <typename T>
struct Document {
  const T* x;       // of the first token
  const T* before;  // null: 0
  int64_t x_stride, channels, taps, length;

  EXPERTMESH_INLINE Document(const CausalConvTensors<T>& tensors, const CausalConvShape& shape,
                             std::span<const int64_t> cu_seqlens, int64_t index)
      : x(tensors.x + cu_seqlens[static_cast<size_t>(index)] * shape.x_stride),
        before(tensors.before == nullptr ? nullptr : tensors.before + index * (shape.taps - 1) * shape.channels),
        x_stride(shape.x_stride),
        channels(shape.channels),
        taps(shape.taps),
        length(cu_seqlens[static_cast<size_t>(index) + 1] - cu_seqlens[static_cast<size_t>(index)]) {}

  // The input at position p >= 1 - taps; null: 0.
  EXPERTMESH_INLINE const T* row(int64_t p) const {
    if (p >= 0) return x + p * x_stride;
    return before == nullptr ? nullptr : before + (taps - 1 + p) * channels;
  }

  // The sum over the taps at token p, before SiLU.
  EXPERTMESH_INLINE Vec sum_taps(const float* weight, int64_t p, int64_t channel, int64_t n) const {
    Vec sum = splat(0.0F);
    for (int64_t tap = 0; tap < taps; ++tap) {
      const T* input = row(p - (taps - 1) + tap);
      if (input != nullptr) sum += load(input + channel, n) * load(weight + tap * channels + channel, n);
    }
    return sum;
  }
};

template <typename T>
EXPERTMESH_INLINE void forward_channels(const CausalConvTensors<T>& tensors, const CausalConvShape& shape,
                                        std::span<const int64_t> cu_seqlens, int64_t begin, int64_t end) {
  for (size_t b = 0; b + 1 < cu_seqlens.size(); ++b) {
    const Document<T> document(tensors, shape, cu_seqlens, static_cast<int64_t>(b));
    T* out = tensors.out + cu_seqlens[b] * shape.channels;
    for (int64_t p = 0; p < document.length; ++p, out += shape.channels) {
      for (int64_t c = begin; c < end; c += kLanes) {
        const int64_t n = lanes_at(c, end);
        const Vec sum = document.sum_taps(tensors.weight, p, c, n);
        store(out + c, sum * sigmoid(sum), n);
      }
    }
  }
}

// Gradients of the sums at tokens [first, first + rows) of a document, and the part of the weight's they give, which is
// added to [taps][kConvChannels].
template <typename T>
EXPERTMESH_INLINE void grad_sums(const CausalConvTensors<T>& tensors, const Document<T>& document, const T* grad_out,
                                 int64_t first, int64_t rows, int64_t begin, int64_t end, float* sums,
                                 float* grad_weight) {
  const int64_t channels = document.channels;
  for (int64_t p = first; p < first + rows; ++p, sums += kConvChannels) {
    for (int64_t c = begin; c < end; c += kLanes) {
      const int64_t n = lanes_at(c, end);
      const Vec sum = document.sum_taps(tensors.weight, p, c, n), s = sigmoid(sum);
      const Vec grad = load(grad_out + p * channels + c, n) * (s + sum * s * (1.0F - s));
      store(sums + c - begin, grad);
      for (int64_t tap = 0; tap < document.taps; ++tap) {
        const T* input = document.row(p - (document.taps - 1) + tap);
        float* to = grad_weight + tap * kConvChannels + c - begin;
        if (input != nullptr) store(to, load(to) + grad * load(input + c, n));
      }
    }
  }
}

// Gradients of the inputs at positions [first, last): sums holds those of the sums from `first` on.
template <typename T>
EXPERTMESH_INLINE void grad_inputs(const float* weight, const Document<T>& document, T* grad_first, int64_t rows,
                                   int64_t begin, int64_t end, const float* sums) {
  for (int64_t r = 0; r < rows; ++r, sums += kConvChannels, grad_first += document.channels) {
    for (int64_t c = begin; c < end; c += kLanes) {
      const int64_t n = lanes_at(c, end);
      Vec grad = splat(0.0F);
      for (int64_t tap = 0; tap < document.taps; ++tap) {
        grad += load(sums + (document.taps - 1 - tap) * kConvChannels + c - begin) *
                load(weight + tap * document.channels + c, n);
      }
      store(grad_first + c, grad, n);
    }
  }
}

template <typename T>
EXPERTMESH_INLINE void backward_channels(const CausalConvTensors<T>& tensors, const CausalConvShape& shape,
                                         std::span<const int64_t> cu_seqlens, int64_t begin, int64_t end,
                                         float* scratch) {
  const int64_t halo = shape.taps - 1;
  float* grad_weight = scratch + (kBlock + 2 * halo) * kConvChannels;
  std::memset(grad_weight, 0, static_cast<size_t>(shape.taps * kConvChannels) * sizeof(float));
  for (int64_t tap = 0; tap < shape.taps; ++tap) {
    std::fill_n(tensors.grad_weight + tap * shape.channels + begin, end - begin, 0.0);
  }
  int64_t summed = 0;  // tokens in grad_weight
  const auto end_blocks = [&] {
    for (int64_t tap = 0; tap < shape.taps; ++tap) {
      end_block({grad_weight + tap * kConvChannels, tensors.grad_weight + tap * shape.channels + begin}, end - begin);
    }
    summed = 0;
  };
  for (size_t b = 0; b + 1 < cu_seqlens.size(); ++b) {
    const Document<T> document(tensors, shape, cu_seqlens, static_cast<int64_t>(b));
    const T* grad_out = tensors.grad_out + cu_seqlens[b] * shape.channels;
    // Rows of scratch: `halo` for positions before the block, the block, and the first `halo` of the block after it.
    float *front = scratch, *block = scratch + halo * kConvChannels;
    std::memset(block, 0, static_cast<size_t>(halo * kConvChannels) * sizeof(float));  // after the end
    std::memset(front, 0, static_cast<size_t>(halo * kConvChannels) * sizeof(float));
    for (int64_t last = document.length; last > 0;) {
      const int64_t first = std::max<int64_t>(0, last - kBlock), rows = last - first;
      std::memmove(block + rows * kConvChannels, block, static_cast<size_t>(halo * kConvChannels) * sizeof(float));
      if (summed + rows > kSumRows) end_blocks();
      summed += rows;
      grad_sums(tensors, document, grad_out, first, rows, begin, end, block, grad_weight);
      grad_inputs(tensors.weight, document, tensors.grad_x + (cu_seqlens[b] + first) * shape.channels, rows, begin, end,
                  block);
      last = first;
    }
    if (tensors.grad_before != nullptr) {  // outputs before the document do not exist: zeros in front
      grad_inputs(tensors.weight, document, tensors.grad_before + static_cast<int64_t>(b) * halo * shape.channels, halo,
                  begin, end, front);
    }
  }
  end_blocks();
}

}  // namespace

int64_t causal_conv_scratch(const CausalConvShape& shape) {
  return (kBlock + 2 * (shape.taps - 1) + shape.taps) * kConvChannels;
}

EXPERTMESH_CPU_KERNEL(void, causal_conv_forward,
                      (const CausalConvTensors<float>& tensors, const CausalConvShape& shape,
                       std::span<const int64_t> cu_seqlens, int64_t begin, int64_t end),
                      forward_channels, (tensors, shape, cu_seqlens, begin, end))
EXPERTMESH_CPU_KERNEL(void, causal_conv_forward,
                      (const CausalConvTensors<Bf16>& tensors, const CausalConvShape& shape,
                       std::span<const int64_t> cu_seqlens, int64_t begin, int64_t end),
                      forward_channels, (tensors, shape, cu_seqlens, begin, end))
EXPERTMESH_CPU_KERNEL(void, causal_conv_backward,
                      (const CausalConvTensors<float>& tensors, const CausalConvShape& shape,
                       std::span<const int64_t> cu_seqlens, int64_t begin, int64_t end, float* scratch),
                      backward_channels, (tensors, shape, cu_seqlens, begin, end, scratch))
EXPERTMESH_CPU_KERNEL(void, causal_conv_backward,
                      (const CausalConvTensors<Bf16>& tensors, const CausalConvShape& shape,
                       std::span<const int64_t> cu_seqlens, int64_t begin, int64_t end, float* scratch),
                      backward_channels, (tensors, shape, cu_seqlens, begin, end, scratch))

}  // namespace expertmesh::ops::cpu
