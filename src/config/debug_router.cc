// SPDX-License-Identifier: Apache-2.0
#include "config/debug_router.h"

#include <fmt/format.h>

#include <charconv>

#include "config/scalar.h"

namespace expertmesh::config {
namespace {

std::optional<int64_t> try_count(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool is_whole = error == std::errc() && end == text.data() + text.size() && !text.empty();
  return is_whole && value >= 0 && value < (1 << 20) ? std::optional(value) : std::nullopt;
}

std::optional<DebugRouter> try_parse(std::string_view text) {
  DebugRouter router;
  if (const size_t at = text.find('@'); at != std::string_view::npos) {
    router.only_on_rank = try_count(text.substr(at + 1));
    if (!router.only_on_rank) return std::nullopt;
    text = text.substr(0, at);
  }
  if (text == "balanced") {
    router.kind = DebugRouter::Kind::kBalanced;
    return router;
  }
  const size_t colon = text.find(':');
  if (colon == std::string_view::npos) return std::nullopt;
  const std::string_view kind = text.substr(0, colon);
  std::string_view number = text.substr(colon + 1);
  if (kind == "burst") {
    const size_t slash = number.find('/');
    const auto period = slash == std::string_view::npos ? std::nullopt : try_count(number.substr(slash + 1));
    if (period.value_or(0) == 0) return std::nullopt;
    router.period = *period;
    number = number.substr(0, slash);
  }
  const auto value = try_count(number);
  if (!value) return std::nullopt;
  if (kind == "hot" || kind == "rotating" || kind == "burst") {
    if (*value == 0) return std::nullopt;
    router.kind = kind == "hot"        ? DebugRouter::Kind::kHot
                  : kind == "rotating" ? DebugRouter::Kind::kRotating
                                       : DebugRouter::Kind::kBurst;
    router.count = *value;
    return router;
  }
  if (kind == "none") {
    router.kind = DebugRouter::Kind::kNone;
    router.avoided_rank = *value;
    return router;
  }
  return std::nullopt;
}

}  // namespace

DebugRouter read_debug_router(const Node& node) {
  if (node.is_null()) return {};
  if (node.is_scalar()) {
    if (const auto router = try_parse(node.text)) return *router;
  }
  throw ValueError{
      fmt::format("is {}, expected balanced, hot:K, none:RANK, rotating:K or burst:K/N, each with an optional @RANK",
                  describe(node)),
      "For example hot:2@0: on rank 0 every token goes to the first two experts."};
}

std::string debug_router_text(const DebugRouter& router) {
  std::string text;
  switch (router.kind) {
    case DebugRouter::Kind::kOff:
      return "";
    case DebugRouter::Kind::kBalanced:
      text = "balanced";
      break;
    case DebugRouter::Kind::kHot:
      text = fmt::format("hot:{}", router.count);
      break;
    case DebugRouter::Kind::kNone:
      text = fmt::format("none:{}", router.avoided_rank);
      break;
    case DebugRouter::Kind::kRotating:
      text = fmt::format("rotating:{}", router.count);
      break;
    case DebugRouter::Kind::kBurst:
      text = fmt::format("burst:{}/{}", router.count, router.period);
      break;
  }
  return router.only_on_rank ? fmt::format("{}@{}", text, *router.only_on_rank) : text;
}

}  // namespace expertmesh::config
