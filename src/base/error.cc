// SPDX-License-Identifier: Apache-2.0
#include "base/error.h"

namespace expertmesh::base {

std::string Error::text() const { return fmt::format("error[{}] {}", topic_, reason()); }

std::string Error::reason() const {
  std::string line = where_.empty() ? message_ : where_ + ": " + message_;
  if (!hint_.empty()) {
    if (!line.ends_with('.')) line += '.';
    line += ' ' + hint_;
  }
  return line;
}

const char* Error::what() const noexcept {
  try {
    what_ = text();
    return what_.c_str();
  } catch (...) {
    return message_.c_str();
  }
}

}  // namespace expertmesh::base
