// SPDX-License-Identifier: Apache-2.0
// The bf16 matrix products of one expert on CPUs with AVX-512 BF16 or AVX2. Weights are read where they lie, in panels
// that fit the second cache level; rows of tokens are read and written through index lists; nothing is prepared for a
// number of rows. Sums are fp32 in order of k, rounded once, and no row's result depends on the other rows. No torch.
// Threads: any.
// Letters: H hidden, I width of the expert. Weights are contiguous: gate_up_proj [2I, H], down_proj [H, I].
// Why not weights packed once for all steps: docs/results/moe_layer.md.
#pragma once

#include <cstdint>

#include "ops/cpu/indexed_rows.h"
#include "ops/cpu/vec.h"

namespace expertmesh::ops::cpu {

// Whether this CPU runs the functions below; calling one elsewhere is a programmer error.
bool has_expert_gemm();

// gate_up = x gate_up_proj^T and y = (silu(gate) * up) down_proj^T.
struct ExpertForwardPass {
  int64_t hidden = 0;
  int64_t width = 0;
  const Bf16* gate_up_proj = nullptr;
  const Bf16* down_proj = nullptr;
  int64_t rows = 0;
  IndexedRows<const Bf16> x;
  IndexedRows<Bf16> gate_up;
  IndexedRows<Bf16> y;
  bool is_read_late = false;  // gate_up and y are parts of something larger than the caches
  Bf16* scratch = nullptr;    // of expert_forward_scratch() elements, on a cache line of its own
};
void expert_forward(const ExpertForwardPass& pass);
int64_t expert_forward_scratch(int64_t hidden, int64_t width, int64_t rows);

// c[r, n] = sum_k a[r, k] weights[k, n]: gradients of inputs. The weights are contiguous.
struct ExpertInputGrad {
  IndexedRows<const Bf16> a;
  const Bf16* weights = nullptr;  // [depth, columns]
  IndexedRows<Bf16> c;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t depth = 0;
  bool is_read_late = false;  // c is part of something larger than the caches
  Bf16* scratch = nullptr;
};
void expert_input_grad(const ExpertInputGrad& product);
int64_t expert_input_grad_scratch(int64_t columns, int64_t depth, int64_t rows);

// c[m, n] = sum_r left[r, m] right[r, n] over the rows of the expert: gradients of weights; no rows give zeros.
struct ExpertWeightGrad {
  IndexedRows<const Bf16> left;
  IndexedRows<const Bf16> right;
  Bf16* c = nullptr;  // contiguous
  int64_t rows = 0;
  int64_t m = 0;
  int64_t n = 0;
  bool is_read_late = false;  // c is part of something larger than the caches
  Bf16* scratch = nullptr;
};
void expert_weight_grad(const ExpertWeightGrad& product);
int64_t expert_weight_grad_scratch(int64_t m, int64_t n, int64_t rows);

}  // namespace expertmesh::ops::cpu
