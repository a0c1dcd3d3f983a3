// SPDX-License-Identifier: Apache-2.0
// EXPERTMESH_PROFILE: asks a training run to record its steps, as `profile: true` does.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace expertmesh::app {

// The directory that it names; empty for 1, which leaves the place to the run; nothing where it is unset, empty or 0.
std::optional<std::string> profile_request();

// For commands that record nothing. Throws kUsage where it is set.
void refuse_profile_request(std::string_view command);

}  // namespace expertmesh::app
