// SPDX-License-Identifier: Apache-2.0
// Rows that have a target go through in chunks whose logits fit a budget. Per chunk: logits = x W^T, softmax and
// gradient over them in place, dx = g W, dW += g^T x. In bf16 the product g^T x is made for a block of the vocabulary
// at a time, small enough for the cache, and added to the fp32 gradient from there. Where the processor has dot
// products of bf16, all of it runs on own tiles instead (head_on_tiles.h).
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <vector>

#include "ops/cpu/cross_entropy.h"
#include "ops/head_on_tiles.h"
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

void head_by_library(const HeadProblem& problem, double* logprobs) {
  const int64_t num_rows = problem.x.size(0);
  const int64_t row_bytes = problem.weight.size(0) * static_cast<int64_t>(problem.weight.element_size());
  const int64_t chunk_rows = rows_per_chunk(std::max<int64_t>(1, num_rows), row_bytes, problem.logits_bytes);
  const at::Tensor buffer =
      new_tensor({std::min(chunk_rows, num_rows), problem.weight.size(0)}, problem.weight.options());
  at::Tensor grad_weight = problem.grad_weight;
  for (int64_t begin = 0; begin < num_rows; begin += chunk_rows) {
    const int64_t size = std::min(chunk_rows, num_rows - begin);
    const at::Tensor x = problem.x.narrow(0, begin, size);
    at::Tensor logits = buffer.narrow(0, 0, size);
    product_into(logits, x, problem.weight.t());
    softmax_rows(logits, problem.targets.data() + begin,
                 problem.scales.empty() ? nullptr : problem.scales.data() + begin, logprobs + begin);
    if (problem.grad_x.defined()) {
      at::Tensor part = problem.grad_x.narrow(0, begin, size);
      product_into(part, logits, problem.weight);
    }
    if (grad_weight.defined()) {
      put_weight_gradient(logits, x, grad_weight, begin > 0 || !problem.overwrites_grad_weight);
    }
  }
}

std::vector<double> run_head(const HeadProblem& problem) {
  std::vector<double> logprobs(static_cast<size_t>(problem.x.size(0)));
  (suits_head_tiles(problem.weight) ? head_on_tiles : head_by_library)(problem, logprobs.data());
  return logprobs;
}

}  // namespace

CrossEntropyResult linear_cross_entropy(const CrossEntropyInput& input) {
  const at::NoGradGuard no_graph;
  const TargetRows rows(input.targets_T, input.weight_VH.size(0));
  const std::vector<double> factors = rows.factors(input.weights_T, input.scale);
  std::vector<float> scales;
  if (input.needs_grad_hidden || input.grad_weight_VH.defined()) scales.assign(factors.begin(), factors.end());
  const at::Tensor x = rows.gather(input.hidden_TH.detach()).contiguous();
  const HeadProblem problem{.x = x,
                            .weight = input.weight_VH.detach(),
                            .targets = rows.targets(),
                            .scales = scales,
                            .grad_x = input.needs_grad_hidden ? new_like(x) : at::Tensor(),
                            .grad_weight = input.grad_weight_VH,
                            .overwrites_grad_weight = input.overwrites_grad_weight,
                            .logits_bytes = input.logits_bytes};
  if (rows.size() == 0 && problem.grad_weight.defined() && problem.overwrites_grad_weight) {
    problem.grad_weight.zero_();
  }
  const std::vector<double> logprobs = run_head(problem);
  CrossEntropyResult result;
  for (size_t row = 0; row < logprobs.size(); ++row) result.loss -= logprobs[row] * factors[row];
  if (input.needs_grad_hidden) result.grad_hidden_TH = rows.scatter(problem.grad_x);
  return result;
}

at::Tensor linear_logprobs(const at::Tensor& hidden_TH, const at::Tensor& weight_VH, const at::Tensor& targets_T) {
  const at::NoGradGuard no_graph;
  const TargetRows rows(targets_T, weight_VH.size(0));
  const std::vector<double> logprobs = run_head({.x = rows.gather(hidden_TH.detach()).contiguous(),
                                                 .weight = weight_VH.detach(),
                                                 .targets = rows.targets(),
                                                 .scales = {},
                                                 .grad_x = {},
                                                 .grad_weight = {},
                                                 .logits_bytes = CrossEntropyInput{}.logits_bytes});
  const at::Tensor out = at::zeros({targets_T.numel()}, at::TensorOptions().dtype(at::kFloat));
  for (size_t row = 0; row < logprobs.size(); ++row) {
    mutable_raw<float>(out)[rows.ids()[row]] = static_cast<float>(logprobs[row]);
  }
  return out;
}

}  // namespace expertmesh::ops::native
