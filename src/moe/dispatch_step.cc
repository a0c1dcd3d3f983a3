// SPDX-License-Identifier: Apache-2.0
#include "moe/dispatch_step.h"

#include <torch/csrc/autograd/custom_function.h>

#include <utility>

#include "base/check.h"
#include "moe/stage_clock.h"
#include "moe/stages.h"
#include "ops/local_graph.h"

namespace expertmesh::moe {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

const ExpertMlp& expert_mlp_for(const Routing& routing, at::ScalarType dtype) {
  const ExpertMlp& few = few_rows_expert_mlp();
  return routing.is_generating && few.supports(dtype) ? few : choose_expert_mlp(dtype);
}

// Experts read the tokens' own rows.
class LocalStep : public DispatchStep {
 public:
  explicit LocalStep(const StepContext& context)
      : plan_(plan_dispatch(context.routing, context.num_local_experts, context.ep)), mlp_(context.mlp) {}

  at::Tensor forward(const at::Tensor& tokens_TH, const at::Tensor& routing_TK, const ExpertWeights& weights,
                     std::vector<at::Tensor>& kept, const Beside& /*beside*/) override {
    const ExpertForward result = timed(Stage::kExperts, [&] { return mlp_.forward(tokens_TH, plan_.rows(), weights); });
    kept = {tokens_TH, result.gate_up_R2I};
    return combine(plan_, result.y_RH, routing_TK);
  }

  StepGrads backward(const at::Tensor& grad_TH, const at::Tensor& routing_TK, const ExpertWeights& weights,
                     const std::vector<at::Tensor>& kept, const ExpertGradNeeds& needs,
                     const Beside& /*beside*/) override {
    const at::Tensor routing_C = routing_TK.view({-1});
    const ExpertRows rows = plan_.rows();
    const ExpertGrads grads = timed(
        Stage::kExperts, [&] { return mlp_.backward({grad_TH, kept[0], kept[1], routing_C, rows, weights, needs}); });
    return {needs.x ? combine(plan_, grads.x_RH, {}) : at::Tensor(),
            needs.weights ? grads.weights_R.view({plan_.num_tokens, plan_.top_k}) : at::Tensor(), grads.gate_up_proj,
            grads.down_proj};
  }

 private:
  DispatchPlan plan_;
  const ExpertMlp& mlp_;
};

// Local work with a graph of its own, which runs when its turn comes in the middle of a step.
class LocalRun {
 public:
  LocalRun(LocalWork work, const at::Tensor& hidden_TH, bool saves) : work_(std::move(work)), saves_(saves) {
    hidden_TH_ = hidden_TH.detach().set_requires_grad(saves && hidden_TH.requires_grad());
  }

  void forward() {
    if (!work_ || out_TH_.defined()) return;
    const at::AutoGradMode graph(saves_);
    out_TH_ = work_(hidden_TH_);
    work_ = nullptr;  // what it refers to may end before the graph
  }

  // Leaves the gradients of the work's own leaves with them.
  void backward(const at::Tensor& grad_TH) {
    if (is_done_ || !out_TH_.defined() || !out_TH_.requires_grad() || !grad_TH.defined()) return;
    is_done_ = true;
    ops::run_backward(out_TH_, grad_TH);
  }

  bool has_run() const { return out_TH_.defined(); }
  at::Tensor output() const { return out_TH_.detach(); }
  at::Tensor grad_hidden() const { return hidden_TH_.grad(); }

