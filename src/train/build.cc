// SPDX-License-Identifier: Apache-2.0
#include "train/build.h"

#include "config/print.h"
#include "train/weights.h"

namespace expertmesh::train {

std::shared_ptr<const comm::Meshes> build_meshes(comm::World& world, const Job& job) {
  const config::Config& config = job.loaded.config;
  return comm::Meshes::build(world,
                             comm::make_topology(world.size(), {.cp_size = config.topology.cp_size,
                                                                .dp_size = config.topology.dp_size,
                                                                .ep_size = config.dist.ep_size,
                                                                .efsdp_size = config.dist.efsdp_size,
                                                                .mp_replicate_size = config.topology.mp_replicate_size,
                                                                .mp_shard_size = config.topology.mp_shard_size,
                                                                .num_experts = {},
                                                                .num_attention_heads = {}}));
}

std::unique_ptr<ShardedModel> build_sharded_model(const Job& job, std::shared_ptr<const comm::Meshes> meshes) {
  const config::Config& config = job.loaded.config;
  ShardingOptions options;
  options.dist = config.dist;
  options.bf16 = config.train.bf16;
  options.kernel = config.kernel;
  options.attention = config.model.flash_attn;
  options.micro_batch_tokens = config.data.micro_batch_size * config.data.cutoff_len;
  options.trainable_modules = config.model.trainable_modules.value_or(std::vector<std::string>{});
  if (config.model.debug_router.is_on()) {
    options.debug_router = *config::try_value(config, "debug_router")->try_string();
  }
  return std::make_unique<ShardedModel>(job.spec->build(job.model_config, job.weights->files().directory()), *job.spec,
                                        std::move(meshes), options);
}

std::unique_ptr<ShardedModel> build_loaded_model(const Job& job, std::shared_ptr<const comm::Meshes> meshes) {
  std::unique_ptr<ShardedModel> model = build_sharded_model(job, std::move(meshes));
  load_weights(*job.weights, *model);
  return model;
}

}  // namespace expertmesh::train
