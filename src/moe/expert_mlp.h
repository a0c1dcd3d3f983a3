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
// belongs to row out_rows[r] of its outputs (y, grad_x) and of the routing weights. out_rows are distinct and cover all
// output rows.
struct ExpertRows {
  std::span<const int64_t> offsets;  // E + 1
  std::span<const int64_t> in_rows;  // R
  std::span<const int64_t> out_rows;

  int64_t num_rows() const { return static_cast<int64_t>(in_rows.size()); }
  int64_t num_experts() const { return static_cast<int64_t>(offsets.size()) - 1; }
};

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

// grad_y is the gradient of the weighted sum: its row in_rows[r] belongs to row r, unweighted.
struct ExpertBackwardInput {
  const at::Tensor& grad_y;
  const at::Tensor& x;
  const at::Tensor& gate_up_R2I;
  const at::Tensor& routing_weights_R;
  const ExpertRows& rows;
  const ExpertWeights& weights;
  const ExpertGradNeeds& needs;
};

// One implementation.
struct ExpertMlp {
  std::string_view name;
  bool (*supports)(at::ScalarType dtype);
  ExpertForward (*forward)(const at::Tensor& x, const ExpertRows& rows, const ExpertWeights& weights);
  ExpertGrads (*backward)(const ExpertBackwardInput& in);
};

// A loop of at::mm and ATen's elementwise operators over the experts: for every dtype, kept for ever.
const ExpertMlp& reference_expert_mlp();

// The same products with native row passes between them; fp32 and bf16.
const ExpertMlp& native_expert_mlp();

// Our own products for changing numbers of rows: bf16 on CPUs with AVX-512 BF16 or AVX2.
const ExpertMlp& packed_expert_mlp();

// The fastest one that runs this dtype on this CPU.
const ExpertMlp& choose_expert_mlp(at::ScalarType dtype);
// For tests and benchmarks: all choices from now on; nullptr: the above.
void TEST_use_expert_mlp(const ExpertMlp* mlp);

// Tensors for the results, not yet written; of the gradients those that are needed.
ExpertForward new_expert_forward(const at::Tensor& x, const ExpertRows& rows, const ExpertWeights& weights);
ExpertGrads new_expert_grads(const ExpertBackwardInput& in);

}  // namespace expertmesh::moe
