// SPDX-License-Identifier: Apache-2.0
// Where rows go when the exchange is cut into chunks: plain integer arithmetic, no torch, no communication.
// The tokens of a rank are cut into slices; a chunk is one slice and the ranks that this rank exchanges it with.
// A token goes once to each rank that has one of its experts, however many of them, and their sum comes back; or
// (kByChoice) it goes once for each of its choices, and so do its results.
// Buffers: what is sent lies slice by slice, in each by destination; what arrives slice by slice, in each by source.
// A token row is a token on its way to a rank, a row one choice on its way to an expert.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "moe/plan.h"

namespace expertmesh::moe {

enum class TokenRows {
  kDedup,     // a token row is a token at a rank
  kByChoice,  // a token row is a choice: as rows are sent
};

// At the source: one slice. Tokens and choices are counted from the first token of the rank, not of the slice.
struct SliceSource {
  std::vector<int64_t> counts_E;       // rows of each global expert
  std::vector<int64_t> choice_of_row;  // sorted by expert
  std::vector<int64_t> send_rows;      // to each rank
  std::vector<int64_t> send_tokens;    // token rows to each rank
  std::vector<int64_t> sent_tokens;    // which: by destination; kDedup: each ascending
  std::vector<int32_t> token_of_row;   // kDedup: sorted row -> which of the token rows for the same rank
};

// ids_TK of the slice; first_token is where it begins. Throws as make_source_plan.
SliceSource make_slice_source(std::span<const int64_t> ids_TK, int64_t top_k, int64_t first_token, int64_t num_experts,
                              int num_ranks, TokenRows token_rows);

// At the experts: one slice of every source.
struct SliceArrival {
  std::vector<int64_t> counts_SE;     // [num_ranks, E_local] rows
  std::vector<int64_t> tokens_S;      // token rows from each source
  std::vector<int32_t> token_of_row;  // row in order of arrival -> which of its source's token rows; empty: its own
};

// Lists for the experts: row r of their order reads token row in_rows[r] and is row out_rows[r] of what arrived.
struct ExpertLists {
  std::vector<int64_t> offsets;  // E_local + 1
  std::vector<int64_t> in_rows;
  std::vector<int64_t> out_rows;
  std::vector<int64_t> act_rows;  // row of the activations; left empty where that is r itself
};

// One exchange: where it begins in the buffers, and rows to and from each rank.
struct ChunkRows {
  int64_t send_begin = 0, recv_begin = 0;
  std::vector<int64_t> send_counts, recv_counts;
};

struct Chunk {
  bool stays = false;  // this rank's rows for its own experts: copied, not exchanged
  ChunkRows tokens;    // to the experts
  ChunkRows rows;      // with a row for each choice: routing weights, and results in the other direction
  ExpertLists lists;
  int64_t first_act = 0;  // its activations are the rows from here, in the order of its lists
};

// What is summed up to what: result t is the sum of rows[offsets[t]] to rows[offsets[t + 1]), in this order.
struct RowSums {
  std::vector<int64_t> offsets;
  std::vector<int64_t> rows;

  int64_t num_results() const { return static_cast<int64_t>(offsets.size()) - 1; }
};

// Of rows that each belong to one of the results.
RowSums make_row_sums(std::span<const int64_t> result_of_row, int64_t num_results);

struct ChunkPlan {
  std::vector<int64_t> sent_tokens;    // token of each token row that is sent
  std::vector<int64_t> choice_of_row;  // choice of each row, in the order in which rows are sent
  std::vector<int64_t> row_of_choice;
  bool is_dedup = false;
  // kDedup: rows that arrived, to the token rows that they belong to; token rows that were sent, to their tokens.
  RowSums rows_to_token_rows, token_rows_to_tokens;
  int64_t num_token_rows = 0;  // that arrive
  int64_t num_rows = 0;
  std::vector<Chunk> chunks;
  ExpertLists all;  // of all chunks; an expert's rows by source, then by token: the order of a single exchange
};

enum class ChunkCut {
  kSlices,  // each slice with all ranks
  kRanks,   // each slice rank by rank: the own rows, then those of the rank before, and so on
};

ChunkPlan make_chunk_plan(std::span<const SliceSource> sources, std::span<const SliceArrival> arrivals, ChunkCut cut,
                          TokenRows token_rows, int64_t num_tokens, int rank);

}  // namespace expertmesh::moe
