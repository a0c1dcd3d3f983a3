// SPDX-License-Identifier: Apache-2.0
// bf16 experts on our own products (ops/cpu/expert_gemm.h). Rows and weights are read from and written to where they
// are; blocks of rows pass through both products while they sit in the cache; nothing is prepared for a shape, so loads
// that change from step to step cost nothing extra.
#include <algorithm>

#include "moe/expert_mlp.h"
#include "moe/expert_tasks.h"
#include "ops/cpu/expert_act.h"
#include "ops/cpu/expert_gemm.h"
#include "ops/new_tensor.h"
#include "ops/raw.h"

namespace expertmesh::moe {
namespace {

using ops::cpu::Bf16;

constexpr int64_t kBlockRows = 256;                 // of a backward, whose activations stay in the second cache level
constexpr int64_t kCacheBytes = int64_t{16} << 20;  // larger results have left the caches before they are read again

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

at::Tensor new_scratch(int64_t elements) { return ops::new_tensor({elements}, at::kBFloat16); }

void forward(const at::Tensor& x, const ExpertRows& rows, const ExpertWeights& weights, const ExpertForward& result) {
  const Shape shape(weights);
  const bool is_read_late =
      rows.num_rows() * (shape.hidden + 2 * shape.width) * static_cast<int64_t>(sizeof(Bf16)) > kCacheBytes;
  const int64_t scratch_size = ops::cpu::expert_forward_scratch(shape.hidden, shape.width, most_rows(rows));
  for_each_expert(rows, [&] {
    return [&, scratch = new_scratch(scratch_size)](const ExpertTask& task) {
      ops::cpu::expert_forward({
          .hidden = shape.hidden,
          .width = shape.width,
          .gate_up_proj = expert_slice(weights.gate_up_proj, task.expert),
          .down_proj = expert_slice(weights.down_proj, task.expert),
          .rows = task.rows,
          .x = {ops::raw<Bf16>(x), x.stride(0), rows.in_rows.data() + task.begin},
          .gate_up = {ops::mutable_raw<Bf16>(result.gate_up_R2I) + task.begin * 2 * shape.width, 2 * shape.width,
                      nullptr},
          .y = {ops::mutable_raw<Bf16>(result.y_RH), result.y_RH.stride(0), rows.out_rows.data() + task.begin},
          .is_read_late = is_read_late,
          .scratch = ops::mutable_raw<Bf16>(scratch),
      });
    };
  });
}

// Elements of scratch memory that one expert's backward takes at most.
int64_t backward_scratch(const ExpertBackwardInput& in, int64_t max_rows) {
  const auto [hidden, width] = Shape(in.weights);
  int64_t size = 0;
  if (in.does_rows()) {
    const int64_t rows = std::min(kBlockRows, max_rows);
    size = std::max(ops::cpu::expert_input_grad_scratch(width, hidden, rows),
                    ops::cpu::expert_input_grad_scratch(hidden, 2 * width, rows));
  }
  if (in.does_weights()) {
    size = std::max({size, ops::cpu::expert_weight_grad_scratch(hidden, width, max_rows),
                     ops::cpu::expert_weight_grad_scratch(2 * width, hidden, max_rows)});
  }
  return size;
}

class BackwardWorker {
 public:
  BackwardWorker(const ExpertBackwardInput& in, const ExpertGrads& grads, int64_t max_rows)
      : in_(in),
        grads_(grads),
        shape_(in.weights),
        grad_act_(ops::new_tensor({std::min(kBlockRows, max_rows), shape_.width}, at::kBFloat16)),
        acts_(in.half == ExpertHalf::kBoth ? new_act_grads(in.weights, max_rows, in.needs) : *in.acts),
        scratch_(new_scratch(backward_scratch(in, max_rows))),
        is_of_all_rows_(in.half != ExpertHalf::kBoth) {}

