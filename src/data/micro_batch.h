// SPDX-License-Identifier: Apache-2.0
// The documents of one forward as arrays, with upstream's padding and packing values (spec 3.3), and what the loss
// counts in them: position 0 of a document has nothing before it and is no target, padded or packed alike.
#pragma once

#include <cstdint>
#include <vector>

#include "data/sample.h"

namespace expertmesh::data {

// Row-major [rows, width] arrays: a padded row a document, or one row with all documents end to end.
struct MicroBatch {
  int64_t rows = 0, width = 0;
  std::vector<int32_t> input_ids;
  std::vector<int32_t> labels;
  std::vector<float> loss_weights;
  std::vector<int64_t> offsets;  // where each document begins in these arrays
  std::vector<int32_t> lengths;  // its tokens
  std::vector<int64_t> samples;  // its index in the Dataset
  int64_t tokens = 0;            // of all documents, without padding
  int64_t targets = 0;           // supervised labels after the shift
  double target_weight = 0;      // their loss weights summed
  bool unit_weights = true;      // every target weighs 1
};

// Pads on the right to the longest sample: id 0, label -100, weight 0.
MicroBatch collate(const std::vector<Sample>& samples);

// Lays the samples end to end in one row. The first position of every sample but the first gets label -100 and weight
// 0, so that shifting the whole row's labels gives the same targets as shifting each document's.
MicroBatch pack(const std::vector<Sample>& samples);

}  // namespace expertmesh::data
