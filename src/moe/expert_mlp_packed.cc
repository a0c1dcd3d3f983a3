// SPDX-License-Identifier: Apache-2.0
// bf16 experts on CPUs with AVX-512 BF16 or AVX2, on our own products (ops/cpu/expert_gemm.h). Rows are read from and
// written to where they are; blocks of rows pass through both products while they sit in the cache; nothing is prepared
// for a shape, so loads that change from step to step cost nothing extra.
#include <algorithm>

#include "moe/expert_mlp.h"
#include "moe/expert_tasks.h"
#include "ops/cpu/expert_act.h"
#include "ops/cpu/expert_gemm.h"
#include "ops/cpu/swiglu.h"
#include "ops/new_tensor.h"
#include "ops/raw.h"

namespace expertmesh::moe {
namespace {

using ops::cpu::Bf16;
using ops::cpu::IndexedRows;
using ops::cpu::Packed;

constexpr int64_t kBlockRows = 96;  // 16 tiles; activations of a block stay in the second cache level

struct Shape {
  int64_t hidden, width;
  explicit Shape(const ExpertWeights& weights) : hidden(weights.down_proj.size(1)), width(weights.down_proj.size(2)) {}
};

int64_t most_rows(const ExpertRows& rows) {
  int64_t most = 0;
  for (size_t e = 1; e < rows.offsets.size(); ++e) most = std::max(most, rows.offsets[e] - rows.offsets[e - 1]);
  return most;
}

const Bf16* expert_slice(const at::Tensor& weights, int64_t expert) {
  return ops::raw<Bf16>(weights) + expert * weights.stride(0);
}

// Calls body(first row of the block within the task, rows of it).
template <typename Body>
void for_each_block(const ExpertTask& task, const Body& body) {
  for (int64_t first = 0; first < task.rows; first += kBlockRows) body(first, std::min(kBlockRows, task.rows - first));
}

class ForwardWorker {
 public:
  ForwardWorker(const at::Tensor& x, const ExpertRows& rows, const ExpertWeights& weights, const ExpertForward& result)
      : rows_(rows),
        weights_(weights),
        shape_(weights),
        x_(ops::raw<Bf16>(x)),
        y_(ops::mutable_raw<Bf16>(result.y_RH)),
        x_stride_(x.stride(0)),
        y_stride_(result.y_RH.stride(0)),
        gate_up_(ops::mutable_raw<Bf16>(result.gate_up_R2I)),
        act_(ops::new_tensor({kBlockRows, shape_.width}, at::kBFloat16)) {}

  void operator()(const ExpertTask& task) {
    if (task.rows == 0) return;
    const auto [hidden, width] = shape_;
    packed_gate_up_.pack_transposed(expert_slice(weights_.gate_up_proj, task.expert), hidden, 2 * width, hidden);
    packed_down_.pack_transposed(expert_slice(weights_.down_proj, task.expert), width, hidden, width);
    Bf16* act = ops::mutable_raw<Bf16>(act_);
    for_each_block(task, [&](int64_t first, int64_t rows) {
      const int64_t row = task.begin + first;
      Bf16* gate_up = gate_up_ + row * 2 * shape_.width;
      expert_gemm({x_, x_stride_, rows_.in_rows.data() + row}, rows, packed_gate_up_, {gate_up, 2 * shape_.width});
      ops::cpu::swiglu_forward(gate_up, gate_up + shape_.width, act,
                               {rows, shape_.width, 2 * shape_.width, shape_.width});
      expert_gemm({act, shape_.width}, rows, packed_down_, {y_, y_stride_, rows_.out_rows.data() + row});
    });
  }

 private:
  const ExpertRows& rows_;
  const ExpertWeights& weights_;
  Shape shape_;
  const Bf16* x_;
  Bf16* y_;
  int64_t x_stride_, y_stride_;
  Bf16* gate_up_;
  at::Tensor act_;
  Packed packed_gate_up_, packed_down_;
};

void forward(const at::Tensor& x, const ExpertRows& rows, const ExpertWeights& weights, const ExpertForward& result) {
  for_each_expert(rows, [&] { return ForwardWorker(x, rows, weights, result); });
}

class BackwardWorker {
 public:
  BackwardWorker(const ExpertBackwardInput& in, const ExpertGrads& grads, int64_t max_rows)
      : in_(in),
        grads_(grads),
        shape_(in.weights),
        grad_act_(ops::new_tensor({kBlockRows, shape_.width}, at::kBFloat16)),
        acts_(in.half == ExpertHalf::kBoth ? new_act_grads(in.weights, max_rows, in.needs) : *in.acts),
        is_of_all_rows_(in.half != ExpertHalf::kBoth) {}

  void operator()(const ExpertTask& task) {
    if (in_.does_rows() && task.rows > 0) run_rows(task);
    if (!in_.does_weights()) return;
    if (in_.needs.down_proj) down_proj(task);
    if (in_.needs.gate_up_proj) gate_up_proj(task);
  }

