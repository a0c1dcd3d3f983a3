// SPDX-License-Identifier: Apache-2.0
// What a rank threw, as our own Error: the one place where foreign exceptions become messages for users.
// Threads: translation from any; translators are registered before ranks start.
#pragma once

#include <exception>
#include <optional>

#include "base/error.h"

namespace expertmesh::comm {

// Turns an exception of a library into an Error; nothing where it does not know the type.
using ErrorTranslator = std::optional<base::Error> (*)(const std::exception_ptr& thrown);

// Asked in order of registration, before the standard types. Registering the same one again changes nothing.
void register_error_translator(ErrorTranslator translator);

// base::Error as it is, std::bad_alloc as kResources, what a translator knows, everything else as kInternal.
base::Error translate_exception(const std::exception_ptr& thrown);

}  // namespace expertmesh::comm
