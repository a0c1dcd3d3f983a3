// SPDX-License-Identifier: Apache-2.0
#include "train/roofline.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <numeric>
#include <vector>

#include "moe/expert_mlp.h"
#include "ops/product.h"

namespace expertmesh::train {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kTime{25};  // of each of the four

// `amount` a second in the best call of those that start within kTime; the first is not counted.
template <typename Call>
double best_rate(double amount, const Call& call) {
  call();
  double best = 0;
  const auto end = Clock::now() + kTime;
  do {
    const auto start = Clock::now();
    call();
    best = std::max(best, amount / std::chrono::duration<double>(Clock::now() - start).count());
  } while (Clock::now() < end);
  return best;
}

double product_rate(at::ScalarType dtype) {
  constexpr int64_t kSize = 384;
  const at::Tensor a = at::ones({kSize, kSize}, dtype), b = at::ones({kSize, kSize}, dtype);
  return best_rate(2.0 * kSize * kSize * kSize, [&] { ops::product(a, b); });
}

double expert_rate() {
  constexpr int64_t kRows = 256, kHidden = 384, kWidth = 192;
  const at::Tensor x = at::ones({kRows, kHidden}, at::kBFloat16);
  const moe::ExpertWeights weights{at::ones({1, 2 * kWidth, kHidden}, at::kBFloat16),
                                   at::ones({1, kHidden, kWidth}, at::kBFloat16)};
  std::vector<int64_t> rows(kRows);
  std::iota(rows.begin(), rows.end(), 0);
  const std::vector<int64_t> offsets = {0, kRows};
  const moe::ExpertMlp& mlp = moe::choose_expert_mlp(at::kBFloat16);
  return best_rate(6.0 * kRows * kHidden * kWidth, [&] { mlp.forward(x, {offsets, rows, rows}, weights); });
}

double copy_rate() {
  constexpr int64_t kBytes = int64_t{48} << 20;  // beyond a rank's part of the caches
  std::vector<std::byte> from(kBytes, std::byte{1}), to(kBytes);
  return best_rate(2.0 * kBytes, [&] {
    at::parallel_for(0, kBytes, int64_t{1} << 20, [&](int64_t begin, int64_t end) {
      std::memcpy(to.data() + begin, from.data() + begin, static_cast<size_t>(end - begin));
    });
  });
}

}  // namespace

Roofline measure_roofline() {
  const at::NoGradGuard no_graph;
  return {.fp32_flops_per_s = product_rate(at::kFloat),
          .bf16_flops_per_s = std::max(product_rate(at::kBFloat16), expert_rate()),
          .copy_bytes_per_s = copy_rate()};
}

}  // namespace expertmesh::train
