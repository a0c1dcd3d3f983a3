// SPDX-License-Identifier: Apache-2.0
#include "data/micro_batch.h"

#include <algorithm>

namespace expertmesh::data {
namespace {

int64_t length_of(const Sample& sample) { return static_cast<int64_t>(sample.input_ids.size()); }

MicroBatch make_empty(int64_t rows, int64_t width) {
  MicroBatch batch;
  batch.rows = rows;
  batch.width = width;
  const auto cells = static_cast<size_t>(rows * width);
  batch.input_ids.assign(cells, 0);
  batch.labels.assign(cells, kIgnoredLabel);
  batch.loss_weights.assign(cells, 0.0F);
  return batch;
}

void add_document(MicroBatch& batch, const Sample& sample, int64_t offset) {
  std::ranges::copy(sample.input_ids, batch.input_ids.begin() + offset);
  std::ranges::copy(sample.labels, batch.labels.begin() + offset);
  std::ranges::copy(sample.loss_weights, batch.loss_weights.begin() + offset);
  batch.offsets.push_back(offset);
  batch.lengths.push_back(static_cast<int32_t>(length_of(sample)));
  batch.tokens += length_of(sample);
  for (size_t t = 1; t < sample.labels.size(); ++t) {
    if (sample.labels[t] == kIgnoredLabel) continue;
    ++batch.targets;
    batch.target_weight += sample.loss_weights[t];
    batch.unit_weights &= sample.loss_weights[t] == 1.0F;
  }
}

}  // namespace

MicroBatch collate(const std::vector<Sample>& samples) {
  int64_t width = 0;
  for (const Sample& sample : samples) width = std::max(width, length_of(sample));
  MicroBatch batch = make_empty(static_cast<int64_t>(samples.size()), width);
  int64_t offset = 0;
  for (const Sample& sample : samples) {
    add_document(batch, sample, offset);
    offset += width;
  }
  return batch;
}

MicroBatch pack(const std::vector<Sample>& samples) {
  int64_t width = 0;
  for (const Sample& sample : samples) width += length_of(sample);
  MicroBatch batch = make_empty(1, width);
  int64_t offset = 0;
  for (size_t document = 0; document < samples.size(); ++document) {
    add_document(batch, samples[document], offset);
    if (document > 0 && length_of(samples[document]) > 0) {
      batch.labels[static_cast<size_t>(offset)] = kIgnoredLabel;
      batch.loss_weights[static_cast<size_t>(offset)] = 0.0F;
    }
    offset += length_of(samples[document]);
  }
  return batch;
}

}  // namespace expertmesh::data
