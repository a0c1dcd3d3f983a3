// SPDX-License-Identifier: Apache-2.0
// Factory of the `eager` dispatcher, for the table in dispatchers.cc.
#pragma once

#include <memory>

#include "moe/dispatcher.h"

namespace expertmesh::moe {

std::unique_ptr<Dispatcher> make_eager_dispatcher(const DispatcherOptions& options);

}  // namespace expertmesh::moe
