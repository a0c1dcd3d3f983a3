// SPDX-License-Identifier: Apache-2.0
// Exchange and products as one. Where ranks share memory there is no exchange: the products read token and gradient
// rows where their ranks have them and write results to where those ranks sum them up, within one window a direction.
// Elsewhere the exchange goes rank by rank: the products of what has arrived run while the rest is on its way, and
// their results return meanwhile.
#include "moe/dispatch_mc2.h"

#include <array>
#include <cstdint>
#include <mutex>
#include <numeric>
#include <utility>

#include "base/log.h"
#include "moe/chunk_step.h"
#include "moe/stage_clock.h"
#include "moe/stages.h"
#include "ops/new_tensor.h"

namespace expertmesh::moe {
namespace {

// Rows of all ranks as lists for the products: elements behind one base, which is any address.
class Addresses {
 public:
  Addresses(int64_t width, at::ScalarType dtype)
      : width_(width),
        dtype_(dtype),
        element_bytes_(static_cast<int64_t>(c10::elementSize(dtype))),
        base_(ops::new_tensor({1}, dtype)) {}

  at::Tensor view() const { return rows_anywhere(base_.const_data_ptr(), width_, dtype_); }
  // Row `row` of a buffer of some rank.
  int64_t of(const void* buffer, int64_t row) const {
    const auto address = reinterpret_cast<intptr_t>(buffer) + row * width_ * element_bytes_;
    return (address - reinterpret_cast<intptr_t>(base_.const_data_ptr())) / element_bytes_;
  }

 private:
  int64_t width_;
  at::ScalarType dtype_;
  int64_t element_bytes_;
  at::Tensor base_;
};

void* address_of(const at::Tensor& tensor) { return tensor.defined() ? tensor.mutable_data_ptr() : nullptr; }

class WindowStep : public DispatchStep {
 public:
  explicit WindowStep(const StepContext& context)
      : plan_(plan_dispatch(context.routing, context.num_local_experts, context.ep)),
        counts_SE_(context.routing.tokens_per_source_SE),
        ep_(context.ep),
        mlp_(context.mlp) {}

  at::Tensor forward(const at::Tensor& tokens_TH, const at::Tensor& routing_TK, const ExpertWeights& weights,
                     std::vector<at::Tensor>& kept, const Beside& /*beside*/) override {
    const at::Tensor y_CH = new_choice_rows(tokens_TH);
    const at::Tensor gate_up = ops::new_tensor({num_rows(), weights.gate_up_proj.size(1)}, tokens_TH.scalar_type());
    const std::array<void*, kNumPlanBuffers + 2> own{choices(), counts(), address_of(tokens_TH), address_of(y_CH)};
    const std::unique_ptr<comm::Window> window = open(own, "moe forward");
    const Addresses addresses(tokens_TH.size(1), tokens_TH.scalar_type());
    std::vector<int64_t> in_rows, out_rows;
    for_each_row(*window, [&](int source, int64_t choice) {
      in_rows.push_back(addresses.of(window->buffer(source, kNumPlanBuffers), choice / plan_.top_k));
      out_rows.push_back(addresses.of(window->buffer(source, kNumPlanBuffers + 1), choice));
    });
    timed(Stage::kExperts, [&] {
      mlp_.forward_into(addresses.view(), {plan_.experts.offsets, in_rows, out_rows}, weights,
                        {addresses.view(), gate_up});
    });
    close(*window);
    kept = {tokens_TH, gate_up};
    return combine_rows(y_CH, {}, plan_.num_tokens, plan_.top_k, routing_TK);
  }

