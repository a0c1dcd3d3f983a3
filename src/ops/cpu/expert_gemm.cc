// SPDX-License-Identifier: Apache-2.0
// The forward computes y^T: rows of weights as they lie times packed tokens, so tokens are the lanes of SwiGLU and what
// it leaves is at once the packed operand of the second product. The backward's input gradients are rows of tokens as
// they lie times weights whose pairs of rows are interleaved a panel at a time. The weights' gradients are turned rows
// times interleaved rows.
#include "ops/cpu/expert_gemm.h"

#include <xmmintrin.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "ops/cpu/even_parts.h"
#include "ops/cpu/expert_act.h"
#include "ops/cpu/expert_kernels.h"

namespace expertmesh::ops::cpu {
namespace {

std::atomic<const ExpertKernels*> g_forced{nullptr};

const ExpertKernels* expert_kernels() {
  static const ExpertKernels* const best = best_expert_kernels();
  const ExpertKernels* forced = g_forced.load(std::memory_order_relaxed);
  return forced ? forced : best;
}

const ExpertKernels& checked_kernels() {
  EXPERTMESH_CHECK(has_expert_gemm());
  return *expert_kernels();
}

constexpr int64_t kBlockTokens = 256;          // whose packed rows share the second cache level with a panel of weights
constexpr int64_t kRowPanelBytes = 400 << 10;  // of weights, read where they lie
constexpr int64_t kStripColumns = 64;
constexpr int64_t kGradPanelColumns = 256;

constexpr int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// Elements of a packed matrix; whole cache lines.
constexpr int64_t packed_elements(int64_t columns, int64_t depth) {
  return round_up(columns, kLanes) * round_up(depth, 2);
}

uint32_t* as_packed(Bf16* scratch) { return reinterpret_cast<uint32_t*>(scratch); }

// Rows of weights of `depth` elements that are worked on at a time.
int64_t panel_rows(const ExpertKernels& kernels, int64_t depth) {
  const int64_t bytes = kernels.panel_rows * depth * static_cast<int64_t>(sizeof(Bf16));
  return kernels.panel_rows * std::clamp<int64_t>(bytes ? kRowPanelBytes / bytes : 1, 1, 4);
}

// Where the pieces of a forward's scratch memory are.
struct ForwardScratch {
  int64_t x, act, panel, size;  // panel: what a product leaves, rows of weights by tokens

  ForwardScratch(const ExpertKernels& kernels, int64_t hidden, int64_t width, int64_t tokens) {
    x = 0;
    act = packed_elements(tokens, hidden);
    panel = act + packed_elements(tokens, width);
    size = panel + std::max(2 * panel_rows(kernels, hidden), panel_rows(kernels, width)) * round_up(tokens, 2 * kLanes);
  }
};

// The forward of up to kBlockTokens rows.
class ForwardBlock {
 public:
  ForwardBlock(const ExpertKernels& kernels, const ExpertForwardPass& pass, int64_t first, int64_t rows)
      : kernels_(kernels),
        pass_(pass),
        rows_(rows),
        at_(kernels, pass.hidden, pass.width, rows),
        x_(pass.x.from(first)),
        gate_up_(pass.gate_up.from(first)),
        y_(pass.y.from(first)) {}

  void run() const {
    kernels_.pack_columns(x_, rows_, pass_.hidden, as_packed(pass_.scratch + at_.x));
    const int64_t step = panel_rows(kernels_, pass_.hidden);
    for (int64_t i = 0; i < pass_.width; i += step) gate_up_panel(i, std::min(step, pass_.width - i), step);
    const int64_t down_step = panel_rows(kernels_, pass_.width);
    for (int64_t h = 0; h < pass_.hidden; h += down_step) down_panel(h, std::min(down_step, pass_.hidden - h));
  }

 private:
  int64_t stride() const { return round_up(rows_, 2 * kLanes); }
  Bf16* panel() const { return pass_.scratch + at_.panel; }

  // panel rows [0, rows) = rows of weights x packed tokens
  void multiply(const Bf16* weights, int64_t depth, int64_t rows, int64_t packed_at, Bf16* out) const {
    kernels_.multiply({.a = {weights, depth, nullptr},
                       .b = as_packed(pass_.scratch + packed_at),
                       .c = {out, stride(), nullptr},
                       .rows = rows,
                       .columns = rows_,
                       .depth = depth,
                       .is_a_far = true,
                       .is_read_late = false,
                       .pack = {}});
  }

  void gate_up_panel(int64_t first, int64_t count, int64_t step) const {
    const int64_t hidden = pass_.hidden, width = pass_.width;
    Bf16* up = panel() + step * stride();
    for (int64_t half = 0; half < 2; ++half) {
      const Bf16* weights = pass_.gate_up_proj + (half * width + first) * hidden;
      multiply(weights, hidden, count, at_.x, half ? up : panel());
      kernels_.transpose({half ? up : panel(), stride(), nullptr}, count, rows_,
                         {gate_up_.data + half * width + first, gate_up_.stride, gate_up_.index}, pass_.is_read_late);
    }
    swiglu_columns({.gate = panel(),
                    .up = up,
                    .stride = stride(),
                    .rows = count,
                    .columns = rows_,
                    .act = as_packed(pass_.scratch + at_.act) + first / 2 * kLanes,
                    .act_block = (width + 1) / 2 * kLanes});
  }

