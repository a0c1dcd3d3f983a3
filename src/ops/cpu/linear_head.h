// SPDX-License-Identifier: Apache-2.0
// The language-model head and its softmax cross-entropy on products of bf16 pairs (pair_product.h): a chunk of tokens
// against the whole vocabulary, in two passes. No torch.
//   scores     S = W X^T for a group of ids at a time; kept are e^(S - the group's maximum) in bf16, and the maximum
//              and sum of each token. Those of all groups give log-sum-exp.
//   gradients  G = scale (softmax - one-hot); dW += G X for a group of ids, dX += G^T W for a panel of the hidden size.
// Scores are never rounded. Groups, panels and blocks of tokens are independent of each other: callers spread them over
// threads; no result depends on how. Hidden sizes are multiples of 32.
#pragma once

#include <cstdint>

#include "ops/cpu/pair_product.h"
#include "ops/cpu/vec.h"

namespace expertmesh::ops::cpu {

constexpr int64_t kHeadGroup = 96;  // ids
constexpr int64_t kHeadPanel = 64;  // tokens, or elements of the hidden size

// A token whose target is `id`.
struct HeadTarget {
  int64_t id = 0;
  int64_t column = 0;
};

struct HeadChunk {
  const Bf16* weight = nullptr;  // [vocab, hidden]
  int64_t vocab = 0, hidden = 0;
  int64_t columns = 0;                   // tokens, padded with zero rows to a multiple of 32
  const BfPair* x_transposed = nullptr;  // for scores: panels of tokens, each [hidden / 2][width][2]
  const BfPair* x_pairs = nullptr;       // for dW: panels of the hidden size, each [columns / 2][width][2]
  const HeadTarget* targets = nullptr;   // by id
  int64_t num_targets = 0;

  // Written by the scores.
  Bf16* exps = nullptr;        // [vocab, columns]; null: not kept
  float* group_max = nullptr;  // [groups, columns], and the sums
  float* group_sum = nullptr;
  float* target_scores = nullptr;  // [columns]

  // Read by the gradients, [columns].
  const float* log_sums = nullptr;
  const float* scales = nullptr;  // 0 in padding
  const float* target_grads = nullptr;

  int64_t num_groups() const { return (vocab + kHeadGroup - 1) / kHeadGroup; }
};

// Floats of scratch memory that head_scores and head_gradients need.
int64_t head_scratch_size(const HeadChunk& chunk);

void head_scores(const HeadChunk& chunk, int64_t group, float* scratch);

// log sum e^score of tokens [begin, end) from those of all groups; both ends are multiples of 16.
void head_log_sums(const HeadChunk& chunk, int64_t begin, int64_t end, double* log_sums);

// Memory for a band of ids, from the border of a group on: what dX reads, made by head_gradients.
struct HeadBand {
  int64_t first = 0;
  int64_t size = 0;  // whole groups
  // G: the pair p of ids of token t is gradients[t * token_stride + p * step], and one of the two is 1. Null: dX is not
  // wanted.
  BfPair* gradients = nullptr;
  int64_t token_stride = 0;
  int64_t step = 0;
  BfPair* weights = nullptr;  // panels of the hidden size, each [size / 2][kHeadPanel][2]
  int64_t panel_size = 0;
};

// A group of the band: its part of what dX reads, and dW (null: not wanted; `adds` to it, or writes). An odd last id
// has a zero neighbour.
void head_gradients(const HeadChunk& chunk, int64_t group, const HeadBand& band, float* grad_weight, bool adds,
                    float* scratch);

// dX of tokens [begin, end) and the panel's part of the hidden size from a band: sum [columns][kHeadPanel].
void head_grad_hidden(const HeadChunk& chunk, const HeadBand& band, int64_t panel, int64_t begin, int64_t end,
                      bool adds, float* sum);

}  // namespace expertmesh::ops::cpu
