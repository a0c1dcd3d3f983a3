// SPDX-License-Identifier: Apache-2.0
// An Error as text in the store, and back.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"

namespace expertmesh::comm {

std::string error_to_json(const base::Error& error);
// Nothing where the text is not such an error.
std::optional<base::Error> try_error_from_json(std::string_view text);

}  // namespace expertmesh::comm
