// SPDX-License-Identifier: Apache-2.0
#include "moe/chunk_step.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>
#include <span>
#include <utility>

#include "base/check.h"
#include "moe/stage_clock.h"
#include "moe/stages.h"
#include "ops/new_tensor.h"

namespace expertmesh::moe {
namespace {

template <typename T>
std::span<const T> values_of(const at::Tensor& tensor) {
  return {tensor.const_data_ptr<T>(), static_cast<size_t>(tensor.numel())};
}

// What a source tells each rank: its number of tokens, then of each slice the token rows and the rows of each expert.
class SliceCounts {
 public:
  SliceCounts(at::Tensor counts, int64_t num_experts) : counts_(std::move(counts)), num_experts_(num_experts) {}

  static int64_t width(int slices, int64_t num_experts) { return 1 + slices * (1 + num_experts); }

  // Of each source, known to all ranks.
  std::vector<int64_t> tokens() const {
    std::vector<int64_t> tokens;
    for (int64_t source = 0; source < num_sources(); ++source) tokens.push_back(row(source)[0]);
    return tokens;
  }

  // Slices [first, last) as one.
  SliceArrival arrival(int first, int last) const {
    SliceArrival result;
    const auto experts = static_cast<size_t>(num_experts_);
    for (int64_t source = 0; source < num_sources(); ++source) {
      result.tokens_S.push_back(0);
      result.counts_SE.resize(result.counts_SE.size() + experts, 0);
      const std::span<int64_t> sums = std::span(result.counts_SE).last(experts);
      for (int slice = first; slice < last; ++slice) {
        const std::span<const int64_t> told = row(source).subspan(1 + static_cast<size_t>(slice) * (1 + experts));
        result.tokens_S.back() += told[0];
        for (size_t expert = 0; expert < experts; ++expert) sums[expert] += told[1 + expert];
      }
    }
    return result;
  }

 private:
  int64_t num_sources() const { return counts_.size(0); }
  std::span<const int64_t> row(int64_t source) const {
    const auto width = static_cast<size_t>(counts_.size(1));
    return values_of<int64_t>(counts_).subspan(static_cast<size_t>(source) * width, width);
  }

  at::Tensor counts_;
  int64_t num_experts_;
};

// The source's part of that, for every rank.
at::Tensor tell_counts(std::span<const SliceSource> slices, int64_t num_tokens, int64_t num_experts, int num_ranks) {
  at::Tensor told = at::empty({num_ranks, SliceCounts::width(static_cast<int>(slices.size()), num_experts)}, at::kLong);
  int64_t* to = told.mutable_data_ptr<int64_t>();
  for (int rank = 0; rank < num_ranks; ++rank) {
    *to++ = num_tokens;
    for (const SliceSource& slice : slices) {
      *to++ = slice.send_tokens[static_cast<size_t>(rank)];
      to = std::copy_n(slice.counts_E.begin() + rank * num_experts, num_experts, to);
    }
  }
  return told;
}

// One chunk's exchange of one kind of rows. Owns: nothing; `from` and `to` outlive it.
std::unique_ptr<comm::Work> post(const ChunkRows& rows, bool stays, const at::Tensor& from, const at::Tensor& to,
                                 comm::Group& ep, std::string_view tag) {
  const StageTimer timer(Stage::kExchange);
  const int64_t row_bytes = static_cast<int64_t>(from.element_size()) * (from.dim() > 1 ? from.size(1) : 1);
  const auto* source = static_cast<const std::byte*>(from.const_data_ptr()) + rows.send_begin * row_bytes;
  std::byte* target = static_cast<std::byte*>(to.mutable_data_ptr()) + rows.recv_begin * row_bytes;
  if (!stays) {
    return ep.all_to_all_async({.send = source,
                                .send_counts = rows.send_counts,
                                .recv = target,
                                .recv_counts = rows.recv_counts,
                                .row_bytes = row_bytes},
                               tag);
  }
  const int64_t bytes = rows.send_counts[static_cast<size_t>(ep.rank())] * row_bytes;
  if (bytes > 0) std::memcpy(target, source, static_cast<size_t>(bytes));
  return nullptr;
}

ChunkRows reversed(const ChunkRows& rows) {
  return {rows.recv_begin, rows.send_begin, rows.recv_counts, rows.send_counts};
}

void wait(const std::unique_ptr<comm::Work>& work) {
  const StageTimer timer(Stage::kExchange);
  if (work) work->wait();
}

// The slices of this rank's tokens, and what all of them together look like.
class SlicePlanner {
 public:
  SlicePlanner(const StepContext& context, const ChunkRule& rule)
      : context_(context),
        rule_(rule),
        cut_(rule.cut),
        ids_(values_of<int64_t>(context.routing.ids_TK)),
        // With one choice a token both are the same rows, and by choice nothing needs to be told of them.
        token_rows_(context.options.dedup && context.routing.ids_TK.size(1) > 1 ? TokenRows::kDedup
                                                                                : TokenRows::kByChoice) {
    const int64_t num_tokens = context.routing.ids_TK.size(0);
    Routing& routing = context_.routing;
    sources_ = slices(rule.slices);
    if (!routing.chunk_counts.defined()) {
      const at::Tensor told = tell_counts(sources_, num_tokens, context.num_local_experts, context.ep.size());
      routing.chunk_counts = exchange_counts(told);
    }
    const SliceCounts counts(routing.chunk_counts, context.num_local_experts);
    const int count = choose_cut(counts.tokens());
    if (count < rule.slices) sources_ = slices(count);
    for (int slice = 0; slice < count; ++slice) {
      arrivals_.push_back(counts.arrival(slice * rule.slices / count, (slice + 1) * rule.slices / count));
    }
    if (token_rows_ == TokenRows::kDedup) tell_token_rows();
    keep_totals(counts.arrival(0, rule.slices));
  }

