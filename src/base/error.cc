// SPDX-License-Identifier: Apache-2.0
#include "base/error.h"

namespace expertmesh::base {

std::string_view code_name(Code code) {
  switch (code) {
    case Code::kUsage:
      return "usage";
    case Code::kConfig:
      return "config";
    case Code::kData:
      return "data";
    case Code::kModel:
      return "model or weights";
    case Code::kCheckpoint:
      return "checkpoint";
    case Code::kCommSetup:
      return "communication set-up";
    case Code::kPeerLost:
      return "peer lost";
    case Code::kTimeout:
      return "timeout";
    case Code::kNumerics:
      return "numerics";
    case Code::kPreempted:
      return "preempted";
    case Code::kResources:
      return "resources";
    case Code::kInternal:
      return "internal";
  }
  return "unknown";
}

std::string Error::text() const {
  std::string line = fmt::format("error[{}] ", topic_);
  if (!where_.empty()) line += where_ + ": ";
  line += message_;
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
