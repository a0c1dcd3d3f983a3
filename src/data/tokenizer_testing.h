// SPDX-License-Identifier: Apache-2.0
// Helpers of the tokenizer's tests: a tiny tokenizer as JSON that tests change, random texts, ids from JSON.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "data/tokenizer_bytes.h"
#include "data/tokenizer_unicode.h"

namespace expertmesh::data::testing {

inline std::vector<int32_t> ids_of(const base::Json& list) {
  std::vector<int32_t> out;
  for (const base::Json& item : *list.try_array()) out.push_back(static_cast<int32_t>(item.try_int64().value()));
  return out;
}

// The 256 single bytes with ids 0 to 255, then the given tokens.
inline base::Json byte_vocabulary(const std::vector<std::string>& more = {}) {
  base::Json out{base::Json::Object{}};
  for (int byte = 0; byte < 256; ++byte) out.set(byte_spelling(static_cast<unsigned char>(byte)), byte);
  for (size_t i = 0; i < more.size(); ++i) out.set(more[i], static_cast<int64_t>(256 + i));
  return out;
}

// A tokenizer.json with "ab" = 256, "abc" = 257, "<s>" = 300 (special) and "<t>" = 301 (not).
inline base::Json tiny_tokenizer() {
  using base::Json;
  base::Json out = base::parse_json(R"js({"version": "1.0", "truncation": null, "padding": null,
    "added_tokens": [
      {"id": 300, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true},
      {"id": 301, "content": "<t>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": false}],
    "normalizer": {"type": "NFC"},
    "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
      {"type": "Split", "pattern": {"Regex": " ?\\p{L}+|\\p{N}|\\s+|[^\\s\\p{L}\\p{N}]+"}, "behavior": "Isolated", "invert": false},
      {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}]},
    "post_processor": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false, "use_regex": true},
    "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true}})js");
  Json model =
      base::parse_json(R"js({"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
    "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false})js");
  model.set("vocab", byte_vocabulary({"ab", "abc"}));
  model.set("merges", base::parse_json(R"js([["a", "b"], ["ab", "c"]])js"));
  out.set("model", std::move(model));
  return out;
}

// A text of code points below `limit` (no surrogates) mixed with the given pieces.
inline std::string random_text(std::mt19937& dice, const std::vector<std::string>& pieces, size_t count,
                               uint32_t limit) {
  std::string out;
  for (size_t i = 0; i < count; ++i) {
    if (!pieces.empty() && dice() % 2 == 0) {
      out += pieces[dice() % pieces.size()];
      continue;
    }
    uint32_t point = dice() % limit;
    if (point >= 0xd800 && point < 0xe000) point -= 0x1000;
    append_utf8(point, out);
  }
  return out;
}

}  // namespace expertmesh::data::testing
