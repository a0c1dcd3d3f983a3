// SPDX-License-Identifier: Apache-2.0
#include "ops/embedding_rows.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <vector>

#include "ops/cpu/isa_testing.h"

namespace expertmesh::ops {
namespace {

// Against index_add in fp64; ids come up many times, and rows that none names keep what they hold.
TEST(EmbeddingRows, AreSumsOfTheirTokens) {
  at::manual_seed(3);
  cpu::for_each_isa([] {
    for (const auto& [tokens, vocab, hidden] :
         std::vector<std::array<int64_t, 3>>{{0, 3, 8}, {1, 1, 1}, {300, 7, 37}, {64, 1000, 130}, {17, 5, 64}}) {
      for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
        const at::Tensor ids = at::randint(0, vocab, {tokens}, at::kLong);
        const at::Tensor rows = at::randn({tokens, hidden}).to(dtype), start = at::randn({vocab, hidden});
        at::Tensor wanted = start.to(at::kDouble);
        wanted.index_add_(0, ids, rows.to(at::kDouble));
        at::Tensor sum = start.clone();
        add_to_rows(sum, ids, rows);
        EXPECT_LE((sum - wanted).abs().max().item<double>(), 1e-5 * std::sqrt(1.0 + static_cast<double>(tokens)));
        at::Tensor is_used = at::zeros({vocab}, at::kBool);
        is_used.index_fill_(0, ids, true);
        for (int64_t v = 0; v < vocab; ++v) {
          EXPECT_TRUE(is_used[v].item<bool>() || sum[v].equal(start[v])) << v;
        }
      }
    }
  });
}

TEST(EmbeddingRows, DoNotDependOnThreads) {
  at::manual_seed(4);
  const int64_t tokens = 200, hidden = 300;
  const at::Tensor ids = at::randint(0, 3, {tokens}, at::kLong), rows = at::randn({tokens, hidden});
  const int before = at::get_num_threads();
  std::vector<at::Tensor> sums;
  for (const int threads : {1, 2, 5}) {
    at::set_num_threads(threads);
    sums.push_back(at::zeros({3, hidden}));
    add_to_rows(sums.back(), ids, rows);
  }
  at::set_num_threads(before);
  EXPECT_TRUE(sums[0].equal(sums[1]));
  EXPECT_TRUE(sums[0].equal(sums[2]));
}

// Rows that no token names are not even read: they may hold anything, NaN too.
TEST(EmbeddingRows, LeaveOtherRowsAlone) {
  const at::Tensor sum = at::full({4, 20}, std::nan(""));
  sum[2].zero_();
  add_to_rows(sum, at::full({3}, 2, at::kLong), at::full({3, 20}, 0.5).to(at::kBFloat16));
  EXPECT_EQ(sum[2].sum().item<double>(), 30.0);
  EXPECT_EQ(sum.isnan().sum().item<int64_t>(), 60);
}

}  // namespace
}  // namespace expertmesh::ops
