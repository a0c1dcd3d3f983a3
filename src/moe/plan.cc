// SPDX-License-Identifier: Apache-2.0
#include "moe/plan.h"

#include <numeric>

#include "base/check.h"
#include "base/error.h"

namespace expertmesh::moe {
namespace {

using base::Code;
using base::make_error;

// Counts the rows of each expert; checks the ids on the way. `last_token` remembers who picked an expert last.
std::vector<int64_t> count_choices(std::span<const int64_t> ids_TK, int64_t top_k, int64_t num_experts,
                                   int64_t first_token) {
  std::vector<int64_t> counts_E(static_cast<size_t>(num_experts), 0);
  std::vector<int64_t> last_token(static_cast<size_t>(num_experts), -1);
  for (size_t choice = 0; choice < ids_TK.size(); ++choice) {
    const int64_t id = ids_TK[choice];
    const int64_t token = first_token + static_cast<int64_t>(choice) / top_k;
    if (id < 0 || id >= num_experts) {
      throw make_error(Code::kInternal, "moe/routing", "token {} was routed to expert {}, but there are {} experts.",
                       token, id, num_experts);
    }
    const size_t expert = static_cast<size_t>(id);
    if (last_token[expert] == token) {
      throw make_error(Code::kInternal, "moe/routing", "token {} was routed to expert {} twice.", token, id)
          .hint("Each token's experts must be distinct.");
    }
    last_token[expert] = token;
    ++counts_E[expert];
  }
  return counts_E;
}

// First row of each group, and the end of the last.
std::vector<int64_t> starts_of(std::span<const int64_t> counts) {
  std::vector<int64_t> starts(counts.size() + 1, 0);
  std::partial_sum(counts.begin(), counts.end(), starts.begin() + 1);
  return starts;
}

}  // namespace

SourcePlan make_source_plan(std::span<const int64_t> ids_TK, int64_t top_k, int64_t num_experts, int64_t first_token) {
  EXPERTMESH_CHECK(top_k >= 1 && static_cast<int64_t>(ids_TK.size()) % top_k == 0, "{} ids, {} a token", ids_TK.size(),
                   top_k);
  SourcePlan plan;
  plan.counts_E = count_choices(ids_TK, top_k, num_experts, first_token);
  plan.choice_of_row.resize(ids_TK.size());
  plan.row_of_choice.resize(ids_TK.size());
  plan.token_of_row.resize(ids_TK.size());
  std::vector<int64_t> next_row = starts_of(plan.counts_E);
  for (size_t choice = 0; choice < ids_TK.size(); ++choice) {
    const int64_t row = next_row[static_cast<size_t>(ids_TK[choice])]++;
    plan.row_of_choice[choice] = row;
    plan.choice_of_row[static_cast<size_t>(row)] = static_cast<int64_t>(choice);
    plan.token_of_row[static_cast<size_t>(row)] = static_cast<int64_t>(choice) / top_k;
  }
  return plan;
}

ExpertPlan make_expert_plan(std::span<const int64_t> counts_SE, int64_t num_sources, int64_t num_local_experts) {
  EXPERTMESH_CHECK(static_cast<int64_t>(counts_SE.size()) == num_sources * num_local_experts, "{} counts",
                   counts_SE.size());
  const std::vector<int64_t> arrival_starts = starts_of(counts_SE);
  ExpertPlan plan;
  plan.offsets.reserve(static_cast<size_t>(num_local_experts) + 1);
  plan.offsets.push_back(0);
  plan.arrival_rows.reserve(static_cast<size_t>(arrival_starts.back()));
  for (int64_t expert = 0; expert < num_local_experts; ++expert) {
    for (int64_t source = 0; source < num_sources; ++source) {
      const size_t block = static_cast<size_t>(source * num_local_experts + expert);
      for (int64_t row = 0; row < counts_SE[block]; ++row) plan.arrival_rows.push_back(arrival_starts[block] + row);
    }
    plan.offsets.push_back(static_cast<int64_t>(plan.arrival_rows.size()));
  }
  return plan;
}

std::vector<int64_t> sum_parts(std::span<const int64_t> counts, int64_t parts) {
  EXPERTMESH_CHECK(parts >= 1 && static_cast<int64_t>(counts.size()) % parts == 0, "{} counts in {} parts",
                   counts.size(), parts);
  const size_t length = counts.size() / static_cast<size_t>(parts);
  std::vector<int64_t> sums(static_cast<size_t>(parts), 0);
  for (size_t i = 0; i < counts.size(); ++i) sums[i / length] += counts[i];
  return sums;
}

int64_t buffer_bytes(int64_t rows, int64_t row_bytes) {
  int64_t bytes = 0;
  if (rows < 0 || row_bytes < 0 || __builtin_mul_overflow(rows, row_bytes, &bytes)) {
    throw make_error(Code::kResources, "moe/sizes", "{} rows of {} bytes do not fit into memory.", rows, row_bytes);
  }
  return bytes;
}

}  // namespace expertmesh::moe
