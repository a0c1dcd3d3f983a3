// SPDX-License-Identifier: Apache-2.0
#include "base/version.h"

#include <fmt/format.h>

namespace expertmesh::base {

std::string_view version() { return EXPERTMESH_VERSION; }

std::string build_id() {
  const std::string_view commit = EXPERTMESH_COMMIT;
  return commit.empty() ? std::string(version()) : fmt::format("{} ({})", version(), commit);
}

}  // namespace expertmesh::base
