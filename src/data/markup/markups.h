// SPDX-License-Identifier: Apache-2.0
// The functions behind the markup table.
#pragma once

#include <string>
#include <string_view>

#include "data/markup/markup.h"

namespace expertmesh::data {

std::string render_chatml(const RenderInput& input);
bool is_chatml_template(std::string_view chat_template);

std::string render_qwen3(const RenderInput& input);
bool is_qwen3_template(std::string_view chat_template);

std::string render_qwen3_2507(const RenderInput& input);
bool is_qwen3_2507_template(std::string_view chat_template);

std::string render_qwen3_5(const RenderInput& input);
bool is_qwen3_5_template(std::string_view chat_template);

}  // namespace expertmesh::data
