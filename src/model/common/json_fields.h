// SPDX-License-Identifier: Apache-2.0
// Typed, checked reading of config.json: every problem is a kModel error that names the file, the key, what was found
// and what is expected. A key that is absent or null takes the default; without one it is required.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/json.h"

namespace expertmesh::model {

struct IntRange {
  int64_t least = 1;
  int64_t most = int64_t{1} << 24;  // no real size comes near; products of two stay far from overflow
};

class JsonFields {
 public:
  // `where` is the file; `prefix` goes before key names ("rope_parameters.").
  JsonFields(const base::Json& object, std::string where, std::string prefix = {});

  // The value of a key; nullptr where it is absent or null.
  const base::Json* find(std::string_view key) const;
  bool has(std::string_view key) const { return find(key) != nullptr; }

  int64_t integer(std::string_view key, std::optional<int64_t> fallback = {}, IntRange range = {}) const;
  double number(std::string_view key, std::optional<double> fallback = {}) const;  // finite
  double positive(std::string_view key, std::optional<double> fallback = {}) const;
  bool boolean(std::string_view key, bool fallback) const;
  std::string text(std::string_view key, std::optional<std::string> fallback = {}) const;
  std::vector<int64_t> integers(std::string_view key, IntRange range) const;  // absent: empty
  std::vector<std::string> texts(std::string_view key) const;                 // absent: empty
  // The fields of an object inside this one.
  JsonFields object(std::string_view key) const;

  // "KEY is VALUE, but ...": to throw for a value that does not fit others.
  base::Error error(std::string_view key, std::string_view problem) const;

  const std::string& where() const { return where_; }
  const std::string& prefix() const { return prefix_; }

 private:
  base::Error wrong(std::string_view key, const base::Json& value, std::string_view expected) const;
  base::Error missing(std::string_view key, std::string_view expected) const;

  const base::Json& object_;
  std::string where_, prefix_;
};

// A value for a message, cut where it is long.
std::string brief(const base::Json& value);

}  // namespace expertmesh::model