  ChunkPlan plan() const {
    return make_chunk_plan(sources_, arrivals_, cut_, token_rows_, context_.routing.ids_TK.size(0), context_.ep.rank());
  }

 private:
  // How many slices, and whether ranks come one by one, so that a chunk is worth it; the same on all ranks.
  int choose_cut(const std::vector<int64_t>& tokens_S) {
    int count = rule_.slices;
    const int64_t most = *std::max_element(tokens_S.begin(), tokens_S.end());
    while (count > 1 && most < count * rule_.min_slice_tokens) count /= 2;
    const int64_t rows =
        std::accumulate(tokens_S.begin(), tokens_S.end(), int64_t{0}) * context_.routing.ids_TK.size(1);
    const int64_t num_experts = context_.num_local_experts * context_.ep.size();
    if (rows < rule_.min_expert_rows * num_experts * context_.ep.size()) cut_ = ChunkCut::kSlices;
    const bool is_whole = count == 1 && cut_ == ChunkCut::kSlices;
    if (is_whole && rule_.tell_whole != nullptr &&
        context_.ep.members()[static_cast<size_t>(context_.ep.rank())] == 0) {
      rule_.tell_whole();
    }
    return count;
  }

  std::vector<SliceSource> slices(int count) const {
    const int64_t top_k = context_.routing.ids_TK.size(1);
    const int64_t num_tokens = context_.routing.ids_TK.size(0);
    const int64_t num_experts = context_.num_local_experts * context_.ep.size();
    std::vector<SliceSource> result;
    for (int slice = 0; slice < count; ++slice) {
      const int64_t begin = num_tokens * slice / count;
      const int64_t end = num_tokens * (slice + 1) / count;
      result.push_back(make_slice_source(
          ids_.subspan(static_cast<size_t>(begin * top_k), static_cast<size_t>((end - begin) * top_k)), top_k, begin,
          num_experts, context_.ep.size(), token_rows_));
    }
    return result;
  }

  at::Tensor exchange_counts(const at::Tensor& told) const {
    at::Tensor counts = at::empty_like(told);
    const std::vector<int64_t> one_each(static_cast<size_t>(context_.ep.size()), 1);
    wait(post({0, 0, one_each, one_each}, false, told, counts, context_.ep, "moe counts"));
    return counts;
  }

  void tell_token_rows() {
    Routing& routing = context_.routing;
    if (routing.arrived_rows.empty()) exchange_token_rows();
    for (size_t slice = 0; slice < arrivals_.size(); ++slice) {
      const std::span<const int32_t> rows = values_of<int32_t>(routing.arrived_rows[slice]);
      arrivals_[slice].token_of_row.assign(rows.begin(), rows.end());
    }
  }

