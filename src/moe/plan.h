// SPDX-License-Identifier: Apache-2.0
// Where each row goes: plain integer arithmetic over the chosen ids, all in 64 bits, no torch, no communication.
// A choice is the flat index t * K + k. A row is one choice on its way to an expert.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace expertmesh::moe {

// At the source: this rank's choices sorted by expert, stably, so that a rank's experts are one block of rows.
struct SourcePlan {
  std::vector<int64_t> choice_of_row;  // sorted row -> choice
  std::vector<int64_t> row_of_choice;  // choice -> sorted row
  std::vector<int64_t> token_of_row;   // sorted row -> token
  std::vector<int64_t> counts_E;       // rows of each global expert
};

// Throws kInternal for an id that is no expert, and for a token that picked one expert twice (naming both; tokens are
// counted from first_token).
SourcePlan make_source_plan(std::span<const int64_t> ids_TK, int64_t top_k, int64_t num_experts,
                            int64_t first_token = 0);

// At the experts: rows arrive by source, each source's by expert; experts want them by expert, each expert's by source.
struct ExpertPlan {
  std::vector<int64_t> offsets;       // E_local + 1: rows [offsets[e], offsets[e + 1]) belong to local expert e
  std::vector<int64_t> arrival_rows;  // row in expert order -> row in order of arrival
};

// counts_SE [num_sources, E_local]: rows that each source sends to each local expert.
ExpertPlan make_expert_plan(std::span<const int64_t> counts_SE, int64_t num_sources, int64_t num_local_experts);

// Sums of `parts` equal neighbouring pieces: rows per ep rank from rows per expert, rows per source from counts_SE.
std::vector<int64_t> sum_parts(std::span<const int64_t> counts, int64_t parts);

// Bytes of `rows` rows of `row_bytes`, in 64 bits; throws kResources where they do not fit.
int64_t buffer_bytes(int64_t rows, int64_t row_bytes);

}  // namespace expertmesh::moe
