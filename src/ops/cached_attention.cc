// SPDX-License-Identifier: Apache-2.0
// Tasks (document, key/value head, rows, keys). How a document is cut depends on its own sizes alone, neither on the
// threads nor on the other documents: so does its result.
#include "ops/cached_attention.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "ops/cpu/cached_attention.h"
#include "ops/documents.h"
#include "ops/native.h"
#include "ops/new_tensor.h"
#include "ops/raw.h"
#include "ops/units.h"

namespace expertmesh::ops {
namespace {

// Of the keys or values of document `b`.
void check_cache(const CachedAttentionInput& input, const at::Tensor& cache, size_t b, const char* name) {
  const at::Tensor& q = input.q_TND;
  EXPERTMESH_CHECK(cache.dim() == 3 && cache.is_contiguous() && cache.scalar_type() == q.scalar_type(),
                   "{} of document {}: {} dims, {}, queries {}", name, b, cache.dim(),
                   c10::toString(cache.scalar_type()), c10::toString(q.scalar_type()));
  EXPERTMESH_CHECK(cache.size(2) == q.size(2) && cache.size(0) > 0 && q.size(1) % cache.size(0) == 0,
                   "{} of document {}: {} heads of {}, queries {} of {}", name, b, cache.size(0), cache.size(2),
                   q.size(1), q.size(2));
  const int64_t tokens = input.cu_seqlens[b + 1] - input.cu_seqlens[b];
  EXPERTMESH_CHECK(tokens <= input.lengths[b] && input.lengths[b] <= cache.size(1),
                   "document {} has {} new tokens, {} in its {}, with room for {}", b, tokens, input.lengths[b], name,
                   cache.size(1));
}

}  // namespace

void check_input(const CachedAttentionInput& input) {
  const at::Tensor& q = input.q_TND;
  EXPERTMESH_CHECK(q.dim() == 3, "queries of {} dims", q.dim());
  EXPERTMESH_CHECK(!at::GradMode::is_enabled() || !q.requires_grad(),
                   "cached_attention keeps no graph: take attention");
  check_documents(input.cu_seqlens, q.size(0));
  const size_t documents = input.cu_seqlens.size() - 1;
  EXPERTMESH_CHECK(
      input.keys_MSD.size() == documents && input.values_MSD.size() == documents && input.lengths.size() == documents,
      "{} documents, {} keys, {} values, {} lengths", documents, input.keys_MSD.size(), input.values_MSD.size(),
      input.lengths.size());
  for (size_t b = 0; b < documents; ++b) {
    check_cache(input, input.keys_MSD[b], b, "keys");
    check_cache(input, input.values_MSD[b], b, "values");
    EXPERTMESH_CHECK(input.keys_MSD[b].size(0) == input.values_MSD[b].size(0),
                     "document {}: keys of {} heads, values {}", b, input.keys_MSD[b].size(0),
                     input.values_MSD[b].size(0));
  }
}

namespace native {
namespace {

constexpr int64_t kShortestPiece = 256;  // keys; a shorter one is not worth a task of its own
constexpr int64_t kPieceStep = 64;       // keys; whole blocks of the kernel
constexpr int64_t kMergeGrain = 16384;   // elements a thread at least

// One key/value head of a document and how it is cut.
template <typename T>
struct CutHead {
  cpu::CachedHead<T> head;
  cpu::CachedAttentionShape shape;
  int64_t rows = 0, piece_keys = 0, pieces = 0;
  int64_t first_partial = 0;  // in floats