 private:
  LocalWork work_;
  bool saves_;
  at::Tensor hidden_TH_, out_TH_;
  bool is_done_ = false;
};

struct StepHolder : torch::CustomClassHolder {
  std::unique_ptr<DispatchStep> step;
  std::unique_ptr<LocalRun> local;
};

const char* const kStepKey = "step";

class StepFunction : public torch::autograd::Function<StepFunction> {
 public:
  // hidden_TH twice: the gradient of local work is added to by that of the experts, as without this function.
  static variable_list forward(AutogradContext* ctx, const at::Tensor& /*local_TH*/, const at::Tensor& hidden_TH,
                               const at::Tensor& weights_TK, const at::Tensor& gate_up_proj,
                               const at::Tensor& down_proj, const c10::intrusive_ptr<StepHolder>& holder, bool saves) {
    const at::Tensor routing_TK = weights_TK.contiguous();
    variable_list kept;
    LocalRun& local = *holder->local;
    variable_list out{holder->step->forward(hidden_TH.contiguous(), routing_TK, {gate_up_proj, down_proj}, kept,
                                            [&] { local.forward(); })};
    local.forward();
    if (local.has_run()) out.push_back(local.output());
    if (saves) {
      kept.insert(kept.end(), {routing_TK, gate_up_proj, down_proj});
      ctx->save_for_backward(kept);
      ctx->saved_data[kStepKey] = c10::IValue::make_capsule(holder);
    }
    return out;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grad_outputs) {
    const auto holder = c10::static_intrusive_pointer_cast<StepHolder>(ctx->saved_data[kStepKey].toCapsule());
    variable_list kept = ctx->get_saved_variables();
    const size_t own = kept.size() - 3;
    const at::Tensor routing_TK = kept[own];
    const ExpertWeights weights{kept[own + 1], kept[own + 2]};
    kept.resize(own);
    const ExpertGradNeeds needs{ctx->needs_input_grad(1), ctx->needs_input_grad(2), ctx->needs_input_grad(3),
                                ctx->needs_input_grad(4)};
    LocalRun& local = *holder->local;
    const auto run_local = [&] { local.backward(grad_outputs.back()); };
    const StepGrads grads =
        holder->step->backward(grad_outputs[0].contiguous(), routing_TK, weights, kept, needs, run_local);
    run_local();
    return {local.grad_hidden(), grads.tokens_TH, grads.routing_TK, grads.gate_up_proj,
            grads.down_proj,     at::Tensor(),    at::Tensor()};
  }
};

class StepDispatcher : public Dispatcher {
 public:
  StepDispatcher(std::string_view name, const DispatcherOptions& options, MakeStep make)
      : name_(name), options_(options), make_(make) {}

  std::string_view name() const override { return name_; }
  const DispatcherOptions& options() const override { return options_; }
  TokenTraffic traffic() const override { return *traffic_; }

 protected:
  Output run(const at::Tensor& hidden_TH, const at::Tensor& weights_TK, Routing& routing, const ExpertWeights& weights,
             comm::Group& ep, const LocalWork& local) const override {
    EXPERTMESH_CHECK(hidden_TH.scalar_type() == weights.gate_up_proj.scalar_type() &&
                         hidden_TH.scalar_type() == weights.down_proj.scalar_type(),
                     "hidden and expert weights differ in dtype");
    EXPERTMESH_CHECK(weights_TK.scalar_type() == at::kFloat && weights_TK.sizes() == routing.ids_TK.sizes(),
                     "routing weights are fp32, one per choice");
    EXPERTMESH_CHECK(routing.ids_TK.size(0) == hidden_TH.size(0), "routing of {} tokens for {}", routing.ids_TK.size(0),
                     hidden_TH.size(0));
    const bool saves =
        at::GradMode::is_enabled() && (hidden_TH.requires_grad() || weights_TK.requires_grad() ||
                                       weights.gate_up_proj.requires_grad() || weights.down_proj.requires_grad());
    // Without a graph of the step there is nobody to run the local one backward.
    const bool is_beside = local && (saves || !at::GradMode::is_enabled());
    const StepContext context{routing,  weights.gate_up_proj.size(0),
                              ep,       expert_mlp_for(routing, hidden_TH.scalar_type()),
                              options_, traffic_};
    auto holder = c10::make_intrusive<StepHolder>();
    if (ep.size() == 1) {
      holder->step = std::make_unique<LocalStep>(context);
    } else {
      holder->step = make_(context);
    }
    holder->local = std::make_unique<LocalRun>(is_beside ? local : LocalWork(), hidden_TH, saves);
    const variable_list out =
        StepFunction::apply(hidden_TH, hidden_TH, weights_TK, weights.gate_up_proj, weights.down_proj, holder, saves);
    if (!local) return {out[0], {}};
    return {out[0], is_beside ? out[1] : local(hidden_TH)};
  }

 private:
  std::string_view name_;
  DispatcherOptions options_;
  MakeStep make_;
  std::shared_ptr<TokenTraffic> traffic_ = std::make_shared<TokenTraffic>();
};

}  // namespace

void TokenTraffic::add(int64_t token_rows, int64_t choices, const at::Tensor& rows_RH) {
  const int64_t row_bytes = rows_RH.size(1) * static_cast<int64_t>(rows_RH.element_size());
  bytes += token_rows * row_bytes;
  bytes_by_choice += choices * row_bytes;
}

std::unique_ptr<Dispatcher> make_step_dispatcher(std::string_view name, const DispatcherOptions& options,
                                                 MakeStep make) {
  return std::make_unique<StepDispatcher>(name, options, make);
}

}  // namespace expertmesh::moe
