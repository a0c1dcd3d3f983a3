// SPDX-License-Identifier: Apache-2.0
#include "train/profile.h"

#include <utility>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "train/profile_report.h"

namespace expertmesh::train {

Profile::Profile(comm::World& world, bool bf16, std::string directory)
    : world_(world), bf16_(bf16), directory_(std::move(directory)) {
  world_.all().barrier("profile roofline");
  roofline_ = measure_roofline();
}

Profile::~Profile() { stop(); }

void Profile::start() {
  world_.all().barrier("profile start");
  trace_.set_origin();
  base::Trace::attach(&trace_);
  library_spans_.emplace();
}

void Profile::stop() {
  library_spans_.reset();
  if (base::current_trace() == &trace_) base::Trace::attach(nullptr);
}

std::string Profile::write(const std::string& place) {
  stop();
  const std::string own = base::dump_json(to_json(make_rank_profile(trace_, world_.rank(), place, roofline_)));
  std::vector<RankProfile> ranks;
  for (const std::string& text : world_.all().all_gather_text(own, "profile sums")) {
    ranks.push_back(rank_profile_from_json(base::parse_json(text)));
  }
  const std::string directory = world_.all().all_gather_text(directory_, "profile directory")[0];
  write_trace(directory, place);
  const ProfileReport report = ProfileReport::of(std::move(ranks), bf16_);
  const std::string text = report.to_text();
  if (world_.rank() == 0) {
    const auto fs = base::make_posix_file_system(base::Code::kCheckpoint);
    base::write_file_atomic(*fs, base::join_path(directory, "summary.txt"), text);
    base::write_file_atomic(*fs, base::join_path(directory, "summary.json"),
                            base::dump_json(report.to_json(), base::JsonStyle::kPretty) + "\n");
  }
  return text;
}

// One file for all: the ranks write their part one after the other.
void Profile::write_trace(const std::string& directory, const std::string& place) {
  const auto fs = base::make_posix_file_system(base::Code::kCheckpoint);
  const std::string path = base::join_path(directory, "trace.json");
  if (world_.rank() == 0) {
    fs->make_directories(directory);
    fs->create(path)->append(base::kChromeHead);
  }
  for (int rank = 0; rank < world_.size(); ++rank) {
    world_.all().barrier("profile trace");
    if (rank == world_.rank()) fs->open_append(path)->append(base::chrome_events(trace_, rank, place));
  }
  world_.all().barrier("profile trace");
  if (world_.rank() == 0) fs->open_append(path)->append(base::chrome_tail());
}

}  // namespace expertmesh::train
