// SPDX-License-Identifier: Apache-2.0
// libtorch's exceptions as our Errors, without its stack traces.
#pragma once

#include <exception>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"

namespace expertmesh::comm {

// c10 errors: out of memory as kResources, everything else as kInternal with the first line of the message.
std::optional<base::Error> translate_c10_error(const std::exception_ptr& thrown);

// Makes run_threads and the rank wrappers use it; call once at start.
void register_c10_translator();

// The first line of a libtorch message, without "Exception raised from" and what follows.
std::string short_c10_message(std::string_view text);

}  // namespace expertmesh::comm
