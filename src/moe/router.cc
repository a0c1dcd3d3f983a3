// SPDX-License-Identifier: Apache-2.0
#include "moe/router.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/softmax.h>

#include "base/check.h"

namespace expertmesh::moe {

Router::Router(std::string path, RouterOptions options)
    : Module(std::move(path)),
      options_(options),
      weight_(add_parameter("weight", {options.num_experts, options.hidden})),
      load_(options.num_experts) {}

at::Tensor Router::forward(const at::Tensor& hidden_TH, Routing& routing, const ChoiceRule& rule,
                           BalanceTerm* balance) const {
  enter();
  EXPERTMESH_CHECK(hidden_TH.dim() == 2 && hidden_TH.size(1) == options_.hidden, "{}: hidden {} columns", path(),
                   options_.hidden);
  const at::Tensor logits_TE = at::mm(hidden_TH.to(at::kFloat), weight_.value().to(at::kFloat).t());
  const at::Tensor probs_TE = at::softmax(logits_TE, -1);
  if (!routing.decided) decide(probs_TE.detach(), routing, rule, balance);
  if (balance != nullptr && probs_TE.requires_grad()) balance->probs_TE = probs_TE;
  EXPERTMESH_CHECK(routing.ids_TK.size(0) == hidden_TH.size(0), "{}: routing of {} tokens for {}", path(),
                   routing.ids_TK.size(0), hidden_TH.size(0));
  const at::Tensor weights_TK = probs_TE.gather(1, routing.ids_TK);
  return options_.norm_topk_prob ? weights_TK / weights_TK.sum(-1, /*keepdim=*/true) : weights_TK;
}

void Router::decide(const at::Tensor& probs_TE, Routing& routing, const ChoiceRule& rule,
                    const BalanceTerm* balance) const {
  const int64_t num_tokens = probs_TE.size(0);
  routing.ids_TK = at::empty({num_tokens, options_.top_k}, at::kLong);
  const std::span<int64_t> ids(routing.ids_TK.mutable_data_ptr<int64_t>(), static_cast<size_t>(routing.ids_TK.numel()));
  const at::Tensor contiguous = probs_TE.contiguous();
  const std::span<const float> probs(contiguous.const_data_ptr<float>(), static_cast<size_t>(contiguous.numel()));
  if (rule.balanced) {
    select_balanced(options_.num_experts, options_.top_k, ids);
  } else {
    select_top_k(probs, options_.num_experts, options_.top_k, rule.excluded_in(num_decisions_, options_.num_experts),
                 ids);
  }
  routing.decided = true;
  load_.add(ids);
  if (balance != nullptr && balance->sums != nullptr) balance->sums->add(balance->group, ids, probs);
  ++num_decisions_;
}

}  // namespace expertmesh::moe
