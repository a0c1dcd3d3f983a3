// SPDX-License-Identifier: Apache-2.0
// The text form of a debug router: `balanced`, `hot:K`, `none:RANK`, `rotating:K`, `burst:K/N`, each with an
// optional `@RANK`.
#pragma once

#include <string>

#include "config/config.h"
#include "config/node.h"

namespace expertmesh::config {

DebugRouter read_debug_router(const Node& node);  // throws ValueError; null is off
std::string debug_router_text(const DebugRouter& router);

}  // namespace expertmesh::config
