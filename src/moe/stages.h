// SPDX-License-Identifier: Apache-2.0
// The stages of a dispatch, in order: plan, permute, exchange, (expert MLP: expert_mlp.h), exchange back, combine.
// With an ep group of one there is no exchange and no permuted copy: experts read the token rows in place.
// Collective over: ep (plan_dispatch, exchange_rows), also with zero rows.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "comm/group.h"
#include "moe/chunk_plan.h"
#include "moe/dispatcher.h"
#include "moe/expert_mlp.h"
#include "moe/plan.h"

namespace expertmesh::moe {

// What one forward and its backward know about where rows go.
struct DispatchPlan {
  int64_t num_tokens = 0;
  int64_t top_k = 0;
  bool exchanges = false;  // ep has peers
  SourcePlan source;
  ExpertPlan experts;
  std::vector<int64_t> send_counts;  // rows to each ep rank, and from each
  std::vector<int64_t> recv_counts;

  // Experts read arrived rows, or with ep 1 the tokens' own.
  ExpertRows rows() const;
};

// Takes the split sizes from routing where an earlier forward left them, else agrees on them and leaves them there.
// Collective over ep where routing has none yet.
DispatchPlan plan_dispatch(Routing& routing, int64_t num_local_experts, comm::Group& ep);

// rows[index[i]] for each i; rows of any dtype and width.
at::Tensor select_rows(const at::Tensor& rows, std::span<const int64_t> index);

// [T, ...] rows in sorted order, ready to send.
at::Tensor permute_tokens(const DispatchPlan& plan, const at::Tensor& tokens);
// [T, K] values in sorted order.
at::Tensor permute_choices(const DispatchPlan& plan, const at::Tensor& values_TK);
// The reverse of permute_choices: [T, K].
at::Tensor unpermute_choices(const DispatchPlan& plan, const at::Tensor& values_R);

// Source to experts, and back. Collective over ep.
at::Tensor exchange_rows(const DispatchPlan& plan, const at::Tensor& rows, comm::Group& ep, std::string_view tag);
at::Tensor exchange_rows_back(const DispatchPlan& plan, const at::Tensor& rows, comm::Group& ep, std::string_view tag);

// [R, H] result rows, as they came back or (ep 1) as the experts wrote them -> [T, H]: sum over k in fp32, each times
// its weight (undefined: 1).
at::Tensor combine(const DispatchPlan& plan, const at::Tensor& rows_RH, const at::Tensor& weights_TK);
// The same, from row row_of_choice[c] for choice c; empty: from row c.
at::Tensor combine_rows(const at::Tensor& rows_RH, std::span<const int64_t> row_of_choice, int64_t num_tokens,
                        int64_t top_k, const at::Tensor& weights_TK);
// The same for sums of any numbers of rows: results [begin, end) into their rows of out. weights_R: of each row.
void sum_rows(const at::Tensor& rows_RH, const RowSums& sums, const at::Tensor& weights_R, int64_t begin, int64_t end,
              const at::Tensor& out);

}  // namespace expertmesh::moe
