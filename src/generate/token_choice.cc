// SPDX-License-Identifier: Apache-2.0
#include "generate/token_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "base/check.h"
#include "base/error.h"

namespace expertmesh::generate {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

// A token that may be drawn; weight is its probability but for a common factor.
struct Candidate {
  int32_t id;
  double weight;
};

// Before anything is compared: with NaN among the values, what a comparison gives depends on their order.
void check_scores(std::span<const float> scores_V) {
  const auto is_bad = [](float score) { return !(score < std::numeric_limits<float>::infinity()); };
  const auto bad = std::find_if(scores_V.begin(), scores_V.end(), is_bad);
  if (bad == scores_V.end()) return;
  throw base::make_error(base::Code::kNumerics, "generate/scores", "the model's score of token {} is {}",
                         bad - scores_V.begin(), *bad)
      .hint("Check the weights; `--bf16 false` computes in fp32.");
}

// The least score that top-k lets through.
float score_limit(std::span<const float> scores_V, int64_t top_k) {
  if (top_k == 0 || top_k >= static_cast<int64_t>(scores_V.size())) return kNever;
  std::vector<float> best(static_cast<size_t>(top_k));
  std::partial_sort_copy(scores_V.begin(), scores_V.end(), best.begin(), best.end(), std::greater<>());
  return best.back();
}

std::vector<Candidate> candidates_of(std::span<const float> scores_V, const Sampling& sampling, float best) {
  const float limit = score_limit(scores_V, sampling.top_k);
  std::vector<Candidate> candidates;
  for (size_t id = 0; id < scores_V.size(); ++id) {
    const float score = scores_V[id];
    if (score < limit || score == kNever) continue;
    const double weight = std::exp((static_cast<double>(score) - best) / sampling.temperature);
    candidates.push_back({static_cast<int32_t>(id), weight});
  }
  return candidates;
}

double total_weight(const std::vector<Candidate>& candidates) {
  double total = 0;
  for (const Candidate& candidate : candidates) total += candidate.weight;
  return total;
}

// Only as many are sorted as are needed: of a large vocabulary a few tokens hold nearly everything.
void keep_most_probable(std::vector<Candidate>& candidates, double top_p) {
  const double wanted = top_p * total_weight(candidates);
  const auto comes_first = [](const Candidate& a, const Candidate& b) {
    return a.weight > b.weight || (a.weight == b.weight && a.id < b.id);
  };
  size_t kept = 0, sorted = 0;
  for (double reached = 0; reached < wanted && kept < candidates.size(); ++kept) {
    if (kept == sorted) {
      constexpr size_t kFirst = 64, kGrowth = 8;
      sorted = std::min(candidates.size(), std::max(kFirst, kGrowth * sorted));
      const auto begin = candidates.begin() + static_cast<std::ptrdiff_t>(kept);
      std::partial_sort(begin, candidates.begin() + static_cast<std::ptrdiff_t>(sorted), candidates.end(), comes_first);
    }
    reached += candidates[kept].weight;
  }
  candidates.resize(kept);
  std::sort(candidates.begin(), candidates.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
}

}  // namespace

std::string_view temperature_fault(double value) {
  return value >= 0 && std::isfinite(value) ? "" : "is not 0 or a number above it";
}

std::string_view top_k_fault(int64_t value) { return value >= 0 ? "" : "is below 0"; }

std::string_view top_p_fault(double value) { return value > 0 && value <= 1 ? "" : "is not above 0 and at most 1"; }

int32_t best_token(std::span<const float> scores_V) {
  EXPERTMESH_CHECK(!scores_V.empty(), "no scores");
  check_scores(scores_V);
  const auto best = std::max_element(scores_V.begin(), scores_V.end());
  if (*best == kNever) {
    throw base::Error(base::Code::kNumerics, "generate/scores", "the model's scores of all tokens are -inf")
        .hint("Check the weights; `--bf16 false` computes in fp32.");
  }
  return static_cast<int32_t>(best - scores_V.begin());
}

int32_t drawn_token(std::span<const float> scores_V, const Sampling& sampling, double draw) {
  EXPERTMESH_CHECK(!sampling.is_greedy() && draw >= 0 && draw < 1, "temperature {}, draw {}", sampling.temperature,
                   draw);
  const float best = scores_V[static_cast<size_t>(best_token(scores_V))];
  std::vector<Candidate> candidates = candidates_of(scores_V, sampling, best);
  if (sampling.top_p < 1) keep_most_probable(candidates, sampling.top_p);
  const double wanted = draw * total_weight(candidates);
  double reached = 0;
  int32_t chosen = -1;
  for (const Candidate& candidate : candidates) {
    if (candidate.weight == 0) continue;  // underflow: never drawn
    reached += candidate.weight;
    chosen = candidate.id;
    if (reached > wanted) break;
  }
  return chosen;
}

TokenChooser::TokenChooser(const Sampling& sampling, uint64_t seed, uint64_t row)
    : sampling_(sampling), random_(seed, fmt::format("row {}", row)), row_(row) {}

int32_t TokenChooser::choose(std::span<const float> scores_V) {
  const uint64_t index = chosen_++;
  try {
    return sampling_.is_greedy() ? best_token(scores_V) : drawn_token(scores_V, sampling_, random_.uniform(index));
  } catch (base::Error& error) {
    error.at(fmt::format("row {}, new token {}", row_ + 1, index + 1));
    throw;
  }
}

}  // namespace expertmesh::generate
