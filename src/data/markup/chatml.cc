// SPDX-License-Identifier: Apache-2.0
// Plain ChatML, for models without a template: no tools and no reasoning, so rows that have them are refused.
#include "base/error.h"
#include "data/markup/markups.h"
#include "data/markup/qwen_common.h"

namespace expertmesh::data {
namespace {

void check_expressible(const RenderInput& input) {
  const auto refuse = [](std::string_view what) {
    throw base::make_error(base::Code::kData, "data/markup", "the chatml markup cannot express {}", what)
        .hint("Set chat_markup to qwen3, qwen3_2507 or qwen3_5.");
  };
  if (!input.tools.empty()) refuse("tools");
  for (const Turn& turn : input.turns) {
    if (!turn.calls.empty()) refuse("tool calls");
    if (!turn.reasoning.empty()) refuse("reasoning");
  }
}

}  // namespace

std::string render_chatml(const RenderInput& input) {
  check_expressible(input);
  std::string out;
  for (const Turn& turn : input.turns) qwen::append_message(out, role_name(turn.role), turn.text);
  if (input.open_answer) {
    out += qwen::kOpen;
    out += "assistant\n";
  }
  return out;
}

// A short loop over messages that knows neither tools nor thinking nor a system text of its own.
bool is_chatml_template(std::string_view chat_template) {
  const auto has = [&](std::string_view part) { return chat_template.find(part) != std::string_view::npos; };
  return chat_template.size() < 600 && has("<|im_start|>") && has("<|im_end|>") && !has("tool") && !has("think") &&
         !has("system") && !has("You are");
}

}  // namespace expertmesh::data
