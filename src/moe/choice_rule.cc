// SPDX-License-Identifier: Apache-2.0
#include "moe/choice_rule.h"

#include <algorithm>
#include <charconv>
#include <iterator>

#include "base/error.h"

namespace expertmesh::moe {
namespace {

using base::Code;
using base::Error;
using base::make_error;

template <typename Int>
std::optional<Int> try_number(std::string_view text) {
  Int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

Error bad_rule(std::string_view text) {
  return make_error(Code::kConfig, "config/debug_router", "debug_router \"{}\" is no rule.", text)
      .hint(
          "Use balanced, hot:K, none:RANK, rotating:K or burst:K/N, each with an optional @rank, for example hot:2@0.");
}

Error misfit(std::string message, std::string hint) {
  return Error(Code::kConfig, "config/debug_router", std::move(message)).hint(std::move(hint));
}

ExcludedExperts all_but_first(std::string_view rule, int64_t hot, int64_t num_experts, int64_t top_k) {
  if (hot < top_k || hot > num_experts) {
    const std::string_view name = rule.substr(0, rule.find(':'));
    throw misfit(
        fmt::format("debug_router {} does not fit {} choices a token among {} experts.", rule, top_k, num_experts),
        fmt::format("Use {0}:{1} to {0}:{2}.", name, top_k, num_experts));
  }
  return {hot, num_experts};
}

ExcludedExperts experts_of_rank(int64_t rank, int64_t num_experts, int64_t top_k, int64_t ep_size) {
  if (rank >= ep_size) {
    throw misfit(fmt::format("debug_router none:{} names an ep rank, but ep_size is {}.", rank, ep_size),
                 fmt::format("Use none:0 to none:{}.", ep_size - 1));
  }
  const int64_t local = num_experts / ep_size;
  if (num_experts - local < top_k) {
    throw misfit(fmt::format("debug_router none:{} leaves {} of {} experts for {} choices a token.", rank,
                             num_experts - local, num_experts, top_k),
                 "Use a larger ep_size, or hot:K.");
  }
  return {rank * local, (rank + 1) * local};
}

// The names with a number, and their kinds.
struct NamedKind {
  std::string_view name;
  DebugRouter::Kind kind;
};
constexpr NamedKind kNumbered[] = {{"hot", DebugRouter::Kind::kHot},
                                   {"none", DebugRouter::Kind::kNone},
                                   {"rotating", DebugRouter::Kind::kRotating},
                                   {"burst", DebugRouter::Kind::kBurst}};

}  // namespace

ExcludedExperts ChoiceRule::excluded_in(int64_t micro_batch, int64_t num_experts) const {
  if (micro_batch % period != period - 1) return {};
  const int64_t begin = (excluded.begin + micro_batch * step) % num_experts;
  return {begin, begin + excluded.size()};
}

std::optional<DebugRouter> try_parse_debug_router(std::string_view text) {
  if (text.empty()) return std::nullopt;
  DebugRouter rule;
  std::string_view head = text;
  if (const size_t at = text.find('@'); at != std::string_view::npos) {
    rule.rank = try_number<int>(text.substr(at + 1));
    if (!rule.rank) throw bad_rule(text);
    head = text.substr(0, at);
  }
  if (head == "balanced") return rule;
  const size_t colon = head.find(':');
  if (colon == std::string_view::npos) throw bad_rule(text);
  const std::string_view name = head.substr(0, colon);
  const auto known = std::find_if(std::begin(kNumbered), std::end(kNumbered),
                                  [&](const NamedKind& named) { return named.name == name; });
  if (known == std::end(kNumbered)) throw bad_rule(text);
  rule.kind = known->kind;
  std::string_view number = head.substr(colon + 1);
  if (rule.kind == DebugRouter::Kind::kBurst) {
    const size_t slash = number.find('/');
    const auto period = slash == std::string_view::npos ? std::nullopt : try_number<int64_t>(number.substr(slash + 1));
    if (period.value_or(0) < 1) throw bad_rule(text);
    rule.period = *period;
    number = number.substr(0, slash);
  }
  const std::optional<int64_t> value = try_number<int64_t>(number);
  if (!value) throw bad_rule(text);
  rule.number = *value;
  return rule;
}

ChoiceRule make_choice_rule(std::string_view debug_router, int64_t num_experts, int64_t top_k, const comm::Group& ep) {
  ChoiceRule choice;
  const std::optional<DebugRouter> rule = try_parse_debug_router(debug_router);
  if (!rule) return choice;
  // Sizes are checked on every rank, so that a rule that does not fit fails on all of them alike.
  switch (rule->kind) {
    case DebugRouter::Kind::kBalanced:
      choice.balanced = true;
      break;
    case DebugRouter::Kind::kNone:
      choice.excluded = experts_of_rank(rule->number, num_experts, top_k, ep.size());
      break;
    case DebugRouter::Kind::kHot:
    case DebugRouter::Kind::kRotating:
    case DebugRouter::Kind::kBurst:
      choice.excluded = all_but_first(debug_router, rule->number, num_experts, top_k);
      if (rule->kind == DebugRouter::Kind::kRotating) choice.step = rule->number;
      if (rule->kind == DebugRouter::Kind::kBurst) choice.period = rule->period;
      break;
  }
  const int rank = ep.members().at(static_cast<size_t>(ep.rank()));
  return rule->rank && *rule->rank != rank ? ChoiceRule{} : choice;
}

}  // namespace expertmesh::moe
