// SPDX-License-Identifier: Apache-2.0
// From a padded micro batch of the loader to the flat documents that a model computes on: padding is gone.
#pragma once

#include "data/batch.h"
#include "model/model.h"

namespace expertmesh::train {

// Rows become documents end to end; position t of a row predicts its label at t + 1, the last one predicts nothing.
model::TokenBatch make_token_batch(const data::MicroBatch& batch);

// One document to score: every token but the first is a target.
model::TokenBatch make_score_batch(const std::vector<std::vector<int32_t>>& documents);

}  // namespace expertmesh::train
