// SPDX-License-Identifier: Apache-2.0
// tokenizer_config.json names the roles of tokens and repeats the added ones. What it says must agree with
// tokenizer.json: a token that only the config knows would get no id.
#include <algorithm>
#include <charconv>

#include "data/tokenizer_load.h"

namespace expertmesh::data {
namespace {

using base::json_quote;

// A token is written as its text or as an object with the text in "content".
const std::string& token_text(const JsonPlace& place) {
  return place.is_string() ? place.string() : place["content"].string();
}

// A token with a role is special and is found in text, also where tokenizer.json does not list it among the added ones.
void mark_special(const JsonPlace& place, const std::string& token, TokenizerSpec& spec) {
  Vocabulary::Entry* entry = spec.vocabulary.edit(token);
  if (entry == nullptr) place.fail("token {} is not in tokenizer.json", json_quote(token));
  entry->is_special = true;
  const auto added = std::find_if(spec.added.begin(), spec.added.end(),
                                  [&](const AddedToken& other) { return other.content == token; });
  if (added != spec.added.end()) {
    added->special = true;
    return;
  }
  entry->bytes = token;
  spec.added.push_back({.id = entry->id, .content = token, .special = true});
}

std::optional<std::string> read_role(const JsonPlace& place, TokenizerSpec& spec) {
  if (place.is_absent()) return std::nullopt;
  const std::string& token = token_text(place);
  mark_special(place, token, spec);
  return token;
}

void read_more_special(const JsonPlace& place, TokenizerSpec& spec) {
  if (place.is_absent()) return;
  for (size_t i = 0; i < place.array().size(); ++i) mark_special(place.item(i), token_text(place.item(i)), spec);
}

int32_t id_of_key(const JsonPlace& place, const std::string& key) {
  int32_t id = -1;
  const char* const end = key.data() + key.size();
  const auto [stop, error] = std::from_chars(key.data(), end, id);
  if (error != std::errc() || stop != end || id < 0 || id > kMaxTokenId) {
    place.fail("the key {} is no token id", json_quote(key));
  }
  return id;
}

void check_added(const JsonPlace& decoder, TokenizerSpec& spec) {
  if (decoder.is_absent()) return;
  for (const auto& [key, value] : decoder.object()) {
    const JsonPlace place = decoder[key];
    const int32_t id = id_of_key(decoder, key);
    const std::string& content = place["content"].string();
    Vocabulary::Entry* entry = spec.vocabulary.edit(content);
    if (entry == nullptr) place.fail("token {} is not in tokenizer.json", json_quote(content));
    if (entry->id != id) {
      place.fail("token {} has id {} here and id {} in tokenizer.json", json_quote(content), id, entry->id);
    }
    if (place["special"].boolean(false)) mark_special(place, content, spec);
  }
}

// A string, or a list of {name, template} of which "default" counts.
std::string read_chat_template(const JsonPlace& place) {
  if (place.is_absent()) return {};
  if (place.is_string()) return place.string();
  for (size_t i = 0; i < place.array().size(); ++i) {
    if (place.item(i)["name"].string() == "default") return place.item(i)["template"].string();
  }
  return {};
}

}  // namespace

void read_tokenizer_config(const JsonPlace& root, TokenizerSpec& spec) {
  root.object();
  for (const char* key : {"add_bos_token", "add_eos_token"}) {
    if (root[key].boolean(false)) root[key].fail("is true: tokens around every text are not supported");
  }
  check_added(root["added_tokens_decoder"], spec);
  spec.eos_token = read_role(root["eos_token"], spec);
  spec.pad_token = read_role(root["pad_token"], spec);
  for (const char* key : {"bos_token", "unk_token"}) read_role(root[key], spec);
  for (const char* key : {"additional_special_tokens", "extra_special_tokens"}) {
    if (!root[key].is_object()) read_more_special(root[key], spec);
  }
  spec.chat_template = read_chat_template(root["chat_template"]);
}

}  // namespace expertmesh::data
