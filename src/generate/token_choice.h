// SPDX-License-Identifier: Apache-2.0
// Which token comes next: from the model's scores of the whole vocabulary to one id. Greedy, or drawn after the filters
// that transformers has, in its order: temperature, then top-k, then top-p.
// Errors: kNumerics for scores that are not finite.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/rng.h"

namespace expertmesh::generate {

// How a token is chosen.
struct Sampling {
  double temperature = 0;  // what scores are divided by; 0: the best one is taken, nothing is drawn
  int64_t top_k = 0;       // scores below the k-th best are out, so ties at its place stay; 0: off
  double top_p = 1;        // the smallest set of tokens whose probability reaches this, at least one; 1: off

  bool is_greedy() const { return temperature == 0; }
  bool operator==(const Sampling&) const = default;
};

// What is wrong with a value, to follow "temperature -1 "; empty: nothing.
std::string_view temperature_fault(double value);
std::string_view top_k_fault(int64_t value);
std::string_view top_p_fault(double value);

// The best score's id, the lowest on a tie.
int32_t best_token(std::span<const float> scores_V);

// The id at `draw` (0 to 1, without 1) of the probabilities that the filters leave, in the order of ids. Not for greedy
// sampling.
int32_t drawn_token(std::span<const float> scores_V, const Sampling& sampling, double draw);

// Chooses the tokens of one row. What it draws depends on seed, row and how many tokens it chose before, so neither
// other rows nor other ranks change it.
class TokenChooser {
 public:
  TokenChooser(const Sampling& sampling, uint64_t seed, uint64_t row);
  int32_t choose(std::span<const float> scores_V);

 private:
  Sampling sampling_;
  base::RandomField random_;
  uint64_t row_;
  uint64_t chosen_ = 0;
};

}  // namespace expertmesh::generate
