// SPDX-License-Identifier: Apache-2.0
// Converters: a table from name to a function that turns the JSON object of a row into a Row (spec 4.4).
// A converter never drops or repairs anything: what it cannot take as meant is an error.
// Errors: kData without a place; the caller adds FILE:LINE.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/json.h"
#include "data/sample.h"

namespace expertmesh::data {

struct Converter {
  std::string_view name;  // "" is the internal format
  std::string_view about;
  Row (*convert)(const base::Json& row);
};

std::span<const Converter> converters();
const Converter* find_converter(std::string_view name);

}  // namespace expertmesh::data
