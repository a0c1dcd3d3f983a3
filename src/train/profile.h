// SPDX-License-Identifier: Apache-2.0
// `profile: true`: records the steps of a run on every rank, and writes what they were spent on: DIRECTORY/trace.json,
// a process a rank, for Perfetto and chrome://tracing, and DIRECTORY/summary.txt and .json.
// Threads: a rank's own.
#pragma once

#include <optional>
#include <string>

#include "base/trace.h"
#include "comm/world.h"
#include "ops/library_spans.h"
#include "train/roofline.h"

namespace expertmesh::train {

class Profile {
 public:
  // Measures the roofline, on all ranks at once. Collective over the world.
  Profile(comm::World& world, bool bf16, std::string directory);
  ~Profile();
  Profile(const Profile&) = delete;
  Profile& operator=(const Profile&) = delete;

  // Records from here, on all ranks from one moment. Collective over the world.
  void start();
  void stop();
  // Writes the files, those of rank 0 to its directory on every rank; the table's text. `place`: "dp 1, ep 0".
  // Collective over the world.
  std::string write(const std::string& place);

 private:
  void write_trace(const std::string& directory, const std::string& place);

  comm::World& world_;
  bool bf16_;
  std::string directory_;
  Roofline roofline_;
  base::Trace trace_;
  std::optional<ops::LibrarySpans> library_spans_;
};

}  // namespace expertmesh::train
