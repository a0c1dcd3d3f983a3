// SPDX-License-Identifier: Apache-2.0
// Which turns of a row are trained on: one sample per supervised assistant turn, a prefix of the messages (spec 4.2).
#pragma once

#include <vector>

#include "data/sample.h"

namespace expertmesh::data {

// What the row is for: pairs (dpo, rm) and plain rows (sft) exclude each other.
enum class Use { kSft, kPreference };

// Prefix lengths, one per sample; a tokenized row or a pair is one sample, given as 0.
// Errors: kData without a place where the row cannot be used: nothing supervised, an empty answer, equal answers, ...
std::vector<int> row_cuts(const Row& row, Use use);

}  // namespace expertmesh::data
