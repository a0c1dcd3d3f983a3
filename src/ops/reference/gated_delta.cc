// SPDX-License-Identifier: Apache-2.0
// In a chunk of tokens, with decay_i the sum of g up to token i and W_ij = e^(decay_i - decay_j) for j <= i, what the
// tokens write into the state, X, solves a triangular system:
//   (I + beta (K K^T W below the diagonal)) X = beta (V - e^decay (K S))
//   out = e^decay (Q S) + (Q K^T W) X
//   S   = e^decay_last S + (e^(decay_last - decay) K)^T X
#include "ops/gated_delta.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/linalg_solve_triangular.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <limits>
#include <vector>

#include "ops/reference/reference.h"
#include "ops/reference/wide.h"

namespace expertmesh::ops::reference {
namespace {

// Heads first, so that products are batched over them: q, k [V, T, D], v [V, T, E], g, beta [V, T].
struct Heads {
  at::Tensor q, k, v, g, beta;

  Heads narrow(int64_t begin, int64_t length) const {
    return {q.narrow(1, begin, length), k.narrow(1, begin, length), v.narrow(1, begin, length),
            g.narrow(1, begin, length), beta.narrow(1, begin, length)};
  }
};

// [T, K, D] as [V, T, D] of unit length.
at::Tensor unit_rows(const at::Tensor& x_TKD, int64_t value_heads) {
  const at::Tensor x = wide(x_TKD);
  const at::Tensor unit = x * at::rsqrt((x * x).sum(-1, /*keepdim=*/true) + 1e-6);
  return unit.repeat_interleave(value_heads / x.size(1), 1).permute({1, 0, 2});
}

Heads heads_of(const GatedDeltaInput& input) {
  const int64_t value_heads = input.v_TVE.size(1);
  const double scale = 1.0 / std::sqrt(static_cast<double>(input.q_TKD.size(2)));
  return {unit_rows(input.q_TKD, value_heads) * scale, unit_rows(input.k_TKD, value_heads),
          wide(input.v_TVE).permute({1, 0, 2}), wide(input.g_TV).transpose(0, 1), wide(input.beta_TV).transpose(0, 1)};
}

// State [V, D, E] of a document before its first token.
at::Tensor first_state(const GatedDeltaInput& input, const Heads& heads, int64_t document) {
  if (input.initial_state_BVDE.defined()) return wide(input.initial_state_BVDE[document]);
  return at::zeros({heads.k.size(0), heads.k.size(2), heads.v.size(2)}, heads.k.options());
}

// Runs `span` tokens at a time over every document. step(tokens, state) gives [V, L, E] and replaces the state.
template <typename Step>
GatedDeltaResult run(const GatedDeltaInput& input, int64_t span, const Step& step) {
  check_input(input);
  const Heads heads = heads_of(input);
  std::vector<at::Tensor> outputs = {heads.v.narrow(1, 0, 0)}, states;
  for (size_t b = 0; b + 1 < input.cu_seqlens.size(); ++b) {
    at::Tensor state = first_state(input, heads, static_cast<int64_t>(b));
    for (int64_t begin = input.cu_seqlens[b]; begin < input.cu_seqlens[b + 1]; begin += span) {
      outputs.push_back(step(heads.narrow(begin, std::min(span, input.cu_seqlens[b + 1] - begin)), state));
    }
    states.push_back(state);
  }
  GatedDeltaResult result{at::cat(outputs, 1).permute({1, 0, 2}).to(input.v_TVE.scalar_type()), {}};
  if (input.needs_final_state) {
    result.final_state_BVDE =
        states.empty() ? first_state(input, heads, 0).unsqueeze(0).narrow(0, 0, 0) : at::stack(states);
  }
  return result;
}

at::Tensor chunk_step(const Heads& tokens, at::Tensor& state_VDE) {
  const auto& [q, k, v, g, beta] = tokens;
  const int64_t length = g.size(1);
  const at::Tensor decay = g.cumsum(1);
  const at::Tensor later = at::ones({length, length}, g.options().dtype(at::kBool)).triu(1);
  const at::Tensor weights =
      (decay.unsqueeze(2) - decay.unsqueeze(1)).masked_fill(later, -std::numeric_limits<double>::infinity()).exp();
  const at::Tensor from_start = decay.exp().unsqueeze(2), last = decay.narrow(1, length - 1, 1);
  const at::Tensor to_end = (last - decay).exp().unsqueeze(2);

  const at::Tensor mixing = (beta.unsqueeze(2) * at::matmul(k, k.transpose(1, 2)) * weights).tril(-1);
  const at::Tensor right = beta.unsqueeze(2) * (v - from_start * at::matmul(k, state_VDE));
  const at::Tensor written = at::linalg_solve_triangular(mixing + at::eye(length, g.options()), right,
                                                         /*upper=*/false, /*left=*/true, /*unitriangular=*/true);
  const at::Tensor out =
      from_start * at::matmul(q, state_VDE) + at::matmul(at::matmul(q, k.transpose(1, 2)) * weights, written);
  state_VDE = last.exp().unsqueeze(2) * state_VDE + at::matmul((to_end * k).transpose(1, 2), written);
  return out;
}

// One token, as the recurrence reads.
at::Tensor token_step(const Heads& token, at::Tensor& state_VDE) {
  const auto& [q, k, v, g, beta] = token;  // [V, 1, ...]
  const at::Tensor decayed = state_VDE * g.exp().unsqueeze(2);
  const at::Tensor written = beta.unsqueeze(2) * (v - at::matmul(k, decayed));
  state_VDE = decayed + k.transpose(1, 2) * written;
  return at::matmul(q, state_VDE);
}

}  // namespace

GatedDeltaResult gated_delta_rule(const GatedDeltaInput& input) { return run(input, input.chunk_size, chunk_step); }

GatedDeltaResult gated_delta_step(const GatedDeltaInput& input) { return run(input, 1, token_step); }

}  // namespace expertmesh::ops::reference
