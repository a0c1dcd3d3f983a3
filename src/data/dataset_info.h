// SPDX-License-Identifier: Apache-2.0
// What `train_dataset` names: a dataset-info YAML (name -> entry), or one local file or directory (spec 4.1).
// Errors: kData at FILE:LINE; hub ids, streaming and sources other than local are refused by name.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/file.h"

namespace expertmesh::data {

struct DatasetEntry {
  std::string name = "default";
  std::string path;              // relative to the working directory
  std::string converter;         // "" = rows already in the internal format
  std::optional<int64_t> size;   // resample to this many samples, with replacement
  std::optional<double> weight;  // then to int(n * weight)
  std::string where;             // "info.yaml:3" for messages; the path itself without a YAML
};

std::vector<DatasetEntry> load_dataset_entries(const base::FileSystem& fs, const std::string& train_dataset);

}  // namespace expertmesh::data
