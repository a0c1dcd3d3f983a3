// SPDX-License-Identifier: Apache-2.0
// The functions behind the converter table.
#pragma once

#include "base/json.h"
#include "data/sample.h"

namespace expertmesh::data {

Row convert_internal(const base::Json& row);
Row convert_alpaca(const base::Json& row);
Row convert_sharegpt(const base::Json& row);
Row convert_pair(const base::Json& row);
Row convert_openai(const base::Json& row);
Row convert_tokenized(const base::Json& row);

}  // namespace expertmesh::data
