// SPDX-License-Identifier: Apache-2.0
// Values as YAML scalars and flow lists that our reader (and any other) reads back as the same values.
#pragma once

#include <string>
#include <string_view>

#include "base/json.h"

namespace expertmesh::config {

std::string yaml_quote(std::string_view text);    // always in double quotes
std::string yaml_text(std::string_view text);     // plain where that is safe
std::string yaml_number(double value);            // shortest form that reads back as the same double
std::string yaml_value(const base::Json& value);  // scalars and lists

}  // namespace expertmesh::config
