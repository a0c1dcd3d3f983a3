// SPDX-License-Identifier: Apache-2.0
// Checks that come after loading: those that need the number of ranks or the model's sizes, and the refusal of what is
// not built yet. Order in a command: load_config, validate_for_world, refuse_unbuilt.
// Errors: kConfig with the place of the key, both values and the sizes that would work.
#pragma once

#include <cstdint>

#include "config/load.h"

namespace expertmesh::config {

// What of a model bears on sizes in the configuration; 0 where it is not known (yet).
struct ModelSizes {
  int64_t num_experts = 0;
  int64_t num_experts_per_tok = 0;
  int64_t num_attention_heads = 0;
  bool has_linear_attention = false;
};

// All sizes that follow from the configuration and the number of ranks.
struct WorldSizes {
  int64_t world = 1, dp_size = 1, cp_size = 1;
  int64_t mp_replicate_size = 1, mp_shard_size = 1;
  int64_t ep_size = 1, efsdp_size = 1, edp_size = 1;
  int64_t global_batch_size = 1;
  int64_t num_micro_batch = 1;  // forwards a step and data-parallel rank
};

// Checks the configuration against `world` ranks, and against the model where its sizes are given. Pure arithmetic.
WorldSizes validate_for_world(const Loaded& loaded, int64_t world);
WorldSizes validate_for_world(const Loaded& loaded, int64_t world, const ModelSizes& model);

// Operators that were named in kernel_config but fit no layer of the model (kConfig).
void validate_kernels(const Loaded& loaded, const ModelSizes& model);

// Refuses by name whatever is valid but not built yet.
void refuse_unbuilt(const Loaded& loaded, Command command);

}  // namespace expertmesh::config
