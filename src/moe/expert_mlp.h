// SPDX-License-Identifier: Apache-2.0
// The experts themselves on the rows that arrived: y = (silu(x Wg^T) * (x Wu^T)) Wd^T, expert by expert, forward and
// backward. Rows are read and written through index lists, so no caller needs a copy in expert order.
// Precision: products in the tensors' dtype with fp32 accumulation; SwiGLU and the routing weight in fp32.
// Shapes: R rows in expert order, H hidden, I expert width, E local experts.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string_view>

#include "moe/dispatcher.h"

namespace expertmesh::moe {

// Which rows belong to which expert. Row r of the expert order reads row in_rows[r] of its inputs (x, grad_y) and
// belongs to row out_rows[r] of its outputs (y, grad_x) and of the routing weights. out_rows are distinct.
// Row i of x, grad_y, y and grad_x begins i * stride(0) elements behind the tensor's first element, with no bound: by
// rows_anywhere() a list reaches rows in any buffer. The reference takes whole tensors only.
struct ExpertRows {
  std::span<const int64_t> offsets;  // E + 1
  std::span<const int64_t> in_rows;  // R
  std::span<const int64_t> out_rows;
  // Lists of their own, where they differ:
  std::span<const int64_t> grad_rows = {};    // of grad_y; empty: in_rows
  std::span<const int64_t> weight_rows = {};  // of the routing weights and their gradients; empty: out_rows
  std::span<const int64_t> act_rows = {};     // of ExpertActGrads; empty: their order is the experts'

  int64_t num_rows() const { return static_cast<int64_t>(in_rows.size()); }
  int64_t num_experts() const { return static_cast<int64_t>(offsets.size()) - 1; }
  const int64_t* grads_from(int64_t row) const { return (grad_rows.empty() ? in_rows : grad_rows).data() + row; }
  const int64_t* weights_from(int64_t row) const { return (weight_rows.empty() ? out_rows : weight_rows).data() + row; }
};

// A tensor whose "row" i of `width` elements is what begins i elements behind `base`.
at::Tensor rows_anywhere(const void* base, int64_t width, at::ScalarType dtype);

struct ExpertForward {
  at::Tensor y_RH;         // by out_rows
  at::Tensor gate_up_R2I;  // before SwiGLU, in expert order: saved for the backward
};

struct ExpertGradNeeds {
  bool x = true;        // also the routing weights' gradients are formed where x or they are needed
  bool weights = true;  // routing weights
  bool gate_up_proj = true;
  bool down_proj = true;
};

struct ExpertGrads {
  at::Tensor x_RH;          // by out_rows; scaled with the routing weight
  at::Tensor weights_R;     // fp32, by out_rows: <y, grad_y>
  at::Tensor gate_up_proj;  // exact zeros for experts without rows
  at::Tensor down_proj;
};

// What the first half of a backward leaves for the gradients of the weights, where the halves are called one by one:
// rows in expert order; in the second half, by act_rows.
struct ExpertActGrads {
  at::Tensor weighted_act_RI;
  at::Tensor grad_gate_up_R2I;
};

// kRows: x and the routing weights; fills `acts`. kWeights: the two weight tensors, from `acts`: once over all rows, so
// that rows which came in pieces are summed as if they had come together.
enum class ExpertHalf { kBoth, kRows, kWeights };

// grad_y is the gradient of the weighted sum: its row in_rows[r] belongs to row r, unweighted.
struct ExpertBackwardInput {
  const at::Tensor& grad_y;
  const at::Tensor& x;
  const at::Tensor& gate_up_R2I;
  const at::Tensor& routing_weights_R;
  const ExpertRows& rows;
  const ExpertWeights& weights;
  const ExpertGradNeeds& needs;
  ExpertHalf half = ExpertHalf::kBoth;
  const ExpertActGrads* acts = nullptr;  // where half is not kBoth

  bool does_rows() const { return half != ExpertHalf::kWeights; }
  bool does_weights() const { return half != ExpertHalf::kRows; }
};

// One implementation.
struct ExpertMlp {
  std::string_view name;
  bool (*supports)(at::ScalarType dtype);
  void (*run_forward)(const at::Tensor& x, const ExpertRows& rows, const ExpertWeights& weights,
                      const ExpertForward& result);
  void (*run_backward)(const ExpertBackwardInput& in, const ExpertGrads& grads);

  // Into tensors that are there.
  void forward_into(const at::Tensor& x, const ExpertRows& rows, const ExpertWeights& weights,
                    const ExpertForward& result) const;
  void backward_into(const ExpertBackwardInput& in, const ExpertGrads& grads) const;
  ExpertForward forward(const at::Tensor& x, const ExpertRows& rows, const ExpertWeights& weights) const;
  ExpertGrads backward(const ExpertBackwardInput& in) const;
};

// A loop of at::mm and ATen's elementwise operators over the experts: for every dtype, kept for ever.
const ExpertMlp& reference_expert_mlp();

// The same products with native row passes between them; fp32 and bf16.
const ExpertMlp& native_expert_mlp();

// Our own products for changing numbers of rows: bf16 on CPUs with AMX, AVX-512 or AVX2.
const ExpertMlp& packed_expert_mlp();

// Forward alone, for decoding: experts with a few rows each. Its sums are in another order than those of the ones that
// train, so it is never mixed with them.
const ExpertMlp& few_rows_expert_mlp();

// The fastest one that runs this dtype on this CPU.
const ExpertMlp& choose_expert_mlp(at::ScalarType dtype);
// For tests and benchmarks: all choices from now on; nullptr: the above.
void TEST_use_expert_mlp(const ExpertMlp* mlp);

// Tensors for the results, not yet written; of the gradients those that are needed.
ExpertForward new_expert_forward(const at::Tensor& x, const ExpertRows& rows, const ExpertWeights& weights);
ExpertGrads new_expert_grads(const ExpertBackwardInput& in);
// Of `rows` rows; those that the gradients in `needs` take.
ExpertActGrads new_act_grads(const ExpertWeights& weights, int64_t rows, const ExpertGradNeeds& needs);

}  // namespace expertmesh::moe
