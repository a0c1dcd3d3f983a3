// SPDX-License-Identifier: Apache-2.0
#include "train/sharded_model.h"

#include <algorithm>
#include <optional>
#include <unordered_set>

#include "base/check.h"
#include "base/error.h"
#include "base/log.h"
#include "train/kernels.h"

namespace expertmesh::train {
namespace {

std::vector<shard::Parameter*> without(const std::vector<shard::Parameter*>& all,
                                       const std::vector<shard::Parameter*>& excluded) {
  const std::unordered_set<shard::Parameter*> skip(excluded.begin(), excluded.end());
  std::vector<shard::Parameter*> rest;
  std::copy_if(all.begin(), all.end(), std::back_inserter(rest), [&](auto* p) { return !skip.contains(p); });
  return rest;
}

// Parameters of `pattern`'s modules, or the one parameter of that name.
bool selects(const std::string& pattern, const std::vector<shard::Module*>& modules,
             const shard::Parameter& parameter) {
  if (shard::matches_pattern(parameter.name(), pattern)) return true;
  return std::any_of(modules.begin(), modules.end(), [&](const shard::Module* module) {
    return parameter.name().starts_with(module->path() + ".") && shard::matches_pattern(module->path(), pattern);
  });
}

[[noreturn]] void refuse_pattern(const std::string& key, const std::string& pattern) {
  const std::string name = key.substr(key.rfind('.') + 1);
  throw base::make_error(base::Code::kConfig, "config/" + name, "\"{}\" matches nothing in the model", pattern)
      .at(key)
      .hint("Patterns match whole names: `*` any text, `{*}` one integer, for example model.layers.{*}.mlp.");
}

}  // namespace

ShardedModel::ShardedModel(std::unique_ptr<model::Model> model, const model::ModelSpec& spec,
                           std::shared_ptr<const comm::Meshes> meshes, const ShardingOptions& options)
    : model_(std::move(model)),
      meshes_(std::move(meshes)),
      parameters_(model_->parameters()),
      reshard_after_forward_(options.dist.reshard_after_forward) {
  choose_runtime(options);
  choose_trainable(options.trainable_modules);
  place(spec, options.dist);
  for (shard::Parameter* parameter : parameters_) {
    parameter->materialize(options.bf16 && !parameter->keep_fp32() ? at::kBFloat16 : at::kFloat);
  }
  make_units(options.dist);
}

void ShardedModel::choose_runtime(const ShardingOptions& options) {
  operators_ = choose_operators(options.kernel, options.attention);
  const model::Model::Sizes sizes = model_->sizes();
  runtime_.ops = &operators_;
  runtime_.chunk_size = options.kernel.chunk_size;
  runtime_.ep = meshes_->share(comm::Axis::kEp);
  const moe::Contender chosen = choose_dispatcher(options);
  runtime_.dispatcher = moe::make_dispatcher(chosen.name, chosen.options);
  runtime_.choice_rule =
      moe::make_choice_rule(options.debug_router, sizes.experts, sizes.experts_per_token, *runtime_.ep);
}

moe::Contender ShardedModel::choose_dispatcher(const ShardingOptions& options) {
  constexpr int64_t kMostTokens = 8192;  // what more of them cost goes up in step for all
  const config::Dispatcher asked = options.dist.ep_dispatcher;
  const std::optional<bool> dedup = options.dist.ep_dedup == config::Dedup::kAuto
                                        ? std::nullopt
                                        : std::optional(options.dist.ep_dedup == config::Dedup::kTrue);
  const bool shares_memory = runtime_.ep->shares_memory();
  if (asked != config::Dispatcher::kAuto) {
    const std::string_view name = config::choice_name(asked);
    if (dedup && !moe::has_dedup(name, shares_memory)) {
      throw base::make_error(base::Code::kConfig, "config/ep_dedup",
                             "ep_dedup {} has no effect with ep_dispatcher {} here: its ranks read each other's memory",
                             config::choice_name(options.dist.ep_dedup), name)
          .at("dist_config.ep_dedup")
          .hint("Leave it out.");
    }
    return {name, {.dedup = dedup.value_or(true)}};
  }
  const model::Model::Sizes sizes = model_->sizes();
  if (runtime_.ep->size() == 1 || sizes.moe_layers == 0) return {"eager"};  // nothing is exchanged
  const moe::LayerShape shape{.tokens = std::min(options.micro_batch_tokens, kMostTokens),
                              .hidden = sizes.hidden,
                              .width = sizes.moe_intermediate,
                              .experts = sizes.experts,
                              .top_k = sizes.experts_per_token,
                              .dtype = options.bf16 ? at::kBFloat16 : at::kFloat};
  const std::vector<moe::ContenderTime> times =
      moe::measure_dispatchers(shape, moe::distinct(moe::contenders(dedup, shares_memory), shape, shares_memory),
                               *runtime_.ep, meshes_->world(), moe::kAutoSeconds);
  const moe::Contender chosen = moe::fastest(times);
  if (meshes_->world().rank() == 0) {
    base::log_info("ep_dispatcher auto: {}; a layer forward and backward: {}", chosen.label(), moe::times_text(times));
  }
  return chosen;
}

void ShardedModel::choose_trainable(const std::vector<std::string>& patterns) {
  if (patterns.empty()) return;
  const std::vector<shard::Module*> modules = model_->modules();
  for (shard::Parameter* parameter : parameters_) parameter->set_trainable(false);
  for (const std::string& pattern : patterns) {
    bool any = false;
    for (shard::Parameter* parameter : parameters_) {
      if (!selects(pattern, modules, *parameter)) continue;
      parameter->set_trainable(true);
      any = true;
    }
    if (!any) refuse_pattern("trainable_modules", pattern);
  }
}

void ShardedModel::place(const model::ModelSpec& spec, const config::DistConfig& dist) {
  using comm::Axis;
  const auto world = meshes_->share(Axis::kWorld);
  if (dist.backend == config::DistBackend::kReplicated) {
    shard::replicate_all(*model_, world);
    return;
  }
  const bool has_expert_mesh = dist.backend == config::DistBackend::kFsdpTurbo;
  if (has_expert_mesh) {
    experts_ = shard::shard_experts(*model_, std::string(spec.expert_modules),
                                    {.ep = meshes_->share(Axis::kEp),
                                     .efsdp = meshes_->share(Axis::kEfsdp),
                                     .replicas = meshes_->share(Axis::kExpertReplicas)});
  }
  // Second, never before the line above: what the expert mesh owns is ignored here.
  shard::shard_outer(
      *model_,
      {.shard = meshes_->share(Axis::kMpShard), .replicate = meshes_->share(Axis::kMpReplicate), .world = world},
      experts_, has_expert_mesh, dist.fsdp_ignored_modules);
}

void ShardedModel::make_units(const config::DistConfig& dist) {
  const auto expert_mode = dist.fsdp_implementation == config::FsdpImplementation::kCustom
                               ? shard::GatherMode::kFlat
                               : shard::GatherMode::kPerParameter;
  std::vector<shard::Parameter*> in_layers;
  for (model::DecoderLayer* module : model_->layers()) {
    Layer layer{.module = module, .dense = nullptr, .experts = nullptr};
    std::vector<shard::Parameter*> all = module->parameters();
    in_layers.insert(in_layers.end(), all.begin(), all.end());
    std::vector<shard::Parameter*> experts;
    std::copy_if(all.begin(), all.end(), std::back_inserter(experts), [&](auto* p) { return experts_.contains(p); });
    layer.dense =
        std::make_unique<shard::Unit>(module->path(), without(all, experts), shard::GatherMode::kPerParameter, &pool_);
    if (!experts.empty()) {
      layer.experts = std::make_unique<shard::Unit>(module->path() + " experts", experts, expert_mode, &pool_);
    }
    layers_.push_back(std::move(layer));
  }
  root_ =
      std::make_unique<shard::Unit>("root", without(parameters_, in_layers), shard::GatherMode::kPerParameter, nullptr);

  for (const std::string& pattern : dist.hook_modules) {
    const auto modules = model_->modules();
    if (std::none_of(modules.begin(), modules.end(),
                     [&](const auto* module) { return shard::matches_pattern(module->path(), pattern); })) {
      refuse_pattern("dist_config.hook_modules", pattern);
    }
  }
  for (Layer& layer : layers_) hook_experts(layer, dist.hook_modules);
}

// The gather of a layer's experts is posted where a hook module is entered and completed at the experts themselves.
void ShardedModel::hook_experts(Layer& layer, const std::vector<std::string>& hook_modules) {
  if (layer.experts == nullptr) return;
  shard::Unit* unit = layer.experts.get();
  for (shard::Module* module : layer.module->modules()) {
    for (const std::string& pattern : hook_modules) {
      if (shard::matches_pattern(module->path(), pattern)) module->add_entry_hook([unit] { unit->unshard(); });
    }
  }
  layer.module->experts()->add_entry_hook([unit] { unit->wait(); });
}

void ShardedModel::finish_gradients() {
  root_->reduce_full_gradients();
  shard::finish_reductions(parameters_);
}

void ShardedModel::reshard_all() {
  for (Layer& layer : layers_) {
    layer.dense->reshard();
    if (layer.experts != nullptr) layer.experts->reshard();
  }
  root_->reshard();
}

}  // namespace expertmesh::train
