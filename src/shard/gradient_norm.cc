// SPDX-License-Identifier: Apache-2.0
#include "shard/gradient_norm.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/trace.h"
#include "ops/cpu/adamw.h"

namespace expertmesh::shard {
namespace {

// In blocks of fixed size, summed in order: the result does not depend on the number of threads.
double sum_of_squares(const at::Tensor& tensor) {
  constexpr int64_t kBlock = 1 << 16;
  const float* data = tensor.const_data_ptr<float>();
  const int64_t numel = tensor.numel();
  std::vector<double> partial((numel + kBlock - 1) / kBlock, 0.0);
  at::parallel_for(0, static_cast<int64_t>(partial.size()), 4, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t first = block * kBlock;
      partial[block] = ops::cpu::sum_of_squares(data + first, std::min(kBlock, numel - first));
    }
  });
  double total = 0;
  for (const double sum : partial) total += sum;
  return total;
}

}  // namespace

GradientNorm global_gradient_norm(const std::vector<Parameter*>& parameters, comm::Group& world) {
  const base::Span span("gradient norm");
  std::array<double, 2> squares{};  // dense, expert
  double first_bad = static_cast<double>(parameters.size());
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& parameter = *parameters[i];
    if (!parameter.trainable() || !parameter.has_grad()) continue;
    const double sum = sum_of_squares(parameter.grad());
    span.does([&] { return base::Work{.flops = 0, .bytes = 4.0 * static_cast<double>(parameter.local_numel())}; });
    if (!std::isfinite(sum)) first_bad = std::min(first_bad, static_cast<double>(i));
    if (parameter.is_primary_replica()) squares[parameter.is_expert() ? 1 : 0] += sum;
  }
  // One number carries both which parameter and which rank was first: all ranks name the same.
  const double ranks = world.size();
  double first = first_bad * ranks + world.rank();
  world.all_reduce({{squares.data(), 2, comm::DType::kF64}}, comm::ReduceOp::kSum, "gradient norm");
  world.all_reduce({{&first, 1, comm::DType::kF64}}, comm::ReduceOp::kMin, "first non-finite gradient");

  GradientNorm result;
  result.norm = std::sqrt(squares[0] + squares[1]);
  result.expert_norm = std::sqrt(squares[1]);
  const auto index = static_cast<size_t>(first / ranks);
  if (index < parameters.size()) {
    const auto rank = static_cast<int>(first - static_cast<double>(index) * ranks);
    result.non_finite_rank = world.members()[rank];
    result.first_non_finite =
        fmt::format("gradient of {} on rank {}", parameters[index]->name(), result.non_finite_rank);
  }
  result.is_finite = result.first_non_finite.empty() && std::isfinite(result.norm);
  return result;
}

double clip_coefficient(double norm, double max_norm) {
  if (max_norm <= 0) return 1.0;
  return std::min(1.0, max_norm / (norm + 1e-6));
}

}  // namespace expertmesh::shard
