// SPDX-License-Identifier: Apache-2.0
#include "moe/stages.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include "base/check.h"
#include "moe/stage_clock.h"
#include "ops/cpu/expert_rows.h"
#include "ops/new_tensor.h"
#include "ops/raw.h"

namespace expertmesh::moe {
namespace {

constexpr int64_t kRowsPerTask = 64;

std::span<const int64_t> int64_span(const at::Tensor& tensor) {
  return {tensor.const_data_ptr<int64_t>(), static_cast<size_t>(tensor.numel())};
}

// One row of E_local counts goes to each rank.
at::Tensor exchange_expert_counts(std::span<const int64_t> counts_E, int64_t num_local_experts, comm::Group& ep) {
  at::Tensor counts_SE = at::empty({ep.size(), num_local_experts}, at::kLong);
  const std::vector<int64_t> one_each(static_cast<size_t>(ep.size()), 1);
  ep.all_to_all({.send = counts_E.data(),
                 .send_counts = one_each,
                 .recv = counts_SE.mutable_data_ptr<int64_t>(),
                 .recv_counts = one_each,
                 .row_bytes = num_local_experts * static_cast<int64_t>(sizeof(int64_t))},
                "moe counts");
  return counts_SE;
}

at::Tensor exchange(const at::Tensor& rows, std::span<const int64_t> send_counts, std::span<const int64_t> recv_counts,
                    comm::Group& ep, std::string_view tag) {
  const StageTimer timer(Stage::kExchange);
  int64_t num_received = 0;
  for (const int64_t count : recv_counts) num_received += count;
  std::vector<int64_t> shape = rows.sizes().vec();
  shape[0] = num_received;
  int64_t row_bytes = static_cast<int64_t>(rows.element_size());
  for (size_t dim = 1; dim < shape.size(); ++dim) row_bytes = buffer_bytes(shape[dim], row_bytes);
  buffer_bytes(num_received, row_bytes);
  at::Tensor received = ops::new_tensor(shape, rows.scalar_type());
  ep.all_to_all({.send = rows.const_data_ptr(),
                 .send_counts = send_counts,
                 .recv = received.mutable_data_ptr(),
                 .recv_counts = recv_counts,
                 .row_bytes = row_bytes},
                tag);
  return received;
}

}  // namespace

ExpertRows DispatchPlan::rows() const {
  if (exchanges) return {experts.offsets, experts.arrival_rows, experts.arrival_rows};
  return {experts.offsets, source.token_of_row, source.choice_of_row};
}

DispatchPlan plan_dispatch(Routing& routing, int64_t num_local_experts, comm::Group& ep) {
  const StageTimer timer(Stage::kPlan);
  EXPERTMESH_CHECK(routing.ids_TK.dim() == 2 && routing.ids_TK.is_contiguous(), "{} dims", routing.ids_TK.dim());
  DispatchPlan plan;
  plan.num_tokens = routing.ids_TK.size(0);
  plan.top_k = routing.ids_TK.size(1);
  plan.exchanges = ep.size() > 1;
  plan.source = make_source_plan(int64_span(routing.ids_TK), plan.top_k, num_local_experts * ep.size());
  if (!routing.tokens_per_source_SE.defined()) {
    routing.tokens_per_source_SE = exchange_expert_counts(plan.source.counts_E, num_local_experts, ep);
    routing.send_counts = sum_parts(plan.source.counts_E, ep.size());
    routing.recv_counts = sum_parts(int64_span(routing.tokens_per_source_SE), ep.size());
  }
  plan.send_counts = routing.send_counts;
  plan.recv_counts = routing.recv_counts;
  plan.experts = make_expert_plan(int64_span(routing.tokens_per_source_SE), ep.size(), num_local_experts);
  return plan;
}

at::Tensor select_rows(const at::Tensor& rows, std::span<const int64_t> index) {
  const StageTimer timer(Stage::kPermute);
  std::vector<int64_t> shape = rows.sizes().vec();
  shape[0] = static_cast<int64_t>(index.size());
  at::Tensor out = ops::new_tensor(shape, rows.scalar_type());
  if (out.numel() == 0) return out;
  const int64_t row_bytes = static_cast<int64_t>(rows.nbytes()) / rows.size(0);
  const auto* from = static_cast<const std::byte*>(rows.const_data_ptr());
  void* to = out.mutable_data_ptr();
  at::parallel_for(0, shape[0], kRowsPerTask, [&](int64_t begin, int64_t end) {
    ops::cpu::gather_rows({from, row_bytes, index.data()}, row_bytes, to, begin, end);
  });
  return out;
}

at::Tensor permute_tokens(const DispatchPlan& plan, const at::Tensor& tokens) {
  return select_rows(tokens, plan.source.token_of_row);
}

at::Tensor permute_choices(const DispatchPlan& plan, const at::Tensor& values_TK) {
  return select_rows(values_TK.reshape({-1}), plan.source.choice_of_row);
}

at::Tensor unpermute_choices(const DispatchPlan& plan, const at::Tensor& values_R) {
  return select_rows(values_R, plan.source.row_of_choice).view({plan.num_tokens, plan.top_k});
}

at::Tensor exchange_rows(const DispatchPlan& plan, const at::Tensor& rows, comm::Group& ep, std::string_view tag) {
  return exchange(rows, plan.send_counts, plan.recv_counts, ep, tag);
}

at::Tensor exchange_rows_back(const DispatchPlan& plan, const at::Tensor& rows, comm::Group& ep, std::string_view tag) {
  return exchange(rows, plan.recv_counts, plan.send_counts, ep, tag);
}

at::Tensor combine(const DispatchPlan& plan, const at::Tensor& rows_RH, const at::Tensor& weights_TK) {
  const std::span<const int64_t> row_of_choice = plan.source.row_of_choice;
  return combine_rows(rows_RH, plan.exchanges ? row_of_choice : std::span<const int64_t>(), plan.num_tokens, plan.top_k,
                      weights_TK);
}

at::Tensor combine_rows(const at::Tensor& rows_RH, std::span<const int64_t> row_of_choice, int64_t num_tokens,
                        int64_t top_k, const at::Tensor& weights_TK) {
  const StageTimer timer(Stage::kCombine);
  at::Tensor out_TH = ops::new_tensor({num_tokens, rows_RH.size(1)}, rows_RH.scalar_type());
  const ops::cpu::CombineShape shape{
      .row_of_choice = row_of_choice.empty() ? nullptr : row_of_choice.data(),
      .weights = weights_TK.defined() ? weights_TK.const_data_ptr<float>() : nullptr,
      .top_k = top_k,
      .width = rows_RH.size(1),
  };
  ops::with_element_type(rows_RH.scalar_type(), [&](auto element) {
    using T = decltype(element);
    at::parallel_for(0, num_tokens, kRowsPerTask, [&](int64_t begin, int64_t end) {
      ops::cpu::combine_rows(ops::raw<T>(rows_RH), ops::mutable_raw<T>(out_TH), shape, begin, end);
    });
  });
  return out_TH;
}

void sum_rows(const at::Tensor& rows_RH, const RowSums& sums, const at::Tensor& weights_R, int64_t begin, int64_t end,
              const at::Tensor& out) {
  const StageTimer timer(Stage::kCombine);
  const int64_t width = out.size(1);
  ops::with_element_type(out.scalar_type(), [&](auto element) {
    using T = decltype(element);
    at::parallel_for(begin, end, kRowsPerTask, [&](int64_t first, int64_t last) {
      std::vector<float> weights;
      for (int64_t result = first; result < last; ++result) {
        const auto at = static_cast<size_t>(sums.offsets[static_cast<size_t>(result)]);
        const auto rows =
            std::span(sums.rows).subspan(at, static_cast<size_t>(sums.offsets[static_cast<size_t>(result) + 1]) - at);
        weights.clear();
        if (weights_R.defined()) {
          for (const int64_t row : rows) weights.push_back(weights_R.const_data_ptr<float>()[row]);
        }
        const ops::cpu::CombineShape shape{.row_of_choice = rows.data(),
                                           .weights = weights.empty() ? nullptr : weights.data(),
                                           .top_k = static_cast<int64_t>(rows.size()),
                                           .width = width};
        ops::cpu::combine_rows(ops::raw<T>(rows_RH), ops::mutable_raw<T>(out) + result * width, shape, 0, 1);
      }
    });
  });
}

}  // namespace expertmesh::moe
