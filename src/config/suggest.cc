// SPDX-License-Identifier: Apache-2.0
#include "config/suggest.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <limits>

namespace expertmesh::config {
namespace {

// Names are compared as a reader sees them: case and the two dashes do not count.
std::string fold(std::string_view name) {
  std::string out;
  for (const char c : name) out += c == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

// How many mistakes a name may have: one in five characters. In names of three letters almost anything is near, so
// their first letter has to be right.
int max_distance(std::string_view name, std::string_view known) {
  const size_t shorter = std::min(name.size(), known.size());
  if (shorter <= 3) return shorter >= 2 && name[0] == known[0] ? 1 : 0;
  return std::clamp(static_cast<int>(shorter) / 5, 1, 4);
}

constexpr size_t kMaxName = 64;  // longer names are no misspelling of ours, and the distance is quadratic

template <typename Names>
std::optional<std::string> nearest(std::string_view name, const Names& known) {
  if (name.empty() || name.size() > kMaxName) return std::nullopt;
  const std::string folded = fold(name);
  int best = std::numeric_limits<int>::max();
  std::optional<std::string> found;
  for (const auto& candidate : known) {
    const std::string folded_candidate = fold(candidate);
    const int distance = edit_distance(folded, folded_candidate);
    if (distance < best && distance <= max_distance(folded, folded_candidate)) {
      best = distance;
      found = std::string(candidate);
    }
  }
  return found;
}

}  // namespace

int edit_distance(std::string_view a, std::string_view b) {
  // Three rows of the table: a swap of neighbours looks two rows back.
  std::vector<int> before(b.size() + 1), previous(b.size() + 1), current(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) previous[j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    current[0] = static_cast<int>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const int substitute = previous[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      current[j] = std::min({previous[j] + 1, current[j - 1] + 1, substitute});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        current[j] = std::min(current[j], before[j - 2] + 1);
      }
    }
    std::swap(before, previous);
    std::swap(previous, current);
  }
  return previous[b.size()];
}

std::optional<std::string> try_nearest(std::string_view name, std::span<const std::string> known) {
  return nearest(name, known);
}
std::optional<std::string> try_nearest(std::string_view name, std::span<const std::string_view> known) {
  return nearest(name, known);
}

std::string join_names(std::span<const std::string> names) { return fmt::format("{}", fmt::join(names, ", ")); }
std::string join_names(std::span<const std::string_view> names) { return fmt::format("{}", fmt::join(names, ", ")); }

}  // namespace expertmesh::config
