// SPDX-License-Identifier: Apache-2.0
// Rows that have a target go through in chunks whose logits fit a budget. Per chunk: logits = x W^T, softmax and
// gradient over them in place, dx = g W, dW += g^T x. In bf16 the product g^T x is made for a block of the vocabulary
// at a time, small enough for the cache, and added to the fp32 gradient from there.
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <vector>

#include "ops/cpu/cross_entropy.h"
#include "ops/native.h"
#include "ops/new_tensor.h"
#include "ops/product.h"
#include "ops/raw.h"
#include "ops/target_rows.h"

namespace expertmesh::ops::native {
namespace {

constexpr int64_t kBlockBytes = int64_t{4} << 20;  // of a block of the weight's gradient

int64_t rows_per_chunk(int64_t num_rows, int64_t row_bytes, int64_t budget) {
  const int64_t most = std::max<int64_t>(1, budget / row_bytes);
  const int64_t num_chunks = (num_rows + most - 1) / most;
  return (num_rows + num_chunks - 1) / num_chunks;  // equal chunks
}

void softmax_rows(const at::Tensor& logits, const int64_t* targets, const float* row_scale, double* logprobs) {
  const int64_t vocab = logits.size(1);
  with_element_type(logits.scalar_type(), [&]<typename T>(T) {
    at::parallel_for(0, logits.size(0), 1, [&](int64_t begin, int64_t end) {
      cpu::cross_entropy_rows(mutable_raw<T>(logits) + begin * vocab, targets + begin,
                              row_scale == nullptr ? nullptr : row_scale + begin, logprobs + begin, end - begin, vocab);
    });
  });
}

// grad_weight (+)= grad_logits^T x.
void put_weight_gradient(const at::Tensor& grad_logits, const at::Tensor& x, at::Tensor& grad_weight, bool adds) {
  if (x.scalar_type() == at::kFloat) {
    if (adds) {
      at::addmm_out(grad_weight, grad_weight, grad_logits.t(), x);
    } else {
      product_into(grad_weight, grad_logits.t(), x);
    }
    return;
  }
  const int64_t vocab = grad_weight.size(0), hidden = grad_weight.size(1);
  const int64_t row_bytes = hidden * static_cast<int64_t>(x.element_size());
  const int64_t rows = std::max<int64_t>(64, kBlockBytes / row_bytes / 64 * 64);
  at::Tensor block = new_tensor({std::min(rows, vocab), hidden}, x.options());
  for (int64_t begin = 0; begin < vocab; begin += rows) {
    const int64_t size = std::min(rows, vocab - begin);
    at::Tensor product = block.narrow(0, 0, size);
    product_into(product, grad_logits.narrow(1, begin, size).t(), x);
    float* sum = mutable_raw<float>(grad_weight) + begin * hidden;
    at::parallel_for(0, size * hidden, 65536, [&](int64_t first, int64_t last) {
      const cpu::Bf16* from = raw<cpu::Bf16>(product) + first;
      if (adds) {
        cpu::accumulate(sum + first, from, last - first);
      } else {
        cpu::widen(sum + first, from, last - first);
      }
    });
  }
}

// What both entries share: the rows with a target, gathered, and a buffer for the logits of a chunk.
struct Chunks {
  Chunks(const at::Tensor& hidden, const at::Tensor& weight, const TargetRows& rows, int64_t budget)
      : x(rows.gather(hidden).contiguous()),
        chunk_rows(rows_per_chunk(std::max<int64_t>(1, rows.size()),
                                  weight.size(0) * static_cast<int64_t>(weight.element_size()), budget)),
        buffer(new_tensor({std::min(chunk_rows, rows.size()), weight.size(0)}, weight.options())) {}

  // Logits of rows [begin, end).
  at::Tensor logits(const at::Tensor& weight, int64_t begin, int64_t end) {
    at::Tensor out = buffer.narrow(0, 0, end - begin);
    product_into(out, x.narrow(0, begin, end - begin), weight.t());
    return out;
  }

  at::Tensor x;
  int64_t chunk_rows;
  at::Tensor buffer;
};

}  // namespace

CrossEntropyResult linear_cross_entropy(const CrossEntropyInput& input) {
  const at::NoGradGuard no_graph;
  const at::Tensor weight = input.weight_VH.detach();
  const TargetRows rows(input.targets_T, weight.size(0));
  const std::vector<double> factors = rows.factors(input.weights_T, input.scale);
  const std::vector<float> scales(factors.begin(), factors.end());
  Chunks chunks(input.hidden_TH.detach(), weight, rows, input.logits_bytes);
  const bool needs_grad = input.needs_grad_hidden || input.grad_weight_VH.defined();
  at::Tensor grad_weight = input.grad_weight_VH;
  const at::Tensor grad_x = input.needs_grad_hidden ? new_like(chunks.x) : at::Tensor();

  if (rows.size() == 0 && grad_weight.defined() && input.overwrites_grad_weight) grad_weight.zero_();

  std::vector<double> logprobs(static_cast<size_t>(rows.size()));
  for (int64_t begin = 0; begin < rows.size(); begin += chunks.chunk_rows) {
    const int64_t end = std::min(begin + chunks.chunk_rows, rows.size());
    const at::Tensor logits = chunks.logits(weight, begin, end);
    softmax_rows(logits, rows.targets().data() + begin, needs_grad ? scales.data() + begin : nullptr,
                 logprobs.data() + begin);
    if (input.needs_grad_hidden) {
      at::Tensor part = grad_x.narrow(0, begin, end - begin);
      product_into(part, logits, weight);
    }
    if (grad_weight.defined()) {
      const bool adds = begin > 0 || !input.overwrites_grad_weight;
      put_weight_gradient(logits, chunks.x.narrow(0, begin, end - begin), grad_weight, adds);
    }
  }

  CrossEntropyResult result;
  for (size_t row = 0; row < logprobs.size(); ++row) result.loss -= logprobs[row] * factors[row];
  if (input.needs_grad_hidden) result.grad_hidden_TH = rows.scatter(grad_x);
  return result;
}

at::Tensor linear_logprobs(const at::Tensor& hidden_TH, const at::Tensor& weight_VH, const at::Tensor& targets_T) {
  const at::NoGradGuard no_graph;
  const at::Tensor weight = weight_VH.detach();
  const TargetRows rows(targets_T, weight.size(0));
  Chunks chunks(hidden_TH.detach(), weight, rows, CrossEntropyInput{}.logits_bytes);
  std::vector<double> logprobs(static_cast<size_t>(rows.size()));
  for (int64_t begin = 0; begin < rows.size(); begin += chunks.chunk_rows) {
    const int64_t end = std::min(begin + chunks.chunk_rows, rows.size());
    softmax_rows(chunks.logits(weight, begin, end), rows.targets().data() + begin, nullptr, logprobs.data() + begin);
  }
  const at::Tensor out = at::zeros({targets_T.numel()}, at::TensorOptions().dtype(at::kFloat));
  for (size_t row = 0; row < logprobs.size(); ++row) {
    mutable_raw<float>(out)[rows.ids()[row]] = static_cast<float>(logprobs[row]);
  }
  return out;
}

}  // namespace expertmesh::ops::native
