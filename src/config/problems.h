// SPDX-License-Identifier: Apache-2.0
// Faults of one configuration, gathered so that the user sees all of them at once, in the order of the file.
#pragma once

#include <string>
#include <vector>

namespace expertmesh::config {

class Problems {
 public:
  // `key` is the last part of a key path: the topic of the error is config/KEY.
  void add(std::string key, std::string place, std::string message, std::string hint = {});

  bool empty() const { return problems_.empty(); }

  // Throws Error(kConfig): the first with its place, the others as further lines.
  void throw_if_any() const;

 private:
  struct Problem {
    std::string key, place, message, hint;
  };
  std::vector<Problem> problems_;
};

}  // namespace expertmesh::config
