// SPDX-License-Identifier: Apache-2.0
#include "moe/measure.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "moe/dispatcher.h"

namespace expertmesh::moe {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kMaxRounds = 50;

class SampleLayer {
 public:
  SampleLayer(const LayerShape& shape, const comm::Group& ep)
      : generator_(at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(ep.rank() + 1))), shape_(shape) {
    const int64_t local = shape.experts / ep.size();
    hidden_TH_ = random({shape.tokens, shape.hidden}).set_requires_grad(true);
    grad_TH_ = random({shape.tokens, shape.hidden});
    weights_ = {(random({local, 2 * shape.width, shape.hidden}) * 0.02).set_requires_grad(true),
                (random({local, shape.hidden, shape.width}) * 0.02).set_requires_grad(true)};
    routing_TK_ = at::rand({shape.tokens, shape.top_k}, generator_, at::kFloat).set_requires_grad(true);
  }

  at::Tensor next_choices() {
    const at::Tensor scores = at::rand({shape_.tokens, shape_.experts}, generator_, at::kFloat);
    return scores.argsort(int64_t{1}, true).slice(1, 0, shape_.top_k).contiguous();
  }

  void step(const Dispatcher& dispatcher, comm::Group& ep, const at::Tensor& ids_TK) const {
    Routing routing;
    routing.ids_TK = ids_TK;
    routing.decided = true;
    dispatcher.forward(hidden_TH_, routing_TK_, routing, weights_, ep).backward(grad_TH_);
    for (const at::Tensor* leaf : {&hidden_TH_, &routing_TK_, &weights_.gate_up_proj, &weights_.down_proj}) {
      leaf->mutable_grad().reset();
    }
  }

 private:
  at::Tensor random(std::vector<int64_t> sizes) const {
    return at::randn(sizes, generator_, at::kFloat).to(shape_.dtype);
  }

  at::Generator generator_;
  LayerShape shape_;
  at::Tensor hidden_TH_, grad_TH_, routing_TK_;
  ExpertWeights weights_;
};

struct Candidate {
  std::unique_ptr<Dispatcher> dispatcher;
  std::vector<double> seconds{};
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace

std::vector<DispatcherTime> measure_dispatchers(const LayerShape& shape, comm::Group& ep, comm::Group& all,
                                                double seconds) {
  const at::AutoGradMode with_graph(true);
  SampleLayer layer(shape, ep);
  std::vector<Candidate> candidates;
  for (const DispatcherInfo& row : dispatchers()) candidates.push_back({row.make()});
  const auto start = Clock::now();
  for (int round = -1; round < kMaxRounds; ++round) {  // the first warms up
    const at::Tensor ids_TK = layer.next_choices();
    for (Candidate& candidate : candidates) {
      all.barrier("auto");
      const auto begin = Clock::now();
      layer.step(*candidate.dispatcher, ep, ids_TK);
      const double own = std::chrono::duration<double>(Clock::now() - begin).count();
      const double slowest = all.all_reduce_double(own, comm::ReduceOp::kMax, "auto");
      if (round >= 0) candidate.seconds.push_back(slowest);
    }
    const double spent = std::chrono::duration<double>(Clock::now() - start).count();
    const bool is_over = all.all_reduce_double(spent, comm::ReduceOp::kMax, "auto time") >= seconds;
    if (is_over && round >= 0) break;
  }
  std::vector<DispatcherTime> times;
  for (const Candidate& candidate : candidates) {
    times.push_back({candidate.dispatcher->name(), median(candidate.seconds) * 1e3});
  }
  return times;
}

std::string_view fastest(const std::vector<DispatcherTime>& times) {
  constexpr double kSame = 1.02;
  double best = times.front().milliseconds;
  for (const DispatcherTime& time : times) best = std::min(best, time.milliseconds);
  const auto chosen = std::find_if(times.begin(), times.end(),
                                   [&](const DispatcherTime& time) { return time.milliseconds <= kSame * best; });
  return chosen->name;
}

std::string times_text(const std::vector<DispatcherTime>& times) {
  std::string text;
  for (const DispatcherTime& time : times) {
    text += fmt::format("{}{} {:.2f} ms", text.empty() ? "" : ", ", time.name, time.milliseconds);
  }
  return text;
}

}  // namespace expertmesh::moe
