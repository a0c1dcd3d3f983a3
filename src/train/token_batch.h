// SPDX-License-Identifier: Apache-2.0
// From a padded or packed micro batch of the loader to the flat documents that a model computes on: padding is gone.
#pragma once

#include "data/batch.h"
#include "model/model.h"

namespace expertmesh::train {

// Documents end to end, those without tokens left out; position t of one predicts its label at t + 1, the last position
// predicts nothing.
model::TokenBatch make_token_batch(const data::MicroBatch& batch);

// One document to score: every token but the first is a target.
model::TokenBatch make_score_batch(const std::vector<std::vector<int32_t>>& documents);

}  // namespace expertmesh::train
