// SPDX-License-Identifier: Apache-2.0
// Mesh arithmetic of the configuration. comm repeats it for the real mesh; here it carries the places in the file.
#include "config/validate.h"

#include <fmt/format.h>

#include <numeric>

#include "base/error.h"
#include "config/debug_router.h"
#include "config/suggest.h"

namespace expertmesh::config {
namespace {

using base::Code;
using base::Error;
using base::make_error;

std::string divisors_text(int64_t number) {
  std::vector<std::string> sizes;
  for (int64_t d = 1; d <= number && sizes.size() < 24; ++d) {
    if (number % d == 0) sizes.push_back(fmt::format("{}", d));
  }
  return fmt::format("Sizes that work: {}.", join_names(sizes));
}

class WorldCheck {
 public:
  WorldCheck(const Loaded& loaded, int64_t world, const ModelSizes& model)
      : loaded_(loaded), config_(loaded.config), model_(model) {
    sizes_.world = world;
  }

  WorldSizes run() {
    model_mesh();
    data_mesh();
    heads();
    if (config_.dist.backend == DistBackend::kFsdpTurbo) {
      expert_mesh();
    } else {
      sizes_.edp_size = sizes_.dp_size;
    }
    batch();
    debug_router();
    return sizes_;
  }

 private:
  void model_mesh() {
    const TopologyConfig& topology = config_.topology;
    sizes_.mp_replicate_size = topology.mp_replicate_size;
    if (sizes_.world % topology.mp_replicate_size != 0) {
      throw fault("mp_replicate_size", "mp_replicate_size {} does not divide the {} ranks", topology.mp_replicate_size,
                  sizes_.world)
          .hint(divisors_text(sizes_.world));
    }
    const int64_t rest = sizes_.world / topology.mp_replicate_size;
    if (topology.mp_shard_size && *topology.mp_shard_size != rest) {
      throw fault("mp_shard_size", "mp_replicate_size {} x mp_shard_size {} is {}, not the {} ranks",
                  topology.mp_replicate_size, *topology.mp_shard_size,
                  topology.mp_replicate_size * *topology.mp_shard_size, sizes_.world)
          .hint(fmt::format("Use mp_shard_size {}, or leave it out.", rest));
    }
    sizes_.mp_shard_size = rest;
  }

  void data_mesh() {
    const TopologyConfig& topology = config_.topology;
    sizes_.cp_size = topology.cp_size;
    if (sizes_.world % topology.cp_size != 0) {
      throw fault("cp_size", "cp_size {} does not divide the {} ranks", topology.cp_size, sizes_.world)
          .hint(divisors_text(sizes_.world));
    }
    sizes_.dp_size = sizes_.world / topology.cp_size;
    if (topology.dp_size && *topology.dp_size != sizes_.dp_size) {
      throw fault("dp_size", "dp_size {} x cp_size {} is {}, not the {} ranks", *topology.dp_size, topology.cp_size,
                  *topology.dp_size * topology.cp_size, sizes_.world)
          .hint(fmt::format("Use dp_size {}, or leave it out.", sizes_.dp_size));
    }
  }

  void heads() {
    if (model_.num_attention_heads > 0 && model_.num_attention_heads % sizes_.cp_size != 0) {
      throw fault("cp_size", "cp_size {} does not divide num_attention_heads {} of the model", sizes_.cp_size,
                  model_.num_attention_heads)
          .hint(divisors_text(std::gcd(model_.num_attention_heads, sizes_.world)));
    }
  }

  void expert_mesh() {
    const int64_t ep = config_.dist.ep_size;
    const bool has_experts = model_.num_experts > 0;
    const std::string sizes =
        divisors_text(has_experts ? std::gcd(sizes_.dp_size, model_.num_experts) : sizes_.dp_size);
    if (sizes_.dp_size % ep != 0) {
      throw fault("dist_config.ep_size", "ep_size {} does not divide dp_size {}", ep, sizes_.dp_size).hint(sizes);
    }
    if (has_experts && model_.num_experts % ep != 0) {
      throw fault("dist_config.ep_size", "ep_size {} does not divide num_experts {} of the model", ep,
                  model_.num_experts)
          .hint(sizes);
    }
    sizes_.ep_size = ep;
    const int64_t rest = sizes_.dp_size / ep;
    sizes_.efsdp_size = config_.dist.efsdp_size.value_or(rest);
    if (rest % sizes_.efsdp_size != 0) {
      throw fault("dist_config.efsdp_size", "efsdp_size {} does not divide {} (dp_size {} / ep_size {})",
                  sizes_.efsdp_size, rest, sizes_.dp_size, ep)
          .hint(divisors_text(rest));
    }
    sizes_.edp_size = rest / sizes_.efsdp_size;
    dedup();
  }