  void operator()(const ExpertTask& task) {
    if (in_.does_rows()) {
      for (int64_t first = 0; first < task.rows; first += kBlockRows) {
        run_rows(task, first, std::min(kBlockRows, task.rows - first));
      }
    }
    if (!in_.does_weights()) return;
    if (in_.needs.down_proj) {
      weight_grad(task, grad_y(task), acts_rows(task, acts_.weighted_act_RI), grads_.down_proj);
    }
    if (in_.needs.gate_up_proj) {
      weight_grad(task, acts_rows(task, acts_.grad_gate_up_R2I),
                  {ops::raw<Bf16>(in_.x), in_.x.stride(0), in_.rows.in_rows.data() + task.begin}, grads_.gate_up_proj);
    }
  }

 private:
  using Rows = ops::cpu::IndexedRows<const Bf16>;

  Rows grad_y(const ExpertTask& task) const {
    return {ops::raw<Bf16>(in_.grad_y), in_.grad_y.stride(0), in_.rows.grads_from(task.begin)};
  }
  // The expert's rows in one of acts_; with a list of rows it counts from the start.
  Rows acts_rows(const ExpertTask& task, const at::Tensor& acts) const {
    return {acts_of(task, acts), acts.size(1),
            in_.rows.act_rows.empty() ? nullptr : in_.rows.act_rows.data() + task.begin};
  }
  Bf16* acts_of(const ExpertTask& task, const at::Tensor& acts) const {
    const bool has_own_place = is_of_all_rows_ && in_.rows.act_rows.empty();
    return ops::mutable_raw<Bf16>(acts) + (has_own_place ? task.begin * acts.size(1) : 0);
  }

  // Gradient of the activations and of x, for some rows of the expert.
  void run_rows(const ExpertTask& task, int64_t first, int64_t rows) {
    const auto [hidden, width] = shape_;
    ops::cpu::expert_input_grad({.a = grad_y(task).from(first),
                                 .weights = expert_slice(in_.weights.down_proj, task.expert),
                                 .c = {ops::mutable_raw<Bf16>(grad_act_), width, nullptr},
                                 .rows = rows,
                                 .columns = width,
                                 .depth = hidden,
                                 .is_read_late = false,
                                 .scratch = ops::mutable_raw<Bf16>(scratch_)});
    act(task, first, rows);
    if (!in_.needs.x) return;
    ops::cpu::expert_input_grad({.a = {acts_of(task, acts_.grad_gate_up_R2I) + first * 2 * width, 2 * width, nullptr},
                                 .weights = expert_slice(in_.weights.gate_up_proj, task.expert),
                                 .c = {ops::mutable_raw<Bf16>(grads_.x_RH), grads_.x_RH.stride(0),
                                       in_.rows.out_rows.data() + task.begin + first},
                                 .rows = rows,
                                 .columns = hidden,
                                 .depth = 2 * width,
                                 .is_read_late = static_cast<int64_t>(grads_.x_RH.nbytes()) > kCacheBytes,
                                 .scratch = ops::mutable_raw<Bf16>(scratch_)});
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
  void weight_grad(const ExpertTask& task, Rows left, Rows right, const at::Tensor& grads) {
    ops::cpu::expert_weight_grad({.left = left,
                                  .right = right,
                                  .c = ops::mutable_raw<Bf16>(grads) + task.expert * grads.size(1) * grads.size(2),
                                  .rows = task.rows,
                                  .m = grads.size(1),
                                  .n = grads.size(2),
                                  .is_read_late = static_cast<int64_t>(grads.nbytes()) > kCacheBytes,
                                  .scratch = ops::mutable_raw<Bf16>(scratch_)});
  }

  const ExpertBackwardInput& in_;
  const ExpertGrads& grads_;
  Shape shape_;
  at::Tensor grad_act_;  // of a block
  ExpertActGrads acts_;  // of the expert's rows; of all rows where the halves are called one by one
  at::Tensor scratch_;
  bool is_of_all_rows_;
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
