// SPDX-License-Identifier: Apache-2.0
// Scalars to values, strictly and by the text itself: `010`, `12.5` for an integer, `y` and quoted numbers are errors.
#pragma once

#include <cstdint>
#include <string>

#include "config/node.h"

namespace expertmesh::config {

// What is wrong with one value; the reader adds the key and the place.
struct ValueError {
  std::string message;  // "is 12.5, expected an integer of at least 1"
  std::string hint;     // a full sentence, or empty
};

// In sections, quoted numbers and booleans count as what they look like (upstream normalises them); at the top level
// quoted text is text.
enum class Quotes { kText, kNormalise };

struct IntegerRange {
  int64_t min = INT64_MIN;
  int64_t max = INT64_MAX;
};

struct NumberRange {
  double min = -1e300;
  double max = 1e300;
  bool excludes_min = false;
  bool allows_infinity = false;
};

std::string integer_expectation(const IntegerRange& range);  // "an integer of at least 1"
std::string number_expectation(const NumberRange& range);    // "a number from 0 to 0.5"

bool read_bool(const Node& node, Quotes quotes);
int64_t read_integer(const Node& node, const IntegerRange& range, Quotes quotes);
double read_number(const Node& node, const NumberRange& range, Quotes quotes);

// Plain scalars that YAML reads as another type are refused for text, unless `any_scalar` (command-line overrides,
// where the shell takes the quotes away).
std::string read_text(const Node& node, bool any_scalar);

// Whether a plain scalar of this text would be read as null, a boolean or a number.
bool looks_like_other_type(std::string_view text);

}  // namespace expertmesh::config
