// SPDX-License-Identifier: Apache-2.0
#include "ckpt/fault_list.h"

#include <fmt/format.h>

#include <algorithm>

namespace expertmesh::ckpt {

void FaultList::add(std::string_view kind, std::string text) {
  auto at = std::find_if(kinds_.begin(), kinds_.end(), [&](const Kind& known) { return known.name == kind; });
  if (at == kinds_.end()) at = kinds_.insert(kinds_.end(), Kind{std::string(kind), 0, {}});
  ++at->count;
  ++count_;
  if (at->first.size() < kShown) at->first.push_back(std::move(text));
}

std::string FaultList::count_text(std::string_view what) const {
  return fmt::format("{} {}{}", count_, what, count_ == 1 ? "" : "s");
}

std::string FaultList::text() const {
  // Places are dealt out one a kind in turn, so that a long list of one kind does not hide another.
  std::vector<size_t> shown(kinds_.size(), 0);
  for (size_t left = kShown, dealt = 1; left > 0 && dealt > 0;) {
    dealt = 0;
    for (size_t k = 0; k < kinds_.size() && left > 0; ++k) {
      if (shown[k] == kinds_[k].first.size()) continue;
      ++shown[k];
      ++dealt;
      --left;
    }
  }
  std::string text;
  for (size_t k = 0; k < kinds_.size(); ++k) {
    text += fmt::format("{}{} ({}): ", k == 0 ? "" : "; ", kinds_[k].name, kinds_[k].count);
    for (size_t i = 0; i < shown[k]; ++i) text += (i == 0 ? "" : ", ") + kinds_[k].first[i];
    if (shown[k] < kinds_[k].count) text += ", ...";
  }
  return text;
}

}  // namespace expertmesh::ckpt
