// SPDX-License-Identifier: Apache-2.0
#include "app/profile_request.h"

#include <cstdlib>

#include "base/error.h"

namespace expertmesh::app {
namespace {

constexpr const char* kVariable = "EXPERTMESH_PROFILE";

}  // namespace

std::optional<std::string> profile_request() {
  const char* given = std::getenv(kVariable);
  const std::string_view value = given == nullptr ? "" : given;
  if (value.empty() || value == "0") return std::nullopt;
  return value == "1" ? std::string() : std::string(value);
}

void refuse_profile_request(std::string_view command) {
  if (!profile_request()) return;
  throw base::make_error(base::Code::kUsage, "app/profile", "{} is {}, but {} trains nothing that could be recorded",
                         kVariable, std::getenv(kVariable), command)
      .hint("Unset it; sft records its steps.");
}

}  // namespace expertmesh::app
