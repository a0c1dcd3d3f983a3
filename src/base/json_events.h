// SPDX-License-Identifier: Apache-2.0
// Event reader under parse_json, for large or hostile text of which no tree is wanted: the text is walked without
// recursion, values arrive one by one, and nothing is kept. Duplicate keys are the receiver's business.
// Errors: JsonError; a receiver refuses the value it was just given by throwing JsonRefusal.
#pragma once

#include <string>
#include <string_view>

#include "base/json.h"

namespace expertmesh::base {

// Turned into a JsonError at the position of the value or key being reported.
struct JsonRefusal {
  std::string message;
};

class JsonEvents {
 public:
  virtual ~JsonEvents() = default;
  virtual void on_scalar(Json value) = 0;         // null, boolean, number or string
  virtual void on_key(std::string_view key) = 0;  // the view lives until the call returns
  virtual void on_begin(bool is_object) = 0;      // an object or a list opens
  virtual void on_end(bool is_object) = 0;
};

void parse_json_events(std::string_view text, const JsonLimits& limits, JsonEvents& events);

// A JsonError for a byte offset of the text, with line and column filled in.
JsonError json_error_at(std::string_view text, size_t offset, std::string message);

}  // namespace expertmesh::base
