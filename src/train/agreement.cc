// SPDX-License-Identifier: Apache-2.0
#include "train/agreement.h"

#include <sstream>

#include "base/error.h"
#include "base/json.h"
#include "config/print.h"

namespace expertmesh::train {
namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// The configuration as ranks compare it: the output directory may be drawn by rank 0 alone.
std::string comparable_config(const Job& job) {
  config::Config config = job.loaded.config;
  config.train.output_dir.clear();
  return config::print_yaml(config);
}

// "learning_rate: 0.1 on rank 0, learning_rate: 0.2 on rank 2"
std::string first_difference(const std::string& a, const std::string& b, int rank) {
  const auto left = lines_of(a), right = lines_of(b);
  for (size_t i = 0; i < std::max(left.size(), right.size()); ++i) {
    const std::string l = i < left.size() ? left[i] : "nothing", r = i < right.size() ? right[i] : "nothing";
    if (l != r) return fmt::format("\"{}\" on rank 0, \"{}\" on rank {}", l, r, rank);
  }
  return "nothing visible";
}

void compare(base::Code code, const std::string& topic, const std::string& what, const std::string& mine,
             comm::Group& world) {
  const std::vector<std::string> all = world.all_gather_text(mine, "agree on " + topic);
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    throw base::make_error(code, topic, "ranks differ in {}: {}", what,
                           first_difference(all[0], all[rank], static_cast<int>(rank)))
        .hint("Start every rank with the same program, files and arguments.");
  }
}

}  // namespace

void agree_on_job(const Job& job, comm::Group& world) {
  compare(base::Code::kInternal, "app/build", "the program", job.build_id, world);
  compare(base::Code::kConfig, "config/ranks", "the configuration", comparable_config(job), world);
  compare(base::Code::kModel, "model/ranks", "the model's config.json",
          base::dump_json(job.model_config, base::JsonStyle::kPretty), world);
  compare(base::Code::kModel, "model/ranks", "the model's tensors", job.weights->digest(), world);
  if (job.dataset == nullptr) return;
  compare(base::Code::kData, "data/ranks", "the training rows", fmt::format("{:016x}", job.dataset->fingerprint()),
          world);
}

std::string agree_on_output_dir(const std::string& output_dir, comm::Group& world) {
  return world.all_gather_text(output_dir, "agree on output_dir")[0];
}

}  // namespace expertmesh::train