  void exchange_token_rows() {
    std::vector<std::unique_ptr<comm::Work>> works;
    std::vector<at::Tensor> sent;
    for (size_t slice = 0; slice < sources_.size(); ++slice) {
      const SliceSource& source = sources_[slice];
      sent.push_back(at::empty({static_cast<int64_t>(source.token_of_row.size())}, at::kInt));
      std::copy(source.token_of_row.begin(), source.token_of_row.end(), sent.back().mutable_data_ptr<int32_t>());
      const std::vector<int64_t> recv = sum_parts(arrivals_[slice].counts_SE, context_.ep.size());
      int64_t num_rows = 0;
      for (const int64_t rows : recv) num_rows += rows;
      at::Tensor arrived = at::empty({num_rows}, at::kInt);
      wait(post({0, 0, source.send_rows, recv}, false, sent.back(), arrived, context_.ep, "moe token rows"));
      context_.routing.arrived_rows.push_back(std::move(arrived));
    }
  }

  void keep_totals(const SliceArrival& all) const {
    Routing& routing = context_.routing;
    if (routing.tokens_per_source_SE.defined()) return;
    routing.tokens_per_source_SE = at::empty({context_.ep.size(), context_.num_local_experts}, at::kLong);
    std::copy(all.counts_SE.begin(), all.counts_SE.end(), routing.tokens_per_source_SE.mutable_data_ptr<int64_t>());
    routing.recv_counts = sum_parts(all.counts_SE, context_.ep.size());
    routing.send_counts.assign(static_cast<size_t>(context_.ep.size()), 0);
    for (const SliceSource& source : sources_) {
      for (size_t rank = 0; rank < source.send_rows.size(); ++rank) routing.send_counts[rank] += source.send_rows[rank];
    }
  }

  const StepContext& context_;
  const ChunkRule& rule_;
  ChunkCut cut_;
  std::span<const int64_t> ids_;
  TokenRows token_rows_;
  std::vector<SliceSource> sources_;
  std::vector<SliceArrival> arrivals_;
};

ChunkPlan plan_chunks(const StepContext& context, const ChunkRule& rule) {
  const StageTimer timer(Stage::kPlan);
  return SlicePlanner(context, rule).plan();
}

class ChunkStep : public DispatchStep {
 public:
  ChunkStep(const StepContext& context, const ChunkRule& rule)
      : num_tokens_(context.routing.ids_TK.size(0)),
        top_k_(context.routing.ids_TK.size(1)),
        plan_(plan_chunks(context, rule)),
        ep_(context.ep),
        mlp_(context.mlp),
        traffic_(context.traffic) {}

  at::Tensor forward(const at::Tensor& tokens_TH, const at::Tensor& routing_TK, const ExpertWeights& weights,
                     std::vector<at::Tensor>& kept, const Beside& beside) override {
    const int64_t hidden = tokens_TH.size(1);
    const at::ScalarType dtype = tokens_TH.scalar_type();
    const at::Tensor sent = select_rows(tokens_TH, plan_.sent_tokens);
    const at::Tensor arrived = ops::new_tensor({plan_.num_token_rows, hidden}, dtype);
    const ExpertForward result{ops::new_tensor({plan_.num_rows, hidden}, dtype),
                               ops::new_tensor({plan_.num_rows, weights.gate_up_proj.size(1)}, dtype)};
    const RoutingWeights routing(*this, routing_TK);
    Results results(*this, result.y_RH, plan_.is_dedup ? routing.arrived() : at::Tensor());
    kept = {arrived, result.gate_up_R2I, routing.arrived()};
    Works there, there_routing, back;  // last: they end before the buffers do
    for (const Chunk& chunk : plan_.chunks) {
      there.push_back(post_tokens(chunk, sent, arrived, "moe dispatch"));
      there_routing.push_back(routing.post(chunk, "moe dispatch weights"));
    }
    beside();
    for (size_t i = 0; i < plan_.chunks.size(); ++i) {
      const Chunk& chunk = plan_.chunks[i];
      wait(there[i]);
      wait(there_routing[i]);
      timed(Stage::kExperts, [&] {
        mlp_.forward_into(arrived, rows_of(chunk.lists), weights, {result.y_RH, acts_of(result.gate_up_R2I, chunk)});
      });
      back.push_back(results.post_back(chunk, "moe combine"));
    }
    for (const auto& work : back) wait(work);
    return results.combine(routing_TK);
  }

  StepGrads backward(const at::Tensor& grad_TH, const at::Tensor& /*routing_TK*/, const ExpertWeights& weights,
                     const std::vector<at::Tensor>& kept, const ExpertGradNeeds& needs, const Beside& beside) override {
    Backward run(*this, grad_TH, weights, kept, needs);
    beside();
    // Where nothing is on its way meanwhile, the two halves are better one: an expert's rows stay in the cache.
    return plan_.chunks.size() == 1 && ep_.shares_memory() ? run.whole() : run.in_halves();
  }