  void dedup() const {
    const Dedup dedup = config_.dist.ep_dedup;
    if (dedup == Dedup::kAuto) return;
    if (config_.dist.ep_size == 1) {
      throw fault("dist_config.ep_dedup", "ep_dedup {} has no effect with ep_size 1: no token travels",
                  choice_name(dedup))
          .hint("Leave it out.");
    }
    if (config_.dist.ep_dispatcher == Dispatcher::kEager) {
      throw fault("dist_config.ep_dedup",
                  "ep_dedup {} has no effect with ep_dispatcher eager: a row travels for each choice",
                  choice_name(dedup))
          .hint("Leave it out, or use ep_dispatcher fused, mc2, domino or auto.");
    }
  }

  void batch() {
    const int64_t once = sizes_.dp_size * config_.data.micro_batch_size;
    sizes_.global_batch_size = config_.data.global_batch_size.value_or(once);
    if (sizes_.global_batch_size % once != 0) {
      const int64_t below = sizes_.global_batch_size / once * once;
      throw fault("global_batch_size",
                  "global_batch_size {} is not a multiple of {} (dp_size {} x micro_batch_size {})",
                  sizes_.global_batch_size, once, sizes_.dp_size, config_.data.micro_batch_size)
          .hint(below == 0 ? fmt::format("Use {}.", once) : fmt::format("Use {} or {}.", below, below + once));
    }
    sizes_.num_micro_batch = sizes_.global_batch_size / once;
  }

  void debug_router() {
    const DebugRouter& router = config_.model.debug_router;
    if (!router.is_on()) return;
    if (router.only_on_rank.value_or(0) >= sizes_.world || router.avoided_rank >= sizes_.world) {
      throw fault("debug_router", "debug_router names rank {}, there are {} ranks",
                  std::max(router.only_on_rank.value_or(0), router.avoided_rank), sizes_.world);
    }
    if (router.count > 0 && model_.num_experts > 0 &&
        (router.count > model_.num_experts || router.count < model_.num_experts_per_tok)) {
      throw fault("debug_router", "debug_router {} in a model with {} experts, of which a token takes {}",
                  debug_router_text(router), model_.num_experts, model_.num_experts_per_tok)
          .hint(fmt::format("Use {} to {}.", model_.num_experts_per_tok, model_.num_experts));
    }
  }

  template <typename... Args>
  Error fault(std::string_view key_path, fmt::format_string<Args...> format, Args&&... args) const {
    const std::string_view key = key_path.substr(key_path.rfind('.') + 1);
    return make_error(Code::kConfig, fmt::format("config/{}", key), format, std::forward<Args>(args)...)
        .at(loaded_.positions.of(key_path));
  }

  const Loaded& loaded_;
  const Config& config_;
  const ModelSizes& model_;
  WorldSizes sizes_;
};

}  // namespace

WorldSizes validate_for_world(const Loaded& loaded, int64_t world, const ModelSizes& model) {
  return WorldCheck(loaded, world, model).run();
}

WorldSizes validate_for_world(const Loaded& loaded, int64_t world) { return validate_for_world(loaded, world, {}); }

void validate_kernels(const Loaded& loaded, const ModelSizes& model) {
  const KernelConfig& kernel = loaded.config.kernel;
  if (!kernel.is_explicit || !kernel.has(Kernel::kFlashLinearAttention) || model.has_linear_attention) return;
  std::vector<std::string_view> ops;
  ops.reserve(kernel.include_kernels.size());
  for (const LinearAttentionOp op : kernel.include_kernels) ops.push_back(choice_name(op));
  throw make_error(Code::kConfig, "config/kernel_config",
                   "flash-linear-attention ({}) fits no layer: the model has no gated-delta layer", join_names(ops))
      .at(loaded.positions.of("kernel_config.name"))
      .hint("Remove it from kernel_config.name.");
}

}  // namespace expertmesh::config
