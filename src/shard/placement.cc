// SPDX-License-Identifier: Apache-2.0
#include "shard/placement.h"

#include <fmt/ranges.h>

#include "base/check.h"
#include "base/error.h"

namespace expertmesh::shard {
namespace {

std::vector<int64_t> divisors(int64_t value) {
  std::vector<int64_t> all;
  for (int64_t d = 1; d <= value; ++d) {
    if (value % d == 0) all.push_back(d);
  }
  return all;
}

void require_divisible(const Parameter& parameter, int ep_size) {
  const int64_t experts = parameter.global_shape()[0];
  if (experts % ep_size == 0) return;
  throw base::make_error(base::Code::kConfig, "config/ep_size", "ep_size {} does not divide the {} experts of {}",
                         ep_size, experts, parameter.name())
      .at("dist_config.ep_size")
      .hint(fmt::format("Use one of {}.", fmt::join(divisors(experts), ", ")));
}

// Parameters below the modules that match one of the patterns.
ParameterSet matched_parameters(Module& model, const std::vector<std::string>& patterns) {
  ParameterSet matched;
  for (const std::string& pattern : patterns) {
    bool any = false;
    for (Module* module : model.modules()) {
      if (!matches_pattern(module->path(), pattern)) continue;
      any = true;
      for (const Parameter* parameter : module->parameters()) matched.insert(parameter);
    }
    if (!any) {
      throw base::make_error(base::Code::kConfig, "config/fsdp_ignored_modules",
                             "\"{}\" matches no module of the model", pattern)
          .at("dist_config.fsdp_ignored_modules")
          .hint("Patterns match whole module names, for example model.layers.{*}.self_attn.");
    }
  }
  return matched;
}

}  // namespace

ParameterSet shard_experts(Module& model, const std::string& pattern, const ExpertGroups& groups) {
  ParameterSet placed;
  for (Module* module : model.modules()) {
    if (!matches_pattern(module->path(), pattern)) continue;
    for (Parameter* parameter : module->parameters()) {
      EXPERTMESH_CHECK(parameter->is_expert(), "{} is no expert parameter", parameter->name());
      require_divisible(*parameter, groups.ep->size());
      parameter->partition_experts(groups.ep->rank(), groups.ep->size());
      parameter->shard(parameter->global_shape().size() > 1 ? 1 : 0, groups.efsdp);
      parameter->replicate_over(groups.replicas);
      placed.insert(parameter);
    }
  }
  EXPERTMESH_CHECK(!placed.empty(), "no module matches {}", pattern);
  return placed;
}

void shard_outer(Module& model, const OuterGroups& groups, const ParameterSet& experts, bool has_expert_mesh,
                 const std::vector<std::string>& ignored_modules) {
  const ParameterSet ignored = matched_parameters(model, ignored_modules);
  for (Parameter* parameter : model.parameters()) {
    if (experts.contains(parameter)) continue;
    // Expert side first: a parameter that belongs to EFSDP must never be managed by the outer FSDP2 too.
    EXPERTMESH_CHECK(!has_expert_mesh || !parameter->is_expert(), "{}: shard_experts comes before shard_outer",
                     parameter->name());
    if (ignored.contains(parameter)) {
      parameter->replicate_over(groups.world);
    } else {
      parameter->shard(0, groups.shard);
      parameter->replicate_over(groups.replicate);
    }
  }
}

void replicate_all(Module& model, const std::shared_ptr<comm::Group>& world) {
  for (Parameter* parameter : model.parameters()) parameter->replicate_over(world);
}

}  // namespace expertmesh::shard
