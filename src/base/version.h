// SPDX-License-Identifier: Apache-2.0
// Which program this is.
#pragma once

#include <string>
#include <string_view>

namespace expertmesh::base {

// "0.1.0"
std::string_view version();
// Version and the commit it was built from: ranks compare it.
std::string build_id();

}  // namespace expertmesh::base
