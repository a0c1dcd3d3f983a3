// SPDX-License-Identifier: Apache-2.0
// Supervised fine-tuning: sum over the step's targets of w * -log p(target) / N, N = their count, or the sum of their
// weights where these are not all 1.
#pragma once

#include <memory>

#include "train/loss.h"

namespace expertmesh::train {

std::unique_ptr<Loss> make_sft_loss();

}  // namespace expertmesh::train
