// SPDX-License-Identifier: Apache-2.0
#include "moe/workload.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "base/check.h"
#include "base/rng.h"

namespace expertmesh::moe {
namespace {

constexpr int kBurstPeriod = 4;  // three quiet steps, then a burst

constexpr std::array kWorkloads{
    WorkloadInfo{Workload::kBalanced, "balanced", "all experts equally likely"},
    WorkloadInfo{Workload::kHotExperts, "hot-experts",
                 "half of the tokens take an eighth of the experts, on all ranks"},
    WorkloadInfo{Workload::kHotRank, "hot-rank", "half of the tokens take the experts of rank 0"},
    WorkloadInfo{Workload::kSpread, "spread", "every token at as many ranks as possible"},
    WorkloadInfo{Workload::kRagged, "ragged", "rank r has r + 1 parts of the tokens"},
    WorkloadInfo{Workload::kEmptyRank, "empty-rank", "the last rank has no tokens"},
    WorkloadInfo{Workload::kRotating, "rotating", "half of the tokens take the experts of one rank, another each step"},
    WorkloadInfo{Workload::kBurst, "burst", "balanced, but in every fourth step three of four tokens want one rank"},
};

// The experts that a token of a step would rather have; empty: no matter which.
class Wish {
 public:
  Wish(const WorkloadShape& shape, int step)
      : experts_(shape.experts), local_(shape.experts / shape.ranks), hot_(std::max(shape.top_k, shape.experts / 8)) {
    switch (shape.workload) {
      case Workload::kHotExperts:
        is_of_set_ = true;
        every_ = 2;
        break;
      case Workload::kHotRank:
        every_ = 2;
        break;
      case Workload::kRotating:
        every_ = 2;
        rank_ = step % shape.ranks;
        break;
      case Workload::kBurst:
        if (step % kBurstPeriod == kBurstPeriod - 1) every_ = 4;
        rank_ = step / kBurstPeriod % shape.ranks;
        break;
      default:
        break;
    }
  }

  // One of two tokens, or three of four.
  bool has(int64_t token) const { return every_ == 2 ? token % 2 == 0 : every_ == 4 && token % 4 != 0; }
  bool holds(int64_t expert) const { return is_of_set_ ? expert * hot_ % experts_ < hot_ : expert / local_ == rank_; }

 private:
  int64_t experts_, local_, hot_;
  bool is_of_set_ = false;
  int64_t every_ = 0, rank_ = 0;
};

// An expert with what decides whether a token takes it: the lower, the sooner.
struct Ranked {
  int64_t turn = 0;
  uint32_t draw = 0;
  int64_t expert = 0;
  auto operator<=>(const Ranked&) const = default;
};

// Each rank's experts one after the other, all ranks side by side.
void take_turns(std::span<Ranked> experts, int ranks) {
  const size_t local = experts.size() / static_cast<size_t>(ranks);
  for (size_t begin = 0; begin < experts.size(); begin += local) {
    const std::span<Ranked> own = experts.subspan(begin, local);
    std::sort(own.begin(), own.end());
    for (size_t i = 0; i < own.size(); ++i) own[i].turn = static_cast<int64_t>(i);
  }
}

// Tokens of the ranks before this one.
int64_t tokens_before(const WorkloadShape& shape, int64_t rank) {
  const int64_t all = shape.tokens * shape.ranks;
  if (shape.workload == Workload::kRagged) return all * rank * (rank + 1) / (shape.ranks * (shape.ranks + 1));
  if (shape.workload == Workload::kEmptyRank && shape.ranks > 1) {
    return all * std::min<int64_t>(rank, shape.ranks - 1) / (shape.ranks - 1);
  }
  return shape.tokens * rank;
}

}  // namespace

std::span<const WorkloadInfo> workloads() { return kWorkloads; }

int64_t workload_tokens(const WorkloadShape& shape, int rank) {
  return tokens_before(shape, rank + 1) - tokens_before(shape, rank);
}

std::vector<int64_t> workload_ids(const WorkloadShape& shape, int rank, int step) {
  EXPERTMESH_CHECK(shape.ranks >= 1 && shape.experts % shape.ranks == 0 && shape.top_k <= shape.experts,
                   "{} experts, {} a token, {} ranks", shape.experts, shape.top_k, shape.ranks);
  const std::array key{static_cast<uint32_t>(shape.seed), static_cast<uint32_t>(shape.workload),
                       static_cast<uint32_t>(rank), static_cast<uint32_t>(step)};
  base::Mt19937 random = base::Mt19937::from_key(key);
  const Wish wish(shape, step);
  const int64_t num_tokens = workload_tokens(shape, rank);
  std::vector<int64_t> ids_TK;
  ids_TK.reserve(static_cast<size_t>(num_tokens * shape.top_k));
  std::vector<Ranked> experts(static_cast<size_t>(shape.experts));
  for (int64_t token = 0; token < num_tokens; ++token) {
    for (int64_t expert = 0; expert < shape.experts; ++expert) {
      const bool is_wanted = wish.has(token) && wish.holds(expert);
      experts[static_cast<size_t>(expert)] = {is_wanted ? 0 : 1, random.next(), expert};
    }
    if (shape.workload == Workload::kSpread) take_turns(experts, shape.ranks);
    std::partial_sort(experts.begin(), experts.begin() + shape.top_k, experts.end());
    for (int64_t k = 0; k < shape.top_k; ++k) ids_TK.push_back(experts[static_cast<size_t>(k)].expert);
  }
  return ids_TK;
}

std::vector<int64_t> workload_rows(const WorkloadShape& shape, int step) {
  std::vector<int64_t> rows(static_cast<size_t>(shape.ranks), 0);
  for (int rank = 0; rank < shape.ranks; ++rank) {
    for (const int64_t expert : workload_ids(shape, rank, step)) {
      ++rows[static_cast<size_t>(expert / (shape.experts / shape.ranks))];
    }
  }
  return rows;
}

}  // namespace expertmesh::moe