  StepGrads backward(const at::Tensor& grad_TH, const at::Tensor& routing_TK, const ExpertWeights& weights,
                     const std::vector<at::Tensor>& kept, const ExpertGradNeeds& needs,
                     const Beside& /*beside*/) override {
    enum Buffer : size_t { kTokens = kNumPlanBuffers, kGrad, kRouting, kGradX, kGradRouting, kNumBuffers };
    const at::Tensor grad_x_CH = needs.x ? new_choice_rows(grad_TH) : at::Tensor();
    StepGrads result;
    if (needs.weights) result.routing_TK = ops::new_tensor({plan_.num_tokens, plan_.top_k}, at::kFloat);
    const std::array<void*, kNumBuffers> own{choices(),
                                             counts(),
                                             address_of(kept[0]),
                                             address_of(grad_TH),
                                             address_of(routing_TK),
                                             address_of(grad_x_CH),
                                             address_of(result.routing_TK)};
    const std::unique_ptr<comm::Window> window = open(own, "moe backward");
    const Addresses addresses(grad_TH.size(1), grad_TH.scalar_type());
    std::vector<int64_t> in_rows, grad_rows, out_rows, weight_rows(static_cast<size_t>(num_rows()));
    std::iota(weight_rows.begin(), weight_rows.end(), 0);
    const at::Tensor routing_R = ops::new_tensor({num_rows()}, at::kFloat);
    float* routing = routing_R.mutable_data_ptr<float>();
    for_each_row(*window, [&](int source, int64_t choice) {
      in_rows.push_back(addresses.of(window->buffer(source, kTokens), choice / plan_.top_k));
      grad_rows.push_back(addresses.of(window->buffer(source, kGrad), choice / plan_.top_k));
      if (needs.x) out_rows.push_back(addresses.of(window->buffer(source, kGradX), choice));
      *routing++ = static_cast<const float*>(window->buffer(source, kRouting))[choice];
    });
    const ExpertRows rows{plan_.experts.offsets, in_rows, out_rows, grad_rows, weight_rows};
    const ExpertGrads grads{needs.x ? addresses.view() : at::Tensor(),
                            needs.weights ? ops::new_tensor({num_rows()}, at::kFloat) : at::Tensor(),
                            needs.gate_up_proj ? ops::new_like(weights.gate_up_proj) : at::Tensor(),
                            needs.down_proj ? ops::new_like(weights.down_proj) : at::Tensor()};
    timed(Stage::kExperts, [&] {
      mlp_.backward_into({addresses.view(), addresses.view(), kept[1], routing_R, rows, weights, needs}, grads);
    });
    if (needs.weights) {
      const float* grad_routing = grads.weights_R.const_data_ptr<float>();
      for_each_row(*window, [&](int source, int64_t choice) {
        static_cast<float*>(window->buffer(source, kGradRouting))[choice] = *grad_routing++;
      });
    }
    close(*window);
    if (needs.x) result.tokens_TH = combine_rows(grad_x_CH, {}, plan_.num_tokens, plan_.top_k, {});
    result.gate_up_proj = grads.gate_up_proj;
    result.down_proj = grads.down_proj;
    return result;
  }

 private:
  // In every window first: the choices in the order of experts, and how many rows go to each rank.
  static constexpr size_t kNumPlanBuffers = 2;
  void* choices() { return plan_.source.choice_of_row.data(); }
  void* counts() { return plan_.send_counts.data(); }

  std::unique_ptr<comm::Window> open(std::span<void* const> own, std::string_view tag) {
    const StageTimer timer(Stage::kExchange);
    return ep_.open_window(own, tag);
  }
  static void close(comm::Window& window) {
    const StageTimer timer(Stage::kExchange);
    window.close();
  }

  int64_t num_rows() const { return static_cast<int64_t>(plan_.experts.arrival_rows.size()); }

  // A row of the results of each choice.
  at::Tensor new_choice_rows(const at::Tensor& like_TH) const {
    return ops::new_tensor({plan_.num_tokens * plan_.top_k, like_TH.size(1)}, like_TH.scalar_type());
  }

  // Calls visit(source, choice of the source) for this rank's rows in expert order, an expert's by source.
  template <typename Visit>
  void for_each_row(const comm::Window& window, const Visit& visit) const {
    const StageTimer timer(Stage::kPlan);
    std::vector<const int64_t*> next;
    for (int source = 0; source < ep_.size(); ++source) {
      const auto* choices = static_cast<const int64_t*>(window.buffer(source, 0));
      const auto* counts = static_cast<const int64_t*>(window.buffer(source, 1));
      next.push_back(choices + std::accumulate(counts, counts + ep_.rank(), int64_t{0}));
    }
    const auto num_experts = static_cast<int64_t>(plan_.experts.offsets.size()) - 1;
    const int64_t* counts_SE = counts_SE_.const_data_ptr<int64_t>();
    for (int64_t expert = 0; expert < num_experts; ++expert) {
      for (int source = 0; source < ep_.size(); ++source) {
        const int64_t* const end = next[static_cast<size_t>(source)] + counts_SE[source * num_experts + expert];
        for (const int64_t*& choice = next[static_cast<size_t>(source)]; choice != end; ++choice) {
          visit(source, *choice);
        }
      }
    }
  }

  DispatchPlan plan_;
  at::Tensor counts_SE_;
  comm::Group& ep_;
  const ExpertMlp& mlp_;
};

// Once in a process: it is the same in each layer and step.
void tell_one_piece() {
  static std::once_flag told;
  std::call_once(told, [] {
    base::log_info("mc2: fewer than {} rows an expert from each rank: the exchange stays in one piece",
                   kMinMc2PieceRows);
  });
}

constexpr ChunkRule kRankByRank{
    .cut = ChunkCut::kRanks, .min_expert_rows = kMinMc2PieceRows, .tell_whole = tell_one_piece};

}  // namespace

std::unique_ptr<Dispatcher> make_mc2_dispatcher(const DispatcherOptions& options) {
  return make_step_dispatcher("mc2", options, [](const StepContext& context) -> std::unique_ptr<DispatchStep> {
    const bool reads_anywhere = &context.mlp != &reference_expert_mlp();
    if (context.ep.shares_memory() && reads_anywhere) return std::make_unique<WindowStep>(context);
    return make_chunk_step(context, kRankByRank);
  });
}

}  // namespace expertmesh::moe
