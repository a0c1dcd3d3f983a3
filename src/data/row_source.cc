// SPDX-License-Identifier: Apache-2.0
#include "data/row_source.h"

#include "base/error.h"

namespace expertmesh::data {

LoadedRow load_row(const RowFile& file, const RowText& text, const Converter& converter, Use use) {
  return at_row(file, text, [&] {
    LoadedRow loaded;
    loaded.row = converter.convert(file.parse(text));
    loaded.cuts = row_cuts(loaded.row, use);
    return loaded;
  });
}

}  // namespace expertmesh::data