 private:
  const int64_t* grad_rows(const ExpertTask& task) const { return in_.rows.grads_from(task.begin); }
  const int64_t* out_rows(const ExpertTask& task) const { return in_.rows.out_rows.data() + task.begin; }
  const int64_t* act_rows(const ExpertTask& task) const {
    return in_.rows.act_rows.empty() ? nullptr : in_.rows.act_rows.data() + task.begin;
  }
  // Where the rows of the expert begin in one of acts_; with a list of rows it counts from the start.
  Bf16* acts_of(const ExpertTask& task, const at::Tensor& acts) const {
    const bool has_own_place = is_of_all_rows_ && in_.rows.act_rows.empty();
    return ops::mutable_raw<Bf16>(acts) + (has_own_place ? task.begin * acts.size(1) : 0);
  }

  // Gradient of the activations and of x, block by block.
  void run_rows(const ExpertTask& task) {
    const auto [hidden, width] = shape_;
    packed_.pack(expert_slice(in_.weights.down_proj, task.expert), width, nullptr, width, hidden);
    if (in_.needs.x) {
      packed_x_.pack(expert_slice(in_.weights.gate_up_proj, task.expert), hidden, nullptr, hidden, 2 * width);
    }
    for_each_block(task, [&](int64_t first, int64_t rows) {
      expert_gemm({ops::raw<Bf16>(in_.grad_y), in_.grad_y.stride(0), grad_rows(task) + first}, rows, packed_,
                  {ops::mutable_raw<Bf16>(grad_act_), shape_.width});
      act(task, first, rows);
      if (in_.needs.x) {
        expert_gemm({acts_of(task, acts_.grad_gate_up_R2I) + first * 2 * shape_.width, 2 * shape_.width}, rows,
                    packed_x_, {ops::mutable_raw<Bf16>(grads_.x_RH), grads_.x_RH.stride(0), out_rows(task) + first});
      }
    });
  }

  void act(const ExpertTask& task, int64_t first, int64_t rows) {
    const int64_t width = shape_.width;
    const auto rows_from = [&](const at::Tensor& acts) -> Bf16* {
      return acts.defined() ? acts_of(task, acts) + first * acts.size(1) : nullptr;
    };
    ops::cpu::expert_act_backward(ops::cpu::ExpertActBackward<Bf16>{
        .gate_up = ops::raw<Bf16>(in_.gate_up_R2I) + (task.begin + first) * 2 * width,
        .grad_act = ops::raw<Bf16>(grad_act_),
        .weights = ops::raw<float>(in_.routing_weights_R),
        .weight_rows = in_.rows.weights_from(task.begin + first),
        .weighted_act = rows_from(acts_.weighted_act_RI),
        .grad_gate_up = rows_from(acts_.grad_gate_up_R2I),
        .grad_weights = in_.needs.weights ? ops::mutable_raw<float>(grads_.weights_R) : nullptr,
        .rows = rows,
        .width = width,
    });
  }

  // Sums over the expert's rows; without any, zeros.
  void down_proj(const ExpertTask& task) {
    const auto [hidden, width] = shape_;
    packed_.pack(ops::raw<Bf16>(in_.grad_y), in_.grad_y.stride(0), grad_rows(task), hidden, task.rows);
    packed_x_.pack(acts_of(task, acts_.weighted_act_RI), width, act_rows(task), width, task.rows);
    expert_gemm_transposed(packed_, packed_x_, ops::mutable_raw<Bf16>(grads_.down_proj) + task.expert * hidden * width,
                           width);
  }

  void gate_up_proj(const ExpertTask& task) {
    const auto [hidden, width] = shape_;
    packed_.pack(acts_of(task, acts_.grad_gate_up_R2I), 2 * width, act_rows(task), 2 * width, task.rows);
    packed_x_.pack(ops::raw<Bf16>(in_.x), in_.x.stride(0), in_.rows.in_rows.data() + task.begin, hidden, task.rows);
    expert_gemm_transposed(packed_, packed_x_,
                           ops::mutable_raw<Bf16>(grads_.gate_up_proj) + task.expert * 2 * width * hidden, hidden);
  }

  const ExpertBackwardInput& in_;
  const ExpertGrads& grads_;
  Shape shape_;
  at::Tensor grad_act_;  // of a block
  ExpertActGrads acts_;  // of the expert's rows; of all rows where the halves are called one by one
  bool is_of_all_rows_;
  Packed packed_, packed_x_;
};

void backward(const ExpertBackwardInput& in, const ExpertGrads& grads) {
  const int64_t max_rows = most_rows(in.rows);
  for_each_expert(in.rows, [&] { return BackwardWorker(in, grads, max_rows); });
}

constexpr ExpertMlp kPacked{"packed",
                            [](at::ScalarType dtype) { return dtype == at::kBFloat16 && ops::cpu::has_expert_gemm(); },
                            forward, backward};

}  // namespace

const ExpertMlp& packed_expert_mlp() { return kPacked; }

}  // namespace expertmesh::moe
