// SPDX-License-Identifier: Apache-2.0
#include "train/agreement.h"

#include <algorithm>
#include <map>
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

// "dist_config.ep_size" -> "2": a key with its section, as printed.
std::map<std::string, std::string> keys_of(const std::string& yaml) {
  std::map<std::string, std::string> keys;
  std::string section;
  for (const std::string& line : lines_of(yaml)) {
    const size_t begin = line.find_first_not_of(' '), colon = line.find(':');
    if (begin == std::string::npos || line[begin] == '#' || colon == std::string::npos) continue;
    const std::string key = line.substr(begin, colon - begin);
    const bool opens_section = begin == 0 && colon + 1 == line.size();
    if (begin == 0) section = key + ".";
    if (!opens_section) keys[begin == 0 ? key : section + key] = line.substr(std::min(colon + 2, line.size()));
  }
  return keys;
}

// "learning_rate is 0.1 on rank 0 and 0.2 on rank 2; ..." A section that only one rank has differs in every key.
std::string key_differences(const std::string& a, const std::string& b, int rank) {
  constexpr int kShown = 6;
  const auto left = keys_of(a), right = keys_of(b);
  std::map<std::string, std::string> all = left;
  all.insert(right.begin(), right.end());
  std::string text;
  int count = 0;
  for (const auto& [key, unused] : all) {
    const auto l = left.find(key), r = right.find(key);
    const std::string here = l == left.end() ? "not given" : l->second;
    const std::string there = r == right.end() ? "not given" : r->second;
    if (here == there || ++count > kShown) continue;
    text += fmt::format("{}{} is {} on rank 0 and {} on rank {}", count > 1 ? "; " : "", key, here, there, rank);
  }
  if (count > kShown) text += fmt::format("; and {} more keys", count - kShown);
  return text;
}

// "\"hidden_size: 64\" on rank 0, \"hidden_size: 32\" on rank 2"
std::string first_difference(const std::string& a, const std::string& b, int rank) {
  const auto left = lines_of(a), right = lines_of(b);
  for (size_t i = 0; i < std::max(left.size(), right.size()); ++i) {
    const std::string l = i < left.size() ? left[i] : "nothing", r = i < right.size() ? right[i] : "nothing";
    if (l != r) return fmt::format("\"{}\" on rank 0, \"{}\" on rank {}", l, r, rank);
  }
  return "nothing visible";
}

using Difference = std::string (*)(const std::string& a, const std::string& b, int rank);

void compare(base::Code code, const std::string& topic, const std::string& what, const std::string& mine,
             comm::Group& world, Difference difference = first_difference) {
  const std::vector<std::string> all = world.all_gather_text(mine, "agree on " + topic);
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    throw base::make_error(code, topic, "ranks differ in {}: {}", what,
                           difference(all[0], all[rank], static_cast<int>(rank)))
        .hint("Start every rank with the same program, files and arguments.")
        .on_rank(static_cast<int>(rank));
  }
}

}  // namespace

void agree_on_job(const Job& job, comm::Group& world) {
  compare(base::Code::kInternal, "app/build", "the program", job.build_id, world);
  compare(base::Code::kConfig, "config/ranks", "the configuration", comparable_config(job), world, key_differences);
  compare(base::Code::kModel, "model/ranks", "the model's config.json",
          base::dump_json(job.model_config, base::JsonStyle::kPretty), world);
  compare(base::Code::kModel, "model/ranks", "the model's tensors", job.weights->digest(), world);
  if (job.dataset == nullptr) return;
  compare(base::Code::kData, "data/ranks", "the training rows", fmt::format("{:016x}", job.dataset->fingerprint()),
          world);
}

void agree_on_input(const std::string& what, const std::string& lines, comm::Group& world) {
  compare(base::Code::kData, "data/ranks", what, lines, world);
}

std::string agree_on_output_dir(const std::string& output_dir, comm::Group& world) {
  return world.all_gather_text(output_dir, "agree on output_dir")[0];
}

}  // namespace expertmesh::train
