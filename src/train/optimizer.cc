// SPDX-License-Identifier: Apache-2.0
#include "train/optimizer.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "base/check.h"
#include "base/trace.h"
#include "ops/cpu/adamw.h"

namespace expertmesh::train {
namespace {

using ops::cpu::Bf16;

constexpr int64_t kGrain = 1 << 15;  // elements a thread takes at once

int64_t bytes_of(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.numel() * static_cast<int64_t>(tensor.element_size()) : 0;
}

template <typename T>
T* data_of(at::Tensor& tensor) {
  return tensor.defined() ? static_cast<T*>(tensor.mutable_data_ptr()) : nullptr;
}

template <typename T>
T* offset(T* data, int64_t begin) {
  return data == nullptr ? nullptr : data + begin;
}

// What the optimizer keeps of one parameter beside the shard itself.
struct State {
  shard::Parameter* parameter = nullptr;
  at::Tensor low;     // the 16 bits that a bf16 weight lacks of its fp32 master
  at::Tensor first;   // momentum
  at::Tensor second;  // second moment; sgd has none
};

// Keeps states; the update of one range is the derived class's.
class ElementwiseOptimizer : public Optimizer {
 public:
  ElementwiseOptimizer(std::vector<shard::Parameter*> parameters, bool has_masters, bool has_first, bool has_second) {
    for (shard::Parameter* parameter : parameters) {
      if (!parameter->trainable()) continue;
      State state;
      state.parameter = parameter;
      const bool is_bf16 = parameter->dtype() == at::kBFloat16;
      if (is_bf16 && has_masters) {
        state.low = at::zeros(parameter->local_shape(), at::TensorOptions().dtype(at::kShort));
      }
      const auto options = at::TensorOptions().dtype(is_bf16 && !has_masters ? at::kBFloat16 : at::kFloat);
      if (has_first) state.first = at::zeros(parameter->local_shape(), options);
      if (has_second) state.second = at::zeros(parameter->local_shape(), options);
      states_.push_back(std::move(state));
    }
  }

  void step(double learning_rate, double gradient_scale) override {
    const base::Span span("optimizer");
    span.does([&] { return base::Work{.flops = 0, .bytes = moved_bytes()}; });
    ++updates_;
    for (State& state : states_) {
      EXPERTMESH_CHECK(state.parameter->has_grad(), "{}", state.parameter->name());
      at::parallel_for(0, state.parameter->local_numel(), kGrain, [&](int64_t begin, int64_t end) {
        update(state, begin, end - begin, learning_rate, gradient_scale);
      });
    }
  }

  int64_t updates() const override { return updates_; }

  int64_t state_bytes() const override {
    int64_t bytes = 0;
    for (const State& state : states_) bytes += bytes_of(state.low) + bytes_of(state.first) + bytes_of(state.second);
    return bytes;
  }

 protected:
  virtual void update(State& state, int64_t begin, int64_t count, double learning_rate, double gradient_scale) = 0;

 private:
  // By an update: gradients are read, weights and states read and written.
  double moved_bytes() const {
    int64_t bytes = 2 * state_bytes();
    for (const State& state : states_)
      bytes += bytes_of(state.parameter->grad()) + 2 * bytes_of(state.parameter->local());
    return static_cast<double>(bytes);
  }

  std::vector<State> states_;
  int64_t updates_ = 0;
};

class AdamW : public ElementwiseOptimizer {
 public:
  AdamW(const config::OptimConfig& config, std::vector<shard::Parameter*> parameters)
      : ElementwiseOptimizer(std::move(parameters), config.master_weights == config::MasterWeights::kFp32, true, true),
        config_(config) {}

 private:
  void update(State& state, int64_t begin, int64_t count, double learning_rate, double gradient_scale) override {
    const ops::cpu::AdamWStep step{.lr = learning_rate,
                                   .beta1 = config_.beta1,
                                   .beta2 = config_.beta2,
                                   .eps = config_.eps,
                                   .weight_decay = config_.weight_decay,
                                   .step = updates(),
                                   .grad_scale = gradient_scale};
    shard::Parameter& parameter = *state.parameter;
    const float* grad = parameter.grad().const_data_ptr<float>() + begin;
    if (parameter.dtype() == at::kFloat) {
      ops::cpu::adamw(step, data_of<float>(parameter.local()) + begin, grad, data_of<float>(state.first) + begin,
                      data_of<float>(state.second) + begin, count);
    } else if (state.low.defined()) {
      ops::cpu::adamw(step, data_of<Bf16>(parameter.local()) + begin, data_of<uint16_t>(state.low) + begin, grad,
                      data_of<float>(state.first) + begin, data_of<float>(state.second) + begin, count);
    } else {
      ops::cpu::adamw(step, data_of<Bf16>(parameter.local()) + begin, grad, data_of<Bf16>(state.first) + begin,
                      data_of<Bf16>(state.second) + begin, count);
    }
  }

  config::OptimConfig config_;
};

class Sgd : public ElementwiseOptimizer {
 public:
  Sgd(const config::OptimConfig& config, std::vector<shard::Parameter*> parameters)
      : ElementwiseOptimizer(std::move(parameters), config.master_weights == config::MasterWeights::kFp32,
                             config.momentum != 0, false),
        config_(config) {}

 private:
  void update(State& state, int64_t begin, int64_t count, double learning_rate, double gradient_scale) override {
    const ops::cpu::SgdStep step{.lr = learning_rate,
                                 .momentum = config_.momentum,
                                 .weight_decay = config_.weight_decay,
                                 .is_first = updates() == 1,
                                 .grad_scale = gradient_scale};
    shard::Parameter& parameter = *state.parameter;
    const float* grad = parameter.grad().const_data_ptr<float>() + begin;
    if (parameter.dtype() == at::kFloat) {
      ops::cpu::sgd(step, data_of<float>(parameter.local()) + begin, grad, offset(data_of<float>(state.first), begin),
                    count);
    } else if (state.low.defined()) {
      ops::cpu::sgd(step, data_of<Bf16>(parameter.local()) + begin, data_of<uint16_t>(state.low) + begin, grad,
                    offset(data_of<float>(state.first), begin), count);
    } else {
      ops::cpu::sgd(step, data_of<Bf16>(parameter.local()) + begin, grad, offset(data_of<Bf16>(state.first), begin),
                    count);
    }
  }

  config::OptimConfig config_;
};

}  // namespace

std::unique_ptr<Optimizer> make_optimizer(const config::OptimConfig& config,
                                          std::vector<shard::Parameter*> parameters) {
  if (config.optimizer == config::Optimizer::kSgd) return std::make_unique<Sgd>(config, std::move(parameters));
  EXPERTMESH_CHECK(config.optimizer == config::Optimizer::kAdamW, "optimizer is not built");
  return std::make_unique<AdamW>(config, std::move(parameters));
}

}  // namespace expertmesh::train
