// SPDX-License-Identifier: Apache-2.0
// Experts that have a few rows each, as in decoding: their weights are read once, where they lie, and nothing is
// packed. Forward only. Experts with more rows, as prompts give them, go to the implementation that trains.
#include <algorithm>
#include <vector>

#include "base/check.h"
#include "moe/expert_mlp.h"
#include "moe/expert_tasks.h"
#include "ops/cpu/few_rows.h"
#include "ops/cpu/swiglu.h"
#include "ops/new_tensor.h"
#include "ops/raw.h"

namespace expertmesh::moe {
namespace {

using ops::cpu::IndexedRows;
using ops::cpu::kFewRows;

// Of one thread.
template <typename T>
class Worker {
 public:
  Worker(const at::Tensor& x, const ExpertRows& rows, const ExpertWeights& weights, const ExpertForward& result)
      : x_(x),
        rows_(rows),
        weights_(weights),
        result_(result),
        act_(ops::new_tensor({kFewRows, weights.down_proj.size(2)}, x.scalar_type())),
        scratch_(ops::new_tensor({scratch_size(weights)}, at::kFloat)) {}

  void operator()(const ExpertTask& task) {
    if (task.rows == 0 || task.rows > kFewRows) return;
    const int64_t width = act_.size(1);
    T* const act = ops::mutable_raw<T>(act_);
    T* const gate_up = ops::mutable_raw<T>(result_.gate_up_R2I) + task.begin * 2 * width;
    multiply({ops::raw<T>(x_), x_.stride(0), rows_.in_rows.data() + task.begin}, task, weights_.gate_up_proj,
             {gate_up, 2 * width});
    ops::cpu::swiglu_forward(gate_up, gate_up + width, act, {task.rows, width, 2 * width, width});
    multiply({act, width}, task, weights_.down_proj,
             {ops::mutable_raw<T>(result_.y_RH), result_.y_RH.stride(0), rows_.out_rows.data() + task.begin});
  }

 private:
  static int64_t scratch_size(const ExpertWeights& weights) {
    return ops::cpu::few_row_scratch(kFewRows, std::max(weights.down_proj.size(1), weights.down_proj.size(2)));
  }

  void multiply(IndexedRows<const T> in, const ExpertTask& task, const at::Tensor& weight_EOI, IndexedRows<T> out) {
    ops::cpu::few_row_linear(
        ops::cpu::FewRowLinear<T>{.x = in,
                                  .y = out,
                                  .rows = task.rows,
                                  .w = ops::raw<T>(weight_EOI) + task.expert * weight_EOI.stride(0),
                                  .w_stride = weight_EOI.stride(1),
                                  .columns = weight_EOI.size(1),
                                  .depth = weight_EOI.size(2)},
        ops::mutable_raw<float>(scratch_));
  }

  const at::Tensor& x_;
  const ExpertRows& rows_;
  const ExpertWeights& weights_;
  const ExpertForward& result_;
  at::Tensor act_, scratch_;
};

// The experts with more rows, as a call of their own.
struct ManyRows {
  std::vector<int64_t> offsets, in_rows, out_rows;

  explicit ManyRows(const ExpertRows& rows) : offsets{0} {
    for (size_t e = 1; e < rows.offsets.size(); ++e) {
      const int64_t begin = rows.offsets[e - 1], end = rows.offsets[e];
      if (end - begin > kFewRows) {
        in_rows.insert(in_rows.end(), rows.in_rows.begin() + begin, rows.in_rows.begin() + end);
        out_rows.insert(out_rows.end(), rows.out_rows.begin() + begin, rows.out_rows.begin() + end);
      }
      offsets.push_back(static_cast<int64_t>(in_rows.size()));
    }
  }
};

void forward(const at::Tensor& x, const ExpertRows& rows, const ExpertWeights& weights, const ExpertForward& result) {
  ops::with_element_type(x.scalar_type(), [&]<typename T>(T) {
    for_each_expert(rows, [&] { return Worker<T>(x, rows, weights, result); });
  });
  const ManyRows many(rows);
  if (many.in_rows.empty()) return;
  // gate_up_R2I is used again: nothing reads it after a forward without backward.
  choose_expert_mlp(x.scalar_type()).forward_into(x, {many.offsets, many.in_rows, many.out_rows}, weights, result);
}

void backward(const ExpertBackwardInput& /*in*/, const ExpertGrads& /*grads*/) {
  EXPERTMESH_CHECK(false, "experts for decoding have no backward");
}

}  // namespace

const ExpertMlp& few_rows_expert_mlp() {
  static constexpr ExpertMlp kMlp = {
      .name = "few rows",
      .supports = [](at::ScalarType dtype) { return dtype == at::kFloat || dtype == at::kBFloat16; },
      .run_forward = forward,
      .run_backward = backward};
  return kMlp;
}

}  // namespace expertmesh::moe
