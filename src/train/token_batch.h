// SPDX-License-Identifier: Apache-2.0
// From a padded or packed micro batch of the loader to the flat documents that a model computes on: padding is gone.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "data/batch.h"
#include "model/model.h"

namespace expertmesh::train {

// Documents end to end, those without tokens left out; position t of one predicts its label at t + 1, the last position
// predicts nothing.
model::TokenBatch make_token_batch(const data::MicroBatch& batch);

// Tokens of one document, of which `begin` were there before.
struct TokenPiece {
  std::span<const int32_t> ids;
  int64_t begin = 0;
  std::span<const std::vector<int32_t>> positions = {};  // by axis, 1 or 3; empty: from `begin` on
};
// Documents to score or to go on with: every token but a document's first is a target. Each has at least one token; no
// documents give an empty batch.
model::TokenBatch make_document_batch(std::span<const TokenPiece> pieces);

}  // namespace expertmesh::train
