// SPDX-License-Identifier: Apache-2.0
#include "comm/c10d/error_text.h"

#include "base/json.h"

namespace expertmesh::comm {
namespace {

constexpr base::Code kCodes[] = {base::Code::kUsage,     base::Code::kConfig,     base::Code::kData,
                                 base::Code::kModel,     base::Code::kCheckpoint, base::Code::kCommSetup,
                                 base::Code::kPeerLost,  base::Code::kTimeout,    base::Code::kNumerics,
                                 base::Code::kPreempted, base::Code::kResources,  base::Code::kInternal};

std::string text_of(const base::Json& json, std::string_view key) {
  const base::Json* member = json.find(key);
  const std::string* text = member == nullptr ? nullptr : member->try_string();
  return text == nullptr ? std::string() : *text;
}

std::optional<int64_t> number_of(const base::Json& json, std::string_view key) {
  const base::Json* member = json.find(key);
  return member == nullptr ? std::nullopt : member->try_int64();
}

// Messages may quote bytes of a user's file.
std::string printable(std::string_view text) {
  std::string clean(text);
  while (const auto offset = base::find_invalid_utf8(clean)) clean[*offset] = '?';
  return clean;
}

}  // namespace

std::string error_to_json(const base::Error& error) {
  base::Json::Object object;
  object.emplace_back("code", static_cast<int>(error.code()));
  object.emplace_back("topic", printable(error.topic()));
  object.emplace_back("message", printable(error.message()));
  object.emplace_back("hint", printable(error.hint()));
  object.emplace_back("where", printable(error.where()));
  object.emplace_back("coords", printable(error.coords()));
  object.emplace_back("step", static_cast<int64_t>(error.step()));
  object.emplace_back("rank", error.rank().value_or(-1));
  return base::dump_json(base::Json(std::move(object)));
}

std::optional<base::Error> try_error_from_json(std::string_view text) {
  base::Json json;
  try {
    json = base::parse_json(text);
  } catch (const base::JsonError&) {
    return std::nullopt;
  }
  const auto code = number_of(json, "code");
  for (const base::Code known : kCodes) {
    if (code != static_cast<int>(known)) continue;
    base::Error error(known, text_of(json, "topic"), text_of(json, "message"));
    error.hint(text_of(json, "hint")).at(text_of(json, "where"));
    const int64_t rank = number_of(json, "rank").value_or(-1);
    if (rank >= 0) {
      error.on_rank(static_cast<int>(rank), text_of(json, "coords"), number_of(json, "step").value_or(-1));
    }
    return error;
  }
  return std::nullopt;
}

}  // namespace expertmesh::comm