  void down_panel(int64_t first, int64_t count) const {
    const int64_t width = pass_.width;
    const Bf16* weights = pass_.down_proj + first * width;
    multiply(weights, width, count, at_.act, panel());
    kernels_.transpose({panel(), stride(), nullptr}, count, rows_, {y_.data + first, y_.stride, y_.index},
                       pass_.is_read_late);
  }

  const ExpertKernels& kernels_;
  const ExpertForwardPass& pass_;
  int64_t rows_;
  ForwardScratch at_;
  IndexedRows<const Bf16> x_;
  IndexedRows<Bf16> gate_up_, y_;
};

// Between rows of `elements`: an odd number of cache lines, so that rows do not crowd one set of the cache.
constexpr int64_t spread_stride(int64_t elements) {
  constexpr int64_t kLine = 32;
  return ((elements + kLine - 1) / kLine | 1) * kLine;
}

IndexedRows<const Bf16> copy_rows(IndexedRows<const Bf16> rows, int64_t count, int64_t elements, Bf16* out) {
  const int64_t stride = spread_stride(elements);
  for (int64_t r = 0; r < count; ++r) {
    std::memcpy(out + r * stride, rows.row(r), static_cast<size_t>(elements) * sizeof(Bf16));
  }
  return {out, stride, nullptr};
}

}  // namespace

const ExpertKernels* best_expert_kernels() {
  for (const ExpertKernels* kernels : kExpertKernels) {
    const bool is_slow = kernels == &kExpertKernelsAvx512Bf16 && !processor_sets().prefers_dots;
    if (kernels->runs_here() && !is_slow) return kernels;
  }
  return nullptr;
}

void TEST_use_expert_kernels(const ExpertKernels* kernels) { g_forced.store(kernels); }

bool has_expert_gemm() { return expert_kernels() != nullptr; }

int64_t expert_forward_scratch(int64_t hidden, int64_t width, int64_t rows) {
  return ForwardScratch(checked_kernels(), hidden, width, std::min(rows, kBlockTokens)).size;
}

void expert_forward(const ExpertForwardPass& pass) {
  const ExpertKernels& kernels = checked_kernels();
  const EvenParts blocks(pass.rows, kBlockTokens);
  for (int64_t i = 0; i < blocks.count(); ++i) ForwardBlock(kernels, pass, blocks.begin(i), blocks.size(i)).run();
  if (pass.is_read_late) _mm_sfence();  // what went around the caches is there for other threads
}

int64_t expert_input_grad_scratch(int64_t columns, int64_t depth, int64_t rows) {
  const int64_t copied = checked_kernels().copies_lists ? rows * spread_stride(depth) : 0;
  return 2 * packed_elements(std::min(columns, kStripColumns), depth) + copied;
}

void expert_input_grad(const ExpertInputGrad& product) {
  if (product.rows == 0) return;
  const ExpertKernels& kernels = checked_kernels();
  const int64_t depth = product.depth, stride = product.columns;
  uint32_t* packed = as_packed(product.scratch);
  const int64_t packed_size = packed_elements(std::min(stride, kStripColumns), depth);
  uint32_t* packed_next = as_packed(product.scratch + packed_size);
  IndexedRows<const Bf16> a = product.a;
  if (kernels.copies_lists && a.index != nullptr) {
    a = copy_rows(a, product.rows, depth, product.scratch + 2 * packed_size);
  }
  kernels.pack_rows({product.weights, stride, nullptr}, std::min(kStripColumns, stride), depth, packed);
  for (int64_t column = 0; column < product.columns; column += kStripColumns) {
    const int64_t next = column + kStripColumns;
    kernels.multiply({.a = a,
                      .b = packed,
                      .c = {product.c.data + column, product.c.stride, product.c.index},
                      .rows = product.rows,
                      .columns = std::min(kStripColumns, product.columns - column),
                      .depth = depth,
                      .is_read_late = product.is_read_late,
                      .pack = next < product.columns ? PackedNext{.rows = product.weights + next,
                                                                  .stride = stride,
                                                                  .columns = std::min(kStripColumns, stride - next),
                                                                  .depth = depth,
                                                                  .out = packed_next}
                                                     : PackedNext{}});
    std::swap(packed, packed_next);
  }
  if (product.is_read_late) _mm_sfence();
}

int64_t expert_weight_grad_scratch(int64_t m, int64_t n, int64_t rows) {
  return m * spread_stride(rows) + packed_elements(std::min(n, kGradPanelColumns), rows);
}

void expert_weight_grad(const ExpertWeightGrad& product) {
  const ExpertKernels& kernels = checked_kernels();
  const int64_t stride = spread_stride(product.rows);
  Bf16* packed = product.scratch + product.m * stride;
  kernels.transpose(product.left, product.rows, product.m, {product.scratch, stride, nullptr}, false);
  const int64_t step = panel_rows(kernels, product.rows);
  for (int64_t column = 0; column < product.n; column += kGradPanelColumns) {
    const int64_t count = std::min(kGradPanelColumns, product.n - column);
    kernels.pack_rows({product.right.data + column, product.right.stride, product.right.index}, count, product.rows,
                      as_packed(packed));
    for (int64_t row = 0; row < product.m; row += step) {
      kernels.multiply({.a = {product.scratch + row * stride, stride, nullptr},
                        .b = as_packed(packed),
                        .c = {product.c + row * product.n + column, product.n, nullptr},
                        .rows = std::min(step, product.m - row),
                        .columns = count,
                        .depth = product.rows,
                        .is_read_late = product.is_read_late,
                        .pack = {}});
    }
  }
  if (product.is_read_late) _mm_sfence();
}

}  // namespace expertmesh::ops::cpu
