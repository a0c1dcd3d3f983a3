// SPDX-License-Identifier: Apache-2.0
#include "moe/chunk_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <tuple>
#include <vector>

namespace expertmesh::moe {
namespace {

struct Sizes {
  int ranks = 1, slices = 1;
  int64_t experts_each = 1, top_k = 1;
  std::vector<int64_t> tokens;  // of each rank
};

std::vector<int64_t> random_ids(const Sizes& sizes, int64_t tokens, std::mt19937& random) {
  std::vector<int64_t> experts(static_cast<size_t>(sizes.ranks * sizes.experts_each)), ids;
  for (size_t e = 0; e < experts.size(); ++e) experts[e] = static_cast<int64_t>(e);
  for (int64_t token = 0; token < tokens; ++token) {
    std::shuffle(experts.begin(), experts.end(), random);
    ids.insert(ids.end(), experts.begin(), experts.begin() + sizes.top_k);
  }
  return ids;
}

// All ranks' plans, with what the exchanges between them would carry.
class World {
 public:
  World(const Sizes& sizes, ChunkCut cut, TokenRows rows) : sizes_(sizes), rows_(rows) {
    std::mt19937 random(7);
    for (const int64_t tokens : sizes.tokens) {
      ids_.push_back(random_ids(sizes, tokens, random));
      std::vector<SliceSource> slices;
      for (int slice = 0; slice < sizes.slices; ++slice) {
        const int64_t begin = tokens * slice / sizes.slices, end = tokens * (slice + 1) / sizes.slices;
        const std::span<const int64_t> part =
            std::span(ids_.back())
                .subspan(static_cast<size_t>(begin * sizes.top_k), static_cast<size_t>((end - begin) * sizes.top_k));
        slices.push_back(
            make_slice_source(part, sizes.top_k, begin, sizes.ranks * sizes.experts_each, sizes.ranks, rows_));
      }
      sources_.push_back(std::move(slices));
    }
    for (int rank = 0; rank < sizes.ranks; ++rank) plans.push_back(plan_of(rank, cut));
  }

  // What every rank receives: for each token row its (source, token), for each row its (source, choice).
  void exchange() {
    arrived_tokens.assign(plans.size(), {});
    arrived_rows.assign(plans.size(), {});
    for (size_t to = 0; to < plans.size(); ++to) {
      arrived_tokens[to].assign(static_cast<size_t>(plans[to].num_token_rows), {-1, -1});
      arrived_rows[to].assign(static_cast<size_t>(plans[to].num_rows), {-1, -1});
    }
    for (size_t chunk = 0; chunk < plans[0].chunks.size(); ++chunk) {
      for (size_t from = 0; from < plans.size(); ++from) {
        for (size_t to = 0; to < plans.size(); ++to) {
          move(from, to, chunk, &Chunk::tokens, plans[from].sent_tokens, arrived_tokens[to]);
          move(from, to, chunk, &Chunk::rows, plans[from].choice_of_row, arrived_rows[to]);
        }
      }
    }
  }

  int64_t top_k() const { return sizes_.top_k; }
  int64_t expert_of(const std::pair<int64_t, int64_t>& row) const {
    return ids_[static_cast<size_t>(row.first)][static_cast<size_t>(row.second)];
  }

  std::vector<ChunkPlan> plans;
  std::vector<std::vector<std::pair<int64_t, int64_t>>> arrived_tokens, arrived_rows;

