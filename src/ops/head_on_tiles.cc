// SPDX-License-Identifier: Apache-2.0
// Gradients go through the vocabulary in bands: a band's G is made and added to dW group by group, then dX takes it in,
// panel by panel. So both products read G from the cache.
#include "ops/head_on_tiles.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/cpu/amx.h"
#include "ops/cpu/linear_head.h"
#include "ops/cpu/tile_product.h"
#include "ops/new_tensor.h"
#include "ops/raw.h"
#include "ops/units.h"

namespace expertmesh::ops {
namespace {

constexpr int64_t kRowUnit = 32;      // columns of a chunk and the hidden size are multiples
constexpr int64_t kBandGroups = 12;   // of a band, at least
constexpr int64_t kGroupsAtOnce = 4;  // taken by a thread: neighbours, so that each fetches the next one's weights
constexpr int64_t kPairPadding = 16;  // keeps rows of G out of one another's cache sets

int64_t columns_of_chunk(int64_t rows, int64_t row_bytes, int64_t budget) {
  const int64_t most = std::max(kRowUnit, budget / row_bytes / kRowUnit * kRowUnit);
  const int64_t num_chunks = (rows + most - 1) / most;
  const int64_t equal = (rows + num_chunks - 1) / num_chunks;
  return std::min(most, cpu::round_up(equal, equal < cpu::kHeadPanel ? kRowUnit : cpu::kHeadPanel));
}

at::Tensor floats(int64_t size) { return new_tensor({size}, at::kFloat); }

cpu::BfPair* pairs_of(const at::Tensor& memory) { return static_cast<cpu::BfPair*>(memory.mutable_data_ptr()); }

// Memory of a call: reused from chunk to chunk.
class Chunks {
 public:
  Chunks(const HeadProblem& problem, double* logprobs)
      : problem_(problem),
        logprobs_(logprobs),
        rows_(problem.x.size(0)),
        vocab_(problem.weight.size(0)),
        hidden_(problem.weight.size(1)),
        has_gradients_(problem.grad_x.defined() || problem.grad_weight.defined()),
        columns_(columns_of_chunk(rows_, vocab_ * 2, problem.logits_bytes)),
        band_groups_(std::max(kBandGroups, 4 * int64_t{at::get_num_threads()})) {
    chunk_.vocab = vocab_;
    chunk_.hidden = hidden_;
    chunk_.weight = raw<cpu::Bf16>(problem.weight);
    const int64_t groups = chunk_.num_groups();
    x_transposed_ = floats(columns_ * hidden_ / 2);
    group_max_ = floats(groups * columns_);
    group_sum_ = floats(groups * columns_);
    by_column_ = floats(4 * columns_);
    chunk_.columns = columns_;
    if (has_gradients_) {
      exps_ = new_tensor({vocab_, columns_}, at::kBFloat16);
      x_pairs_ = floats(columns_ * hidden_ / 2);
    }
    if (problem.grad_x.defined()) {
      const int64_t ids = band_groups_ * cpu::kHeadGroup;
      band_.size = ids;
      band_.panel_size = ids / 2 * cpu::kHeadPanel;
      on_tiles_ = cpu::multiplies_on_tiles();
      band_gradients_ = floats(on_tiles_ ? columns_ * (ids / 2 + kPairPadding) : ids / 2 * (columns_ + kPairPadding));
      band_weights_ = floats(num_panels() * band_.panel_size);
      band_.gradients = pairs_of(band_gradients_);
      band_.weights = pairs_of(band_weights_);
      sums_ = floats(num_panels() * columns_ * cpu::kHeadPanel);
    }
    scratch_size_ = cpu::head_scratch_size(chunk_);
  }

  void run() {
    for (int64_t begin = 0; begin < rows_; begin += columns_) {
      start(begin, std::min(columns_, rows_ - begin));
      score();
      if (has_gradients_) differentiate();
    }
  }

 private:
  int64_t num_panels() const { return (hidden_ + cpu::kHeadPanel - 1) / cpu::kHeadPanel; }
  float* column_values(int64_t which) const { return mutable_raw<float>(by_column_) + which * columns_; }