 private:
  using Works = std::vector<std::unique_ptr<comm::Work>>;

  // The routing weight of each row, on its way to the experts; kept there for the backward.
  class RoutingWeights {
   public:
    RoutingWeights(const ChunkStep& step, const at::Tensor& routing_TK)
        : step_(step),
          sent_(select_rows(routing_TK.view({-1}), step.plan_.choice_of_row)),
          arrived_(ops::new_tensor({step.plan_.num_rows}, at::kFloat)) {}

    std::unique_ptr<comm::Work> post(const Chunk& chunk, std::string_view tag) const {
      return moe::post(chunk.rows, chunk.stays, sent_, arrived_, step_.ep_, tag);
    }
    const at::Tensor& arrived() const { return arrived_; }

   private:
    const ChunkStep& step_;
    at::Tensor sent_, arrived_;
  };

  // Rows of results on their way back. Where tokens travel once, their rows at a rank are summed up there, in fp32 and
  // times weights_R; else each row returns, and is weighted where it belongs.
  class Results {
   public:
    Results(const ChunkStep& step, at::Tensor rows_RH, at::Tensor weights_R)
        : step_(step), rows_RH_(std::move(rows_RH)), weights_R_(std::move(weights_R)) {
      const int64_t width = rows_RH_.size(1);
      if (plan().is_dedup) sums_ = ops::new_tensor({plan().num_token_rows, width}, rows_RH_.scalar_type());
      const std::vector<int64_t>& returning = plan().is_dedup ? plan().sent_tokens : plan().choice_of_row;
      returned_ = ops::new_tensor({static_cast<int64_t>(returning.size()), width}, rows_RH_.scalar_type());
    }

    std::unique_ptr<comm::Work> post_back(const Chunk& chunk, std::string_view tag) const {
      step_.count(chunk.tokens.recv_counts, chunk.rows.recv_counts, rows_RH_);
      if (!plan().is_dedup) return post(reversed(chunk.rows), chunk.stays, rows_RH_, returned_, step_.ep_, tag);
      const int64_t begin = chunk.tokens.recv_begin;
      const int64_t end = std::accumulate(chunk.tokens.recv_counts.begin(), chunk.tokens.recv_counts.end(), begin);
      sum_rows(rows_RH_, plan().rows_to_token_rows, weights_R_, begin, end, sums_);
      return post(reversed(chunk.tokens), chunk.stays, sums_, returned_, step_.ep_, tag);
    }

    // routing_TK: weights of rows that returned one by one; undefined: 1.
    at::Tensor combine(const at::Tensor& routing_TK) const {
      if (!plan().is_dedup) {
        return combine_rows(returned_, plan().row_of_choice, step_.num_tokens_, step_.top_k_, routing_TK);
      }
      at::Tensor out_TH = ops::new_tensor({step_.num_tokens_, returned_.size(1)}, returned_.scalar_type());
      sum_rows(returned_, plan().token_rows_to_tokens, {}, 0, step_.num_tokens_, out_TH);
      return out_TH;
    }

   private:
    const ChunkPlan& plan() const { return step_.plan_; }

    const ChunkStep& step_;
    at::Tensor rows_RH_, weights_R_, sums_, returned_;
  };

  class Backward {
   public:
    Backward(const ChunkStep& step, const at::Tensor& grad_TH, const ExpertWeights& weights,
             const std::vector<at::Tensor>& kept, const ExpertGradNeeds& needs)
        : step_(step),
          weights_(weights),
          kept_(kept),
          needs_(needs),
          sent_grad_(select_rows(grad_TH, plan().sent_tokens)),
          grad_(ops::new_tensor({plan().num_token_rows, grad_TH.size(1)}, grad_TH.scalar_type())),
          all_rows_(rows_of(plan().all)),
          grads_(new_expert_grads(input(kept[1], all_rows_))) {
      if (needs.x) grad_x_.emplace(step, grads_.x_RH, at::Tensor());
      if (needs.weights) {
        returned_routing_ = ops::new_tensor({static_cast<int64_t>(plan().choice_of_row.size())}, at::kFloat);
      }
      for (const Chunk& chunk : plan().chunks) {
        there_.push_back(step_.post_tokens(chunk, sent_grad_, grad_, "moe grad dispatch"));
      }
    }

    StepGrads whole() {
      const Chunk& chunk = plan().chunks[0];
      wait(there_[0]);
      const ExpertRows rows = rows_of(chunk.lists);
      run_experts(input(kept_[1], rows));
      send_back(chunk);
      return results();
    }

