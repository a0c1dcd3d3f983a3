// SPDX-License-Identifier: Apache-2.0
// The chat template that a model directory brings along, as text; it is recognised, never executed.
#pragma once

#include <optional>
#include <string>

#include "base/file.h"

namespace expertmesh::data {

// From chat_template.jinja, tokenizer_config.json or chat_template.json, whichever comes first; nothing where there is
// none. Of several named templates, "default". Errors: kModel for a file that is not JSON.
std::optional<std::string> read_chat_template(const base::FileSystem& fs, const std::string& model_dir);

}  // namespace expertmesh::data