  int64_t piece_stride() const { return rows * cpu::cached_partial_size(shape.head_dim); }
};

struct Task {
  size_t head;
  int64_t piece;
  cpu::CachedPiece part;
};

// The more blocks of rows, the fewer pieces: partial results stay as many as a few tokens have.
void cut_keys(int64_t rows, int64_t length, int64_t& piece_keys, int64_t& pieces) {
  const int64_t row_blocks = (rows + cpu::kCachedPieceRows - 1) / cpu::kCachedPieceRows;
  const int64_t most = std::max<int64_t>(1, cpu::kMostCachedPieces / row_blocks);
  const int64_t wanted = std::clamp<int64_t>(length / kShortestPiece, 1, most);
  piece_keys = cpu::round_up((length + wanted - 1) / wanted, kPieceStep);
  pieces = (length + piece_keys - 1) / piece_keys;
}

template <typename T>
std::vector<CutHead<T>> cut_heads(const CachedAttentionInput& input, const at::Tensor& q, const at::Tensor& out) {
  std::vector<CutHead<T>> cuts;
  const int64_t dim = q.size(2);
  int64_t next_partial = 0;
  for (size_t b = 0; b + 1 < input.cu_seqlens.size(); ++b) {
    const at::Tensor &keys = input.keys_MSD[b], &values = input.values_MSD[b];
    const int64_t begin = input.cu_seqlens[b], tokens = input.cu_seqlens[b + 1] - begin;
    const int64_t kv_heads = keys.size(0), repeat = q.size(1) / kv_heads;
    if (tokens == 0) continue;
    for (int64_t m = 0; m < kv_heads; ++m) {
      const int64_t at = (begin * q.size(1) + m * repeat) * dim;
      CutHead<T> cut;
      cut.head = {.q = raw<T>(q) + at,
                  .k = raw<T>(keys) + m * keys.size(1) * dim,
                  .v = raw<T>(values) + m * values.size(1) * dim,
                  .out = mutable_raw<T>(out) + at,
                  .tokens = tokens,
                  .length = input.lengths[b]};
      cut.shape = {
          .repeat = repeat, .head_dim = dim, .token_stride = q.size(1) * dim, .scale = static_cast<float>(input.scale)};
      cut.rows = tokens * repeat;
      cut_keys(cut.rows, cut.head.length, cut.piece_keys, cut.pieces);
      cut.first_partial = next_partial;
      next_partial += cut.pieces * cut.piece_stride();
      cuts.push_back(cut);
    }
  }
  return cuts;
}

template <typename T>
std::vector<Task> make_tasks(const std::vector<CutHead<T>>& cuts) {
  std::vector<Task> tasks;
  for (size_t h = 0; h < cuts.size(); ++h) {
    const CutHead<T>& cut = cuts[h];
    for (int64_t row = 0; row < cut.rows; row += cpu::kCachedPieceRows) {
      for (int64_t p = 0; p < cut.pieces; ++p) {
        const int64_t key = p * cut.piece_keys;
        tasks.push_back({h,
                         p,
                         {.first_row = row,
                          .rows = std::min(cpu::kCachedPieceRows, cut.rows - row),
                          .first_key = key,
                          .keys = std::min(cut.piece_keys, cut.head.length - key)}});
      }
    }
  }
  return tasks;
}

template <typename T>
void run(const CachedAttentionInput& input, const at::Tensor& q, const at::Tensor& out) {
  const std::vector<CutHead<T>> cuts = cut_heads<T>(input, q, out);
  if (cuts.empty()) return;
  const std::vector<Task> tasks = make_tasks(cuts);
  const CutHead<T>& last = cuts.back();
  const at::Tensor partials = new_tensor({last.first_partial + last.pieces * last.piece_stride()}, at::kFloat);
  const auto partials_of = [&](const CutHead<T>& cut) { return mutable_raw<float>(partials) + cut.first_partial; };
  for_each_unit(static_cast<int64_t>(tasks.size()), cpu::cached_attention_scratch(last.shape),
                [&](int64_t i, float* scratch) {
                  const Task& task = tasks[static_cast<size_t>(i)];
                  const CutHead<T>& cut = cuts[task.head];
                  float* to = partials_of(cut) + task.piece * cut.piece_stride() +
                              task.part.first_row * cpu::cached_partial_size(cut.shape.head_dim);
                  cpu::cached_attention_piece(cut.head, cut.shape, task.part, to, scratch);
                });
  const auto num_cuts = static_cast<int64_t>(cuts.size());
  const int64_t elements = std::max<int64_t>(1, q.numel() / num_cuts);
  at::parallel_for(0, num_cuts, std::max<int64_t>(1, kMergeGrain / elements), [&](int64_t first, int64_t end) {
    for (int64_t i = first; i < end; ++i) {
      const CutHead<T>& cut = cuts[static_cast<size_t>(i)];
      cpu::merge_cached_pieces(cut.head, cut.shape, cut.rows, partials_of(cut), cut.pieces, cut.piece_stride());
    }
  });
}

}  // namespace

at::Tensor cached_attention(const CachedAttentionInput& input) {
  check_input(input);
  const at::Tensor q = input.q_TND.contiguous();
  const at::Tensor out = new_like(q);
  with_element_type(q.scalar_type(), [&]<typename T>(T) { run<T>(input, q, out); });
  return out;
}

}  // namespace native
}  // namespace expertmesh::ops
