// SPDX-License-Identifier: Apache-2.0
#include "data/markup/markup.h"

#include <array>

#include "base/error.h"
#include "base/log.h"
#include "data/markup/markups.h"

namespace expertmesh::data {
namespace {

using base::Code;
using base::make_error;

constexpr std::array<Markup, 4> kMarkups = {{
    {"chatml", false, render_chatml, is_chatml_template},
    {"qwen3", true, render_qwen3, is_qwen3_template},
    {"qwen3_2507", false, render_qwen3_2507, is_qwen3_2507_template},
    {"qwen3_5", true, render_qwen3_5, is_qwen3_5_template},
}};

constexpr std::string_view kChoices = "auto, chatml, qwen3, qwen3_2507 or qwen3_5";

}  // namespace

std::span<const Markup> markups() { return kMarkups; }

const Markup* find_markup(std::string_view name) {
  for (const Markup& markup : kMarkups) {
    if (markup.name == name) return &markup;
  }
  return nullptr;
}

const Markup& choose_markup(std::string_view chat_markup, const std::optional<std::string>& chat_template) {
  if (chat_markup != "auto") {
    if (const Markup* markup = find_markup(chat_markup)) return *markup;
    throw make_error(Code::kConfig, "config/chat_markup", "unknown chat_markup '{}'", chat_markup)
        .hint(fmt::format("Choose {}.", kChoices));
  }
  if (!chat_template || chat_template->empty()) {
    base::log_warn("the model has no chat template: rendering with chat_markup chatml");
    return *find_markup("chatml");
  }
  const Markup* found = nullptr;
  for (const Markup& markup : kMarkups) {
    if (!markup.recognise(*chat_template)) continue;
    if (found != nullptr) {
      found = nullptr;
      break;
    }
    found = &markup;
  }
  if (found != nullptr) return *found;
  throw make_error(Code::kConfig, "config/chat_markup", "the model's chat template is none that is built in")
      .hint(fmt::format("Set chat_markup to the one that fits: {}.", kChoices.substr(6)));
}

}  // namespace expertmesh::data
