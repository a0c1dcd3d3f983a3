// SPDX-License-Identifier: Apache-2.0
// Factory of the `fused` dispatcher, for the table in dispatchers.cc.
#pragma once

#include <memory>

#include "moe/dispatcher.h"

namespace expertmesh::moe {

std::unique_ptr<Dispatcher> make_fused_dispatcher(const DispatcherOptions& options);

}  // namespace expertmesh::moe
