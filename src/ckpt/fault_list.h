// SPDX-License-Identifier: Apache-2.0
// Faults of many tensors or files collected into one message: by kind, the first ten, and how many there are.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace expertmesh::ckpt {

class FaultList {
 public:
  void add(std::string_view kind, std::string text);
  bool empty() const { return count_ == 0; }
  size_t count() const { return count_; }
  std::string count_text(std::string_view what) const;  // "1 tensor", "12 tensors"
  // "missing (12): a, b, c, ...; unexpected (1): d". Every kind shows at least one.
  std::string text() const;

 private:
  static constexpr size_t kShown = 10;
  struct Kind {
    std::string name;
    size_t count = 0;
    std::vector<std::string> first;  // at most kShown
  };
  std::vector<Kind> kinds_;
  size_t count_ = 0;
};

}  // namespace expertmesh::ckpt