 private:
  ChunkPlan plan_of(int rank, ChunkCut cut) const {
    std::vector<SliceArrival> arrivals(static_cast<size_t>(sizes_.slices));
    const auto local = static_cast<size_t>(sizes_.experts_each), me = static_cast<size_t>(rank);
    for (size_t slice = 0; slice < arrivals.size(); ++slice) {
      for (const auto& of_source : sources_) {
        const SliceSource& source = of_source[slice];
        const auto counts = source.counts_E.begin() + static_cast<int64_t>(me * local);
        arrivals[slice].counts_SE.insert(arrivals[slice].counts_SE.end(), counts, counts + static_cast<int64_t>(local));
        arrivals[slice].tokens_S.push_back(source.send_tokens[me]);
        int64_t begin = 0;
        for (size_t before = 0; before < me; ++before) begin += source.send_rows[before];
        if (rows_ == TokenRows::kByChoice) continue;
        const auto rows = source.token_of_row.begin() + begin;
        arrivals[slice].token_of_row.insert(arrivals[slice].token_of_row.end(), rows, rows + source.send_rows[me]);
      }
    }
    return make_chunk_plan(sources_[me], arrivals, cut, rows_, sizes_.tokens[me], rank);
  }

  // One chunk's rows of one rank for another.
  void move(size_t from, size_t to, size_t chunk, ChunkRows Chunk::* kind, const std::vector<int64_t>& sent,
            std::vector<std::pair<int64_t, int64_t>>& arrived) const {
    const ChunkRows& out = plans[from].chunks[chunk].*kind;
    const ChunkRows& in = plans[to].chunks[chunk].*kind;
    ASSERT_EQ(out.send_counts[to], in.recv_counts[from]);
    int64_t read = out.send_begin, write = in.recv_begin;
    for (size_t peer = 0; peer < to; ++peer) read += out.send_counts[peer];
    for (size_t peer = 0; peer < from; ++peer) write += in.recv_counts[peer];
    for (int64_t i = 0; i < out.send_counts[to]; ++i) {
      auto& place = arrived[static_cast<size_t>(write + i)];
      ASSERT_EQ(place.first, -1) << "a place is written twice";
      place = {static_cast<int64_t>(from), sent[static_cast<size_t>(read + i)]};
    }
  }

