// SPDX-License-Identifier: Apache-2.0
// From the text of a row to a converted, checked row with its cuts.
// Errors: kData at FILE:LINE.
#pragma once

#include <vector>

#include "data/convert/converter.h"
#include "data/row_file.h"
#include "data/turns.h"

namespace expertmesh::data {

struct LoadedRow {
  Row row;
  std::vector<int> cuts;  // prefix lengths, one per sample; 0 for a tokenized row or a pair
};

LoadedRow load_row(const RowFile& file, const RowText& text, const Converter& converter, Use use);

// Calls `body` and gives an Error of it the row's place, unless it has one.
template <typename Body>
auto at_row(const RowFile& file, const RowText& text, Body&& body) {
  try {
    return body();
  } catch (base::Error& error) {
    if (error.where().empty() && error.code() == base::Code::kData) error.at(file.where(text));
    throw;
  }
}

}  // namespace expertmesh::data