    StepGrads in_halves() {
      const ExpertActGrads acts = new_act_grads(weights_, plan().num_rows, needs_);
      for (size_t i = 0; i < plan().chunks.size(); ++i) {
        const Chunk& chunk = plan().chunks[i];
        wait(there_[i]);
        const ExpertRows rows = rows_of(chunk.lists);
        const ExpertActGrads own{acts_of(acts.weighted_act_RI, chunk), acts_of(acts.grad_gate_up_R2I, chunk)};
        const at::Tensor gate_up = acts_of(kept_[1], chunk);
        ExpertBackwardInput in = input(gate_up, rows);
        in.half = ExpertHalf::kRows;
        in.acts = &own;
        run_experts(in);
        send_back(chunk);
      }
      if (needs_.gate_up_proj || needs_.down_proj) {
        ExpertBackwardInput in = input(kept_[1], all_rows_);
        in.half = ExpertHalf::kWeights;
        in.acts = &acts;
        run_experts(in);
      }
      return results();
    }

   private:
    const ChunkPlan& plan() const { return step_.plan_; }

    ExpertBackwardInput input(const at::Tensor& gate_up_R2I, const ExpertRows& rows) const {
      return {grad_, kept_[0], gate_up_R2I, kept_[2], rows, weights_, needs_};
    }

    void run_experts(const ExpertBackwardInput& in) const {
      timed(Stage::kExperts, [&] { step_.mlp_.backward_into(in, grads_); });
    }

    void send_back(const Chunk& chunk) {
      if (grad_x_) back_.push_back(grad_x_->post_back(chunk, "moe grad combine"));
      if (needs_.weights) {
        back_.push_back(post(reversed(chunk.rows), chunk.stays, grads_.weights_R, returned_routing_, step_.ep_,
                             "moe grad weights back"));
      }
    }

    StepGrads results() const {
      for (const auto& work : back_) wait(work);
      StepGrads result{{}, {}, grads_.gate_up_proj, grads_.down_proj};
      if (grad_x_) result.tokens_TH = grad_x_->combine({});
      if (needs_.weights) {
        result.routing_TK =
            select_rows(returned_routing_, plan().row_of_choice).view({step_.num_tokens_, step_.top_k_});
      }
      return result;
    }

    const ChunkStep& step_;
    const ExpertWeights& weights_;
    const std::vector<at::Tensor>& kept_;
    const ExpertGradNeeds& needs_;
    at::Tensor sent_grad_, grad_;
    ExpertRows all_rows_;
    ExpertGrads grads_;
    std::optional<Results> grad_x_;
    at::Tensor returned_routing_;
    Works there_, back_;  // last: they end before the buffers do
  };

  static ExpertRows rows_of(const ExpertLists& lists) {
    return {.offsets = lists.offsets, .in_rows = lists.in_rows, .out_rows = lists.out_rows, .act_rows = lists.act_rows};
  }

  // A chunk's rows of activations that lie chunk after chunk.
  static at::Tensor acts_of(const at::Tensor& acts, const Chunk& chunk) {
    if (!acts.defined()) return {};
    return acts.narrow(0, chunk.first_act, static_cast<int64_t>(chunk.lists.out_rows.size()));
  }

  // Token rows to or from other ranks, rows like those of `like`, and what they would be by choice.
  void count(std::span<const int64_t> token_rows, std::span<const int64_t> rows, const at::Tensor& like) const {
    const auto others = [&](std::span<const int64_t> counts) {
      return std::accumulate(counts.begin(), counts.end(), -counts[static_cast<size_t>(ep_.rank())]);
    };
    traffic_->add(others(token_rows), others(rows), like);
  }

  std::unique_ptr<comm::Work> post_tokens(const Chunk& chunk, const at::Tensor& from, const at::Tensor& to,
                                          std::string_view tag) const {
    count(chunk.tokens.send_counts, chunk.rows.send_counts, from);
    return post(chunk.tokens, chunk.stays, from, to, ep_, tag);
  }

  int64_t num_tokens_, top_k_;
  ChunkPlan plan_;
  comm::Group& ep_;
  const ExpertMlp& mlp_;
  std::shared_ptr<TokenTraffic> traffic_;
};

}  // namespace

std::unique_ptr<DispatchStep> make_chunk_step(const StepContext& context, const ChunkRule& rule) {
  return std::make_unique<ChunkStep>(context, rule);
}

}  // namespace expertmesh::moe
