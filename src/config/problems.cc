// SPDX-License-Identifier: Apache-2.0
#include "config/problems.h"

#include <fmt/format.h>

#include "base/error.h"

namespace expertmesh::config {
namespace {

constexpr size_t kMaxShown = 20;

std::string sentence(const std::string& message, const std::string& hint) {
  return hint.empty() ? message : fmt::format("{}. {}", message, hint);
}

}  // namespace

void Problems::add(std::string key, std::string place, std::string message, std::string hint) {
  problems_.push_back({std::move(key), std::move(place), std::move(message), std::move(hint)});
}

void Problems::throw_if_any() const {
  if (problems_.empty()) return;
  const Problem& first = problems_.front();
  const std::string topic = first.key.empty() ? "config" : "config/" + first.key;
  if (problems_.size() == 1) {
    throw base::Error(base::Code::kConfig, topic, first.message).at(first.place).hint(first.hint);
  }
  std::string text = sentence(first.message, first.hint);
  for (size_t i = 1; i < problems_.size() && i < kMaxShown; ++i) {
    const Problem& problem = problems_[i];
    text += fmt::format("\n  {}: {}", problem.place, sentence(problem.message, problem.hint));
  }
  text += fmt::format("\n  {} faults in all", problems_.size());
  throw base::Error(base::Code::kConfig, topic, text).at(first.place);
}

}  // namespace expertmesh::config