  void start(int64_t first, int64_t count) {
    first_ = first;
    count_ = count;
    targets_.clear();
    for (int64_t i = 0; i < count; ++i) targets_.push_back({problem_.targets[static_cast<size_t>(first + i)], i});
    std::stable_sort(targets_.begin(), targets_.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
    chunk_.columns = cpu::round_up(count, kRowUnit);
    chunk_.targets = targets_.data();
    chunk_.num_targets = count;
    chunk_.group_max = mutable_raw<float>(group_max_);
    chunk_.group_sum = mutable_raw<float>(group_sum_);
    chunk_.target_scores = column_values(0);
    chunk_.log_sums = column_values(1);
    chunk_.scales = column_values(2);
    chunk_.target_grads = column_values(3);
    chunk_.exps = has_gradients_ ? mutable_raw<cpu::Bf16>(exps_) : nullptr;
    pack();
  }

  void pack() {
    const cpu::Bf16* x = raw<cpu::Bf16>(problem_.x) + first_ * hidden_;
    auto* transposed = pairs_of(x_transposed_);
    const int64_t columns = chunk_.columns;
    for_each_unit((columns + cpu::kHeadPanel - 1) / cpu::kHeadPanel, 0, [&](int64_t panel, float*) {
      const int64_t begin = panel * cpu::kHeadPanel, width = std::min(cpu::kHeadPanel, columns - begin);
      cpu::pack_pairs_transposed(x + begin * hidden_, hidden_, std::clamp<int64_t>(count_ - begin, 0, width), hidden_,
                                 transposed + begin * hidden_ / 2, width, hidden_ / 2);
    });
    chunk_.x_transposed = transposed;
    if (!has_gradients_) return;
    auto* pairs = pairs_of(x_pairs_);
    for_each_unit(num_panels(), 0, [&](int64_t panel, float*) {
      const int64_t begin = panel * cpu::kHeadPanel, width = std::min(cpu::kHeadPanel, hidden_ - begin);
      cpu::pack_pairs(x + begin, hidden_, width, count_, pairs + begin * columns / 2, width, columns / 2);
    });
    chunk_.x_pairs = pairs;
  }

  void score() {
    const int64_t groups = chunk_.num_groups();
    for_each_unit((groups + kGroupsAtOnce - 1) / kGroupsAtOnce, scratch_size_, [&](int64_t unit, float* scratch) {
      const int64_t end = std::min(groups, (unit + 1) * kGroupsAtOnce);
      for (int64_t group = unit * kGroupsAtOnce; group < end; ++group) {
        cpu::head_scores(chunk_, group, scratch);
      }
    });
    std::vector<double> log_sums(static_cast<size_t>(chunk_.columns));
    for_each_unit(chunk_.columns / kRowUnit, 0, [&](int64_t unit, float*) {
      cpu::head_log_sums(chunk_, unit * kRowUnit, (unit + 1) * kRowUnit, log_sums.data());
    });
    float *log_sum = column_values(1), *scale = column_values(2), *target_grad = column_values(3);
    for (int64_t i = 0; i < chunk_.columns; ++i) {
      const bool is_row = i < count_;
      log_sum[i] = static_cast<float>(log_sums[static_cast<size_t>(i)]);
      scale[i] = is_row && has_gradients_ ? problem_.scales[static_cast<size_t>(first_ + i)] : 0.0F;
      if (!is_row) continue;
      const double logprob = static_cast<double>(chunk_.target_scores[i]) - log_sums[static_cast<size_t>(i)];
      logprobs_[first_ + i] = logprob;
      // expm1 keeps the digits of p - 1 where the target is nearly certain.
      target_grad[i] = static_cast<float>(std::expm1(logprob) * scale[i]);
    }
  }

  void differentiate() {
    const bool wants_x = problem_.grad_x.defined(), adds_weight = first_ > 0 || !problem_.overwrites_grad_weight;
    float* grad_weight = problem_.grad_weight.defined() ? mutable_raw<float>(problem_.grad_weight) : nullptr;
    const int64_t groups = chunk_.num_groups();
    band_.token_stride = on_tiles_ ? band_.size / 2 + kPairPadding : 1;
    band_.step = on_tiles_ ? 1 : chunk_.columns + kPairPadding;
    for (int64_t first = 0; first < groups; first += band_groups_) {
      band_.first = first * cpu::kHeadGroup;
      for_each_unit(std::min(band_groups_, groups - first), scratch_size_, [&](int64_t unit, float* scratch) {
        cpu::head_gradients(chunk_, first + unit, band_, grad_weight, adds_weight, scratch);
      });
      if (wants_x) add_to_x();
    }
    if (wants_x) store_x();
  }

  // Pieces of panels, so that there are at least two for each thread.
  void add_to_x() {
    const int64_t num_threads = at::get_num_threads();
    const int64_t wanted = (2 * num_threads + num_panels() - 1) / num_panels();
    const int64_t size = cpu::round_up((chunk_.columns + wanted - 1) / wanted, cpu::kHeadPanel);
    const int64_t pieces = (chunk_.columns + size - 1) / size;
    for_each_unit(num_panels() * pieces, 0, [&](int64_t unit, float*) {
      const int64_t panel = unit / pieces, begin = unit % pieces * size;
      cpu::head_grad_hidden(chunk_, band_, panel, begin, std::min(begin + size, chunk_.columns), band_.first > 0,
                            mutable_raw<float>(sums_) + panel * columns_ * cpu::kHeadPanel);
    });
  }

  void store_x() {
    cpu::Bf16* out = mutable_raw<cpu::Bf16>(problem_.grad_x) + first_ * hidden_;
    const float* sums = raw<float>(sums_);
    at::parallel_for(0, count_, 16, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        for (int64_t column = 0; column < hidden_; column += cpu::kLanes) {
          const int64_t panel = column / cpu::kHeadPanel;
          cpu::store(out + row * hidden_ + column,
                     cpu::load(sums + (panel * columns_ + row) * cpu::kHeadPanel + column % cpu::kHeadPanel));
        }
      }
    });
  }

  const HeadProblem& problem_;
  double* logprobs_;
  int64_t rows_, vocab_, hidden_;
  bool has_gradients_;
  bool on_tiles_ = false;
  int64_t columns_, band_groups_;
  at::Tensor exps_, x_transposed_, x_pairs_, group_max_, group_sum_, by_column_, sums_;
  at::Tensor band_gradients_, band_weights_;
  int64_t scratch_size_ = 0;
  std::vector<cpu::HeadTarget> targets_;
  cpu::HeadChunk chunk_;
  cpu::HeadBand band_;
  int64_t first_ = 0, count_ = 0;  // rows of the chunk
};

}  // namespace

bool suits_head_tiles(const at::Tensor& weight) {
  return weight.scalar_type() == at::kBFloat16 && weight.is_contiguous() && weight.size(1) % kRowUnit == 0 &&
         weight.size(1) > 0 && cpu::has_pair_products();
}

void head_on_tiles(const HeadProblem& problem, double* logprobs) {
  if (problem.x.size(0) == 0) return;
  Chunks(problem, logprobs).run();
}

}  // namespace expertmesh::ops
