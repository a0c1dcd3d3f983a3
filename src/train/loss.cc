// SPDX-License-Identifier: Apache-2.0
#include "train/loss.h"

#include <array>

#include "base/check.h"
#include "train/loss_sft.h"

namespace expertmesh::train {
namespace {

constexpr std::array<LossInfo, 1> kLosses{{
    {"sft", &make_sft_loss},
}};

}  // namespace

std::span<const LossInfo> losses() { return kLosses; }

std::unique_ptr<Loss> make_loss(std::string_view stage) {
  for (const LossInfo& info : kLosses) {
    if (info.stage == stage) return info.make();
  }
  EXPERTMESH_CHECK(false, "no loss for stage {}", stage);
}

}  // namespace expertmesh::train
