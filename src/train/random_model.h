// SPDX-License-Identifier: Apache-2.0
// A new model directory with random weights, written piece by piece: a model larger than memory is no special case.
#pragma once

#include <functional>
#include <string>

#include "base/dtype.h"
#include "base/json.h"

namespace expertmesh::train {

struct RandomModelOptions {
  base::Json config;          // a config.json
  std::string where;          // its name in messages
  std::string tokenizer_dir;  // its files are copied; empty: a model without tokenizer
  std::string out;
  uint64_t seed = 42;
  base::DType dtype = base::DType::kBF16;
  std::function<void(uint64_t bytes_done, uint64_t bytes_total)> progress;
};

// Each parameter by its shard::Init, normal numbers with the config's initializer_range (0.02): a pure function of
// seed, name and index. Errors: kModel for a bad config or a tokenizer with more ids than rows, kCheckpoint where `out`
// holds a model already.
void write_random_model(const RandomModelOptions& options);

}  // namespace expertmesh::train
