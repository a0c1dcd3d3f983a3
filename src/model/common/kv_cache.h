// SPDX-License-Identifier: Apache-2.0
// Keys and values of the documents of a batch, kept so that their next tokens attend to them. A document's cache grows
// by doubling; nothing is shared between documents.
// Shapes: T tokens of the batch, N query heads, M key/value heads, D head dim.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>

#include "model/model.h"

namespace expertmesh::model {

// True where every document begins in this batch: attention then needs nothing but the batch.
bool all_begin_here(std::span<LayerCache* const> caches);

// Appends each document's new rows to its cache; nothing where there are no caches.
void keep_keys_and_values(const at::Tensor& k_TMD, const at::Tensor& v_TMD, const LayerContext& context);

// What each query gathers of its document's cache, in which its own row is already; [T, N, D].
at::Tensor attend_to_caches(const at::Tensor& q_TND, const LayerContext& context, double scale);

}  // namespace expertmesh::model
