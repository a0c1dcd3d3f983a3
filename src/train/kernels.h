// SPDX-License-Identifier: Apache-2.0
// kernel_config and flash_attn as a table of operators. Names apply from left to right, and what none of them selects
// is plain ATen: `auto` takes the fused operators, `flash-linear-attention` those of `include_kernels`, `reference`
// puts all back. Attention follows flash_attn, unless `reference` is among the names.
#pragma once

#include <string>

#include "config/config.h"
#include "ops/operators.h"

namespace expertmesh::train {

ops::Operators choose_operators(const config::KernelConfig& kernel, config::FlashAttention attention);

// What is used, for the start table: names that change nothing in a model without gated-delta layers are left out.
std::string kernels_text(const config::KernelConfig& kernel, bool has_linear_attention);

}  // namespace expertmesh::train
