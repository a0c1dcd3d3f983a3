// SPDX-License-Identifier: Apache-2.0
#include "app/error_report.h"

#include <fmt/format.h>

#include <cstdio>

namespace expertmesh::app {

int report_error(const base::Error& error) {
  std::string block = error.text() + "\n";
  if (error.rank()) {
    block += fmt::format("  rank {}", *error.rank());
    if (!error.coords().empty()) block += fmt::format(" ({})", error.coords());
    if (error.step() >= 0) block += fmt::format(", step {}", error.step());
    block += "\n";
  }
  (void)std::fwrite(block.data(), 1, block.size(), stderr);
  return static_cast<int>(error.code());
}

}  // namespace expertmesh::app