  Sizes sizes_;
  TokenRows rows_;
  std::vector<std::vector<int64_t>> ids_;
  std::vector<std::vector<SliceSource>> sources_;
};

// Every row is summed into its own token row, every token row into its token.
void check_sums(const World& world, int rank) {
  const ChunkPlan& plan = world.plans[static_cast<size_t>(rank)];
  const auto& tokens = world.arrived_tokens[static_cast<size_t>(rank)];
  const auto& rows = world.arrived_rows[static_cast<size_t>(rank)];
  ASSERT_EQ(plan.rows_to_token_rows.rows.size(), rows.size());
  for (int64_t result = 0; result < plan.num_token_rows; ++result) {
    const auto& offsets = plan.rows_to_token_rows.offsets;
    ASSERT_LT(offsets[static_cast<size_t>(result)], offsets[static_cast<size_t>(result) + 1]);
    for (int64_t i = offsets[static_cast<size_t>(result)]; i < offsets[static_cast<size_t>(result) + 1]; ++i) {
      const auto& row = rows[static_cast<size_t>(plan.rows_to_token_rows.rows[static_cast<size_t>(i)])];
      EXPECT_EQ(tokens[static_cast<size_t>(result)], std::pair(row.first, row.second / world.top_k()));
    }
  }
  ASSERT_EQ(plan.token_rows_to_tokens.rows.size(), plan.sent_tokens.size());
  for (int64_t token = 0; token < plan.token_rows_to_tokens.num_results(); ++token) {
    const auto& offsets = plan.token_rows_to_tokens.offsets;
    for (int64_t i = offsets[static_cast<size_t>(token)]; i < offsets[static_cast<size_t>(token) + 1]; ++i) {
      const int64_t sent = plan.token_rows_to_tokens.rows[static_cast<size_t>(i)];
      EXPECT_EQ(plan.sent_tokens[static_cast<size_t>(sent)], token);
    }
  }
}

class ChunkPlans : public testing::TestWithParam<std::tuple<Sizes, ChunkCut, TokenRows>> {};

TEST_P(ChunkPlans, BringEveryChoiceToItsExpertOnce) {
  const auto& [sizes, cut, token_rows] = GetParam();
  World world(sizes, cut, token_rows);
  world.exchange();
  int64_t num_choices = 0, num_rows = 0;
  for (const int64_t tokens : sizes.tokens) num_choices += tokens * sizes.top_k;
  for (int rank = 0; rank < sizes.ranks; ++rank) {
    const ChunkPlan& plan = world.plans[static_cast<size_t>(rank)];
    const auto& tokens = world.arrived_tokens[static_cast<size_t>(rank)];
    const auto& rows = world.arrived_rows[static_cast<size_t>(rank)];
    num_rows += plan.num_rows;
    if (token_rows == TokenRows::kDedup) {
      check_sums(world, rank);
      EXPECT_EQ(std::set(tokens.begin(), tokens.end()).size(), tokens.size()) << "a token travels twice";
    } else {
      EXPECT_EQ(plan.num_token_rows, plan.num_rows);
    }
    const auto check = [&](const ExpertLists& lists) {
      ASSERT_EQ(static_cast<int64_t>(lists.offsets.size()), sizes.experts_each + 1);
      for (size_t expert = 0; expert + 1 < lists.offsets.size(); ++expert) {
        for (int64_t r = lists.offsets[expert]; r < lists.offsets[expert + 1]; ++r) {
          const auto& row = rows[static_cast<size_t>(lists.out_rows[static_cast<size_t>(r)])];
          const auto& token = tokens[static_cast<size_t>(lists.in_rows[static_cast<size_t>(r)])];
          EXPECT_EQ(world.expert_of(row), rank * sizes.experts_each + static_cast<int64_t>(expert));
          EXPECT_EQ(token, std::pair(row.first, row.second / sizes.top_k));
        }
      }
    };
    check(plan.all);
    std::vector<int64_t> acts;  // row that arrived, by activation
    for (const Chunk& chunk : plan.chunks) {
      check(chunk.lists);
      EXPECT_EQ(chunk.first_act, static_cast<int64_t>(acts.size()));
      acts.insert(acts.end(), chunk.lists.out_rows.begin(), chunk.lists.out_rows.end());
    }
    ASSERT_EQ(static_cast<int64_t>(acts.size()), plan.num_rows);
    ASSERT_EQ(static_cast<int64_t>(plan.all.out_rows.size()), plan.num_rows);
    // An expert's rows: by source, then by token, whatever the chunks.
    for (size_t r = 0; r < plan.all.out_rows.size(); ++r) {
      EXPECT_EQ(acts[static_cast<size_t>(plan.all.act_rows[r])], plan.all.out_rows[r]);
      const bool is_first = std::count(plan.all.offsets.begin(), plan.all.offsets.end(), static_cast<int64_t>(r)) > 0;
      if (is_first) continue;
      EXPECT_LT(rows[static_cast<size_t>(plan.all.out_rows[r - 1])], rows[static_cast<size_t>(plan.all.out_rows[r])]);
    }
    for (size_t row = 0; row < plan.choice_of_row.size(); ++row) {
      EXPECT_EQ(plan.row_of_choice[static_cast<size_t>(plan.choice_of_row[row])], static_cast<int64_t>(row));
    }
  }
  EXPECT_EQ(num_rows, num_choices);
}

INSTANTIATE_TEST_SUITE_P(
    Sizes, ChunkPlans,
    testing::Combine(testing::Values(Sizes{1, 1, 4, 2, {5}}, Sizes{2, 1, 3, 2, {7, 4}}, Sizes{2, 2, 4, 8, {9, 1}},
                                     Sizes{3, 1, 4, 3, {0, 1, 12}}, Sizes{3, 2, 4, 1, {2, 0, 11}},
                                     Sizes{4, 2, 1, 2, {6, 6, 6, 6}}, Sizes{8, 2, 2, 4, {1, 0, 3, 8, 2, 2, 5, 0}},
                                     Sizes{2, 2, 2, 1, {0, 0}}),
                     testing::Values(ChunkCut::kSlices, ChunkCut::kRanks),
                     testing::Values(TokenRows::kDedup, TokenRows::kByChoice)));

}  // namespace
}  // namespace expertmesh::moe
