// SPDX-License-Identifier: Apache-2.0
// A group of one rank: every collective is the identity. Used by every engine for axes of size 1.
#pragma once

#include <memory>
#include <string>

#include "comm/collective.h"

namespace expertmesh::comm {

// `member` is the global rank of the one member.
std::shared_ptr<Group> make_single_group(std::string name, int member);

}  // namespace expertmesh::comm
