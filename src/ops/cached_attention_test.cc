// SPDX-License-Identifier: Apache-2.0
// Attention against caches: the native operator against the reference, the reference against attention on the whole.
#include "ops/cached_attention.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "ops/new_tensor.h"
#include "ops/operators.h"

namespace expertmesh::ops {
namespace {

struct Sizes {
  int64_t kv_heads, repeat, dim;
};

// New tokens and all tokens of each document.
using Documents = std::vector<std::pair<int64_t, int64_t>>;

// Caches have room to spare, which is NaN.
struct Problem {
  at::Tensor q;
  std::vector<at::Tensor> keys, values;
  std::vector<int64_t> cu = {0}, lengths;
  double scale = 0.3;

  CachedAttentionInput input() const {
    return {.q_TND = q, .keys_MSD = keys, .values_MSD = values, .cu_seqlens = cu, .lengths = lengths, .scale = scale};
  }

  Problem to(at::ScalarType dtype) const {
    Problem result = *this;
    result.q = q.to(dtype);
    for (auto* caches : {&result.keys, &result.values}) {
      for (at::Tensor& cache : *caches) cache = cache.to(dtype);
    }
    return result;
  }

  // Document b alone.
  Problem document(size_t b) const {
    Problem result;
    result.q = q.narrow(0, cu[b], cu[b + 1] - cu[b]);
    result.keys = {keys[b]};
    result.values = {values[b]};
    result.cu.push_back(result.q.size(0));
    result.lengths = {lengths[b]};
    return result;
  }
};

Problem make_problem(const Documents& documents, const Sizes& sizes) {
  Problem problem;
  for (const auto& [tokens, length] : documents) {
    for (auto* caches : {&problem.keys, &problem.values}) {
      const at::Tensor cache =
          at::full({sizes.kv_heads, length + 5, sizes.dim}, std::numeric_limits<double>::quiet_NaN(), at::kDouble);
      cache.narrow(1, 0, length).copy_(at::randn({sizes.kv_heads, length, sizes.dim}));
      caches->push_back(cache);
    }
    problem.cu.push_back(problem.cu.back() + tokens);
    problem.lengths.push_back(length);
  }
  problem.q = at::randn({problem.cu.back(), sizes.kv_heads * sizes.repeat, sizes.dim}, at::kDouble);
  return problem;
}

// Every number of new tokens with every length that they fit into.
Documents all_documents() {
  Documents documents;
  for (const int64_t tokens : {0, 1, 2, 5, 17}) {
    for (const int64_t length : {1, 2, 63, 64, 65, 300, 1000}) {
      if (tokens <= length) documents.emplace_back(tokens, length);
    }
  }
  return documents;
}

at::Tensor native(const Problem& problem) { return native_operators().cached_attention(problem.input()); }
at::Tensor reference(const Problem& problem) { return reference_operators().cached_attention(problem.input()); }

double largest_error(const at::Tensor& got, const at::Tensor& exact) {
  if (exact.numel() == 0) return 0.0;
  return (got.to(at::kDouble) - exact).abs().max().item<double>() / exact.abs().max().item<double>();
}

// New memory is NaN, so that an element that is never written shows.
class CachedAttention : public testing::Test {
 protected:
  void SetUp() override {
    at::manual_seed(1);
    TEST_poison_new_memory(true);
  }
  void TearDown() override {
    TEST_poison_new_memory(poisoned_before_);
    at::set_num_threads(threads_before_);
  }

