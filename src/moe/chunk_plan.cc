// SPDX-License-Identifier: Apache-2.0
#include "moe/chunk_plan.h"

#include <numeric>

#include "base/check.h"

namespace expertmesh::moe {
namespace {

int64_t sum(std::span<const int64_t> counts) { return std::accumulate(counts.begin(), counts.end(), int64_t{0}); }

// Only the entry `index` of counts.
std::vector<int64_t> only(std::span<const int64_t> counts, size_t index) {
  std::vector<int64_t> result(counts.size(), 0);
  result[index] = counts[index];
  return result;
}

// One slice's places in the buffers.
struct SlicePlace {
  int64_t sent_tokens = 0, sent_rows = 0, arrived_tokens = 0, arrived_rows = 0;
};

// Rows that one source sends to one local expert: where they begin among all that arrived, and how many they are.
struct Block {
  int64_t begin = 0, rows = 0;
};

// All blocks of all slices, and the token row of each row that arrived.
class Blocks {
 public:
  explicit Blocks(std::span<const SliceArrival> arrivals) {
    for (const SliceArrival& arrival : arrivals) add(arrival);
  }

  size_t num_sources() const { return num_sources_; }
  size_t num_experts() const { return num_experts_; }
  int64_t num_rows() const { return static_cast<int64_t>(token_rows_.size()); }
  int64_t num_token_rows() const { return num_token_rows_; }
  std::span<const int64_t> token_rows() const { return token_rows_; }  // of each row

  // The rows of the slices and sources in [first, last), expert by expert, each expert's by source, then by slice.
  ExpertLists lists(size_t first_slice, size_t last_slice, size_t first_source, size_t last_source) const {
    ExpertLists lists;
    lists.offsets.push_back(0);
    for (size_t expert = 0; expert < num_experts_; ++expert) {
      for (size_t source = first_source; source < last_source; ++source) {
        for (size_t slice = first_slice; slice < last_slice; ++slice) append(lists, block(slice, source, expert));
      }
      lists.offsets.push_back(static_cast<int64_t>(lists.out_rows.size()));
    }
    return lists;
  }

 private:
  void add(const SliceArrival& arrival) {
    num_sources_ = arrival.tokens_S.size();
    num_experts_ = arrival.counts_SE.size() / num_sources_;
    size_t row = 0;
    for (size_t source = 0; source < num_sources_; ++source) {
      const int64_t first_row = num_rows();
      for (size_t expert = 0; expert < num_experts_; ++expert) {
        const int64_t rows = arrival.counts_SE[source * num_experts_ + expert];
        blocks_.push_back({num_rows(), rows});
        for (int64_t i = 0; i < rows; ++i, ++row) {
          const int64_t token = arrival.token_of_row.empty() ? num_rows() - first_row : arrival.token_of_row[row];
          EXPERTMESH_CHECK(token >= 0 && token < arrival.tokens_S[source], "token row {} of {}", token,
                           arrival.tokens_S[source]);
          token_rows_.push_back(num_token_rows_ + token);
        }
      }
      num_token_rows_ += arrival.tokens_S[source];
    }
    EXPERTMESH_CHECK(arrival.token_of_row.empty() || row == arrival.token_of_row.size(), "{} rows, {} listed", row,
                     arrival.token_of_row.size());
  }

  const Block& block(size_t slice, size_t source, size_t expert) const {
    return blocks_[(slice * num_sources_ + source) * num_experts_ + expert];
  }

  void append(ExpertLists& lists, const Block& block) const {
    for (int64_t row = block.begin; row < block.begin + block.rows; ++row) {
      lists.in_rows.push_back(token_rows_[static_cast<size_t>(row)]);
      lists.out_rows.push_back(row);
    }
  }

