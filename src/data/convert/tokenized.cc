// SPDX-License-Identifier: Apache-2.0
// Rows that are tokens already: no tokenizer and no markup take part. Alignment as Hugging Face has it: the label at
// position t is predicted from the tokens before t.
#include <fmt/format.h>

#include <limits>

#include "data/convert/converters.h"
#include "data/convert/fields.h"

namespace expertmesh::data {
namespace {

using base::Json;
using fields::bad_row;

int32_t read_id(const Json& item, std::string_view what, size_t position) {
  const auto value = item.try_int64();
  if (!value || !item.is_integer()) {
    throw bad_row("{}[{}] must be an integer, not {}", what, position, item.kind());
  }
  if (*value < 0 || *value > std::numeric_limits<int32_t>::max()) {
    throw bad_row("{}[{}] is {}, which is no token id", what, position, *value);
  }
  return static_cast<int32_t>(*value);
}

}  // namespace

Row convert_tokenized(const Json& json) {
  const Json::Array& ids = fields::list(fields::require(json, "input_ids", "input_ids"), "input_ids");
  const Json::Array& labels = fields::list(fields::require(json, "labels", "labels"), "labels");
  if (ids.size() != labels.size()) {
    throw bad_row("labels has length {} and input_ids {}: they must be of equal length", labels.size(), ids.size());
  }
  if (ids.empty()) throw bad_row("input_ids is empty");
  Row row;
  row.kind = RowKind::kTokenized;
  row.input_ids.reserve(ids.size());
  row.labels.reserve(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    row.input_ids.push_back(read_id(ids[i], "input_ids", i));
    const bool is_ignored = labels[i].try_int64() == int64_t{kIgnoredLabel};
    row.labels.push_back(is_ignored ? kIgnoredLabel : read_id(labels[i], "labels", i));
  }
  if (const Json* mask = fields::find(json, "attention_mask")) {
    for (const Json& item : fields::list(*mask, "attention_mask")) {
      if (item.try_int64() != int64_t{1}) {
        throw bad_row("attention_mask has an entry other than 1").hint("Give rows without padding.");
      }
    }
  }
  return row;
}

}  // namespace expertmesh::data
