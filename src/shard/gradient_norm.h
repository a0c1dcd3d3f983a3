// SPDX-License-Identifier: Apache-2.0
// The global gradient norm over both meshes, and clipping. Each element of each parameter is counted once: by the rank
// whose shard holds it and which is the primary one among its replicas. Squares are summed in fp64 over fp32 values.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "shard/parameter.h"

namespace expertmesh::shard {

struct GradientNorm {
  double norm = 0;
  double expert_norm = 0;        // of the expert parameters alone
  bool is_finite = true;         // the same on all ranks
  std::string first_non_finite;  // "name on rank R", the same on all ranks; empty where all are finite
  int non_finite_rank = 0;       // R
};

// Collective over `world`: one reduction, entered by every rank whatever it holds.
GradientNorm global_gradient_norm(const std::vector<Parameter*>& parameters, comm::Group& world);

// min(1, max_norm / (norm + 1e-6)); 1 where max_norm <= 0 (no clipping).
double clip_coefficient(double norm, double max_norm);

}  // namespace expertmesh::shard