  size_t num_sources_ = 0, num_experts_ = 0;
  std::vector<Block> blocks_;
  std::vector<int64_t> token_rows_;
  int64_t num_token_rows_ = 0;
};

void add_slice_chunk(ChunkPlan& plan, const SliceSource& source, const SliceArrival& arrival, const SlicePlace& place,
                     const Blocks& blocks, size_t slice) {
  Chunk chunk;
  chunk.tokens = {place.sent_tokens, place.arrived_tokens, source.send_tokens, arrival.tokens_S};
  chunk.rows = {place.sent_rows, place.arrived_rows, source.send_rows,
                sum_parts(arrival.counts_SE, static_cast<int64_t>(blocks.num_sources()))};
  chunk.lists = blocks.lists(slice, slice + 1, 0, blocks.num_sources());
  plan.chunks.push_back(std::move(chunk));
}

// At step k, rows go to the rank k behind and come from the rank k before: every rank is busy with another.
void add_rank_chunks(ChunkPlan& plan, const SliceSource& source, const SliceArrival& arrival, const SlicePlace& place,
                     const Blocks& blocks, size_t slice, size_t rank) {
  const size_t size = blocks.num_sources();
  const std::vector<int64_t> arrival_rows = sum_parts(arrival.counts_SE, static_cast<int64_t>(size));
  const auto before = [](std::span<const int64_t> counts, size_t index) { return sum(counts.first(index)); };
  for (size_t step = 0; step < size; ++step) {
    const size_t to = (rank + step) % size;
    const size_t from = (rank + size - step) % size;
    Chunk chunk;
    chunk.stays = step == 0;
    chunk.tokens = {place.sent_tokens + before(source.send_tokens, to),
                    place.arrived_tokens + before(arrival.tokens_S, from), only(source.send_tokens, to),
                    only(arrival.tokens_S, from)};
    chunk.rows = {place.sent_rows + before(source.send_rows, to), place.arrived_rows + before(arrival_rows, from),
                  only(source.send_rows, to), only(arrival_rows, from)};
    chunk.lists = blocks.lists(slice, slice + 1, from, from + 1);
    plan.chunks.push_back(std::move(chunk));
  }
}

// Activations lie chunk after chunk; lists of all rows reach them by what arrived.
void place_acts(ChunkPlan& plan) {
  std::vector<int64_t> act_of_row(static_cast<size_t>(plan.num_rows));
  int64_t act = 0;
  for (Chunk& chunk : plan.chunks) {
    chunk.first_act = act;
    for (const int64_t row : chunk.lists.out_rows) act_of_row[static_cast<size_t>(row)] = act++;
  }
  for (const int64_t row : plan.all.out_rows) plan.all.act_rows.push_back(act_of_row[static_cast<size_t>(row)]);
}

// The tokens that have a row for each rank, once, and which of them each row belongs to.
void dedup_tokens(SliceSource& slice, std::span<const int64_t> token_of_row, int64_t num_tokens, int64_t first_token) {
  int64_t begin = 0;
  for (const int64_t rows : slice.send_rows) {
    const std::span<const int64_t> tokens = token_of_row.subspan(static_cast<size_t>(begin), static_cast<size_t>(rows));
    std::vector<int32_t> place(static_cast<size_t>(num_tokens), -1);
    for (const int64_t token : tokens) place[static_cast<size_t>(token)] = 0;
    int32_t count = 0;
    for (int64_t token = 0; token < num_tokens; ++token) {
      if (place[static_cast<size_t>(token)] < 0) continue;
      place[static_cast<size_t>(token)] = count++;
      slice.sent_tokens.push_back(first_token + token);
    }
    slice.send_tokens.push_back(count);
    for (const int64_t token : tokens) slice.token_of_row.push_back(place[static_cast<size_t>(token)]);
    begin += rows;
  }
}

}  // namespace

SliceSource make_slice_source(std::span<const int64_t> ids_TK, int64_t top_k, int64_t first_token, int64_t num_experts,
                              int num_ranks, TokenRows token_rows) {
  SourcePlan sorted = make_source_plan(ids_TK, top_k, num_experts, first_token);
  SliceSource slice;
  slice.send_rows = sum_parts(sorted.counts_E, num_ranks);
  slice.counts_E = std::move(sorted.counts_E);
  if (token_rows == TokenRows::kDedup) {
    dedup_tokens(slice, sorted.token_of_row, static_cast<int64_t>(ids_TK.size()) / top_k, first_token);
  } else {
    slice.send_tokens = slice.send_rows;
    slice.sent_tokens = std::move(sorted.token_of_row);
    for (int64_t& token : slice.sent_tokens) token += first_token;
  }
  slice.choice_of_row = std::move(sorted.choice_of_row);
  for (int64_t& choice : slice.choice_of_row) choice += first_token * top_k;
  return slice;
}

RowSums make_row_sums(std::span<const int64_t> result_of_row, int64_t num_results) {
  RowSums sums{.offsets = std::vector<int64_t>(static_cast<size_t>(num_results) + 1, 0),
               .rows = std::vector<int64_t>(result_of_row.size())};
  for (const int64_t result : result_of_row) ++sums.offsets[static_cast<size_t>(result) + 1];
  std::partial_sum(sums.offsets.begin(), sums.offsets.end(), sums.offsets.begin());
  std::vector<int64_t> next(sums.offsets.begin(), sums.offsets.end() - 1);
  for (size_t row = 0; row < result_of_row.size(); ++row) {
    sums.rows[static_cast<size_t>(next[static_cast<size_t>(result_of_row[row])]++)] = static_cast<int64_t>(row);
  }
  return sums;
}

ChunkPlan make_chunk_plan(std::span<const SliceSource> sources, std::span<const SliceArrival> arrivals, ChunkCut cut,
                          TokenRows token_rows, int64_t num_tokens, int rank) {
  const Blocks blocks(arrivals);
  ChunkPlan plan;
  plan.num_rows = blocks.num_rows();
  plan.num_token_rows = blocks.num_token_rows();
  SlicePlace place;
  for (size_t slice = 0; slice < sources.size(); ++slice) {
    const SliceSource& source = sources[slice];
    const SliceArrival& arrival = arrivals[slice];
    if (cut == ChunkCut::kSlices) {
      add_slice_chunk(plan, source, arrival, place, blocks, slice);
    } else {
      add_rank_chunks(plan, source, arrival, place, blocks, slice, static_cast<size_t>(rank));
    }
    plan.sent_tokens.insert(plan.sent_tokens.end(), source.sent_tokens.begin(), source.sent_tokens.end());
    plan.choice_of_row.insert(plan.choice_of_row.end(), source.choice_of_row.begin(), source.choice_of_row.end());
    place.sent_tokens += sum(source.send_tokens);
    place.sent_rows += sum(source.send_rows);
    place.arrived_tokens += sum(arrival.tokens_S);
    place.arrived_rows += sum(arrival.counts_SE);
  }
  plan.row_of_choice.resize(plan.choice_of_row.size());
  for (size_t row = 0; row < plan.choice_of_row.size(); ++row) {
    plan.row_of_choice[static_cast<size_t>(plan.choice_of_row[row])] = static_cast<int64_t>(row);
  }
  plan.is_dedup = token_rows == TokenRows::kDedup;
  if (plan.is_dedup) {
    plan.rows_to_token_rows = make_row_sums(blocks.token_rows(), plan.num_token_rows);
    plan.token_rows_to_tokens = make_row_sums(plan.sent_tokens, num_tokens);
  }
  plan.all = blocks.lists(0, sources.size(), 0, blocks.num_sources());
  place_acts(plan);
  return plan;
}

}  // namespace expertmesh::moe