 private:
  const bool poisoned_before_ = poisons_new_memory();
  const int threads_before_ = at::get_num_threads();
};

// In bf16 the error may be that of the reference, which rounds once.
TEST_F(CachedAttention, ErrorsAreThoseOfTheReference) {
  for (const int64_t repeat : {1, 4, 8}) {
    for (const int64_t dim : {32, 64, 128, 256, 36}) {
      const Problem random = make_problem(all_documents(), {2, repeat, dim});
      for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
        const Problem problem = random.to(dtype);
        const at::Tensor exact = reference(problem.to(at::kDouble)), got = native(problem), usual = reference(problem);
        ASSERT_EQ(got.scalar_type(), dtype);
        ASSERT_EQ(got.sizes(), exact.sizes());
        for (size_t b = 0; b < problem.lengths.size(); ++b) {
          const auto rows = [&](const at::Tensor& x) {
            return x.narrow(0, problem.cu[b], problem.cu[b + 1] - problem.cu[b]);
          };
          const double bound = dtype == at::kFloat ? 1e-5 : 1.01 * largest_error(rows(usual), rows(exact)) + 1e-5;
          EXPECT_LE(largest_error(rows(got), rows(exact)), bound)
              << rows(got).size(0) << " of " << problem.lengths[b] << " tokens, " << repeat << " heads of " << dim;
        }
      }
    }
  }
}

// The last rows of attention on the whole document.
TEST_F(CachedAttention, IsAttentionOnTheWhole) {
  const int64_t length = 150, heads = 4, kv_heads = 2, dim = 24;
  const Problem whole = make_problem({{length, length}}, {kv_heads, heads / kv_heads, dim}).to(at::kFloat);
  const auto by_token = [&](const at::Tensor& cache) {
    return cache.narrow(1, 0, length).transpose(0, 1).contiguous();
  };
  for (const Operators* ops : {&native_operators(), &reference_operators()}) {
    const at::Tensor wanted =
        ops->attention(whole.q, by_token(whole.keys[0]), by_token(whole.values[0]), whole.cu, whole.scale);
    for (const int64_t tokens : {1, 2, 16, 149, 150}) {
      Problem last = whole;
      last.q = whole.q.narrow(0, length - tokens, tokens);
      last.cu = {0, tokens};
      const at::Tensor got = ops->cached_attention(last.input());
      EXPECT_LE(largest_error(got, wanted.narrow(0, length - tokens, tokens).to(at::kDouble)), 1e-5)
          << tokens << " tokens, " << ops->name;
    }
  }
}

// Neither on the threads nor on the other documents; more rows and keys than one piece has.
TEST_F(CachedAttention, DependsOnItsDocumentAlone) {
  const Problem problem =
      make_problem({{1, 9000}, {0, 40}, {40, 3000}, {1, 700}, {3, 3}}, {2, 8, 32}).to(at::kBFloat16);
  at::set_num_threads(1);
  const at::Tensor one = native(problem);
  at::set_num_threads(2);
  EXPECT_TRUE(at::equal(native(problem), one));
  for (size_t b = 0; b < problem.lengths.size(); ++b) {
    const int64_t begin = problem.cu[b], tokens = problem.cu[b + 1] - begin;
    EXPECT_TRUE(at::equal(native(problem.document(b)), one.narrow(0, begin, tokens))) << "document " << b;
  }
  EXPECT_LE(largest_error(one, reference(problem.to(at::kDouble))), 1e-2);
}

// Each key beats all before it, so that every block replaces the maximum; then none does.
TEST_F(CachedAttention, HoldsForGrowingAndFallingScores) {
  for (const double step : {0.5, -0.5}) {
    Problem problem = make_problem({{2, 600}}, {1, 1, 16});
    problem.q.fill_(1.0);
    for (int64_t s = 0; s < 600; ++s) problem.keys[0][0][s].fill_(step * static_cast<double>(s));
    problem = problem.to(at::kFloat);
    EXPECT_LE(largest_error(native(problem), reference(problem.to(at::kDouble))), 1e-5) << step;
  }
}

TEST_F(CachedAttention, NoTokensAreNoSpecialCase) {
  for (const Documents& documents : {Documents{}, Documents{{0, 0}}, Documents{{0, 3}, {0, 0}}}) {
    const Problem problem = make_problem(documents, {2, 2, 16}).to(at::kFloat);
    EXPECT_EQ(native(problem).sizes(), problem.q.sizes());
    EXPECT_EQ(reference(problem).sizes(), problem.q.sizes());
  }
}

TEST_F(CachedAttention, InputsThatDoNotFitAreRefused) {
  const Problem problem = make_problem({{2, 6}, {1, 3}}, {2, 2, 16}).to(at::kFloat);
  Problem too_few = problem, too_long = problem, too_short = problem, other_dtype = problem, strided = problem,
          other_heads = problem, with_graph = problem;
  too_few.values.pop_back();
  too_long.lengths[0] = 12;
  too_short.lengths[0] = 1;
  other_dtype.keys[1] = problem.keys[1].to(at::kBFloat16);
  strided.keys[0] = problem.keys[0].transpose(0, 1).contiguous().transpose(0, 1);
  other_heads.values[1] = problem.values[1].narrow(0, 0, 1).contiguous();
  with_graph.q = problem.q.clone().set_requires_grad(true);
  for (const Problem* wrong : {&too_few, &too_long, &too_short, &other_dtype, &strided, &other_heads, &with_graph}) {
    EXPECT_ANY_THROW(native(*wrong));
    EXPECT_ANY_THROW(reference(*wrong));
  }
}

}  // namespace
}  // namespace expertmesh::ops
