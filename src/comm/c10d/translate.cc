// SPDX-License-Identifier: Apache-2.0
#include "comm/c10d/translate.h"

#include <c10/util/Exception.h>

#include "comm/rank_errors.h"

namespace expertmesh::comm {
namespace {

bool says_out_of_memory(std::string_view text) {
  return text.find("not enough memory") != std::string_view::npos ||
         text.find("out of memory") != std::string_view::npos ||
         text.find("t allocate memory") != std::string_view::npos;
}

}  // namespace

std::string short_c10_message(std::string_view text) {
  for (const std::string_view tail : {std::string_view("\nException raised from"), std::string_view("\n")}) {
    text = text.substr(0, text.find(tail));
  }
  // Some messages start with their source position in brackets.
  if (text.starts_with('[')) {
    const size_t end = text.find("] ");
    if (end != std::string_view::npos) text.remove_prefix(end + 2);
  }
  return std::string(text);
}

std::optional<base::Error> translate_c10_error(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const c10::Error& error) {
    const std::string text = short_c10_message(error.what_without_backtrace());
    if (dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr || says_out_of_memory(text)) {
      return base::make_error(base::Code::kResources, "resources/memory", "out of memory: {}", text)
          .hint("Use more ranks, a smaller micro_batch_size or cutoff_len, or a machine with more memory.");
    }
    return base::make_error(base::Code::kInternal, "internal/torch", "a tensor operation failed: {}", text);
  } catch (...) {
    return std::nullopt;
  }
}

void register_c10_translator() { register_error_translator(&translate_c10_error); }

}  // namespace expertmesh::comm
