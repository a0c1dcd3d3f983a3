// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <unordered_set>

#include "data/tokenizer_bytes.h"
#include "data/tokenizer_load.h"

namespace expertmesh::data {
namespace {

using base::json_quote;

constexpr size_t kMaxAddedToken = 512;  // bytes

void refuse_options(const JsonPlace& model) {
  if (!model["type"].is_absent() && model.type() != "BPE") {
    model["type"].fail("is {}; only byte-level BPE is supported", json_quote(model.type()));
  }
  const JsonPlace dropout = model["dropout"];
  if (!dropout.is_absent()) dropout.fail("merging at random is not supported; null is needed");
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const JsonPlace place = model[key];
    if (!place.is_absent() && !place.string().empty()) {
      place.fail("is {}; byte-level BPE has none", json_quote(place.string()));
    }
  }
  if (model["byte_fallback"].boolean(false)) model["byte_fallback"].fail("is true; byte-level BPE has none");
}

void read_vocabulary(const JsonPlace& vocab, Vocabulary& vocabulary) {
  for (const auto& [spelling, value] : vocab.object()) {
    if (spelling.empty()) vocab.fail("a token is empty");
    Vocabulary::Entry entry;
    entry.spelling = spelling;
    entry.bytes = try_bytes_of_spelling(spelling).value_or(spelling);
    entry.id = token_id(value, vocab, spelling);
    vocabulary.add(std::move(entry));  // spellings differ: the JSON reader refuses a key that is there twice
  }
  for (int byte = 0; byte < 256; ++byte) {
    const std::string_view spelling = byte_spelling(static_cast<unsigned char>(byte));
    if (vocabulary.find_spelling(spelling) == nullptr) {
      vocab.fail("has no token for the single byte 0x{:02x} (spelled {}), so not every text has ids", byte,
                 json_quote(spelling));
    }
  }
}

struct Pair {
  std::string_view left, right;
};

// "a b" or ["a", "b"].
Pair read_pair(const JsonPlace& merges, size_t index) {
  const base::Json& value = merges.array()[index];
  if (const std::string* text = value.try_string()) {
    const size_t space = text->find(' ');
    if (space != std::string::npos && text->find(' ', space + 1) == std::string::npos) {
      return {std::string_view(*text).substr(0, space), std::string_view(*text).substr(space + 1)};
    }
  } else if (const base::Json::Array* items = value.try_array()) {
    if (items->size() == 2 && (*items)[0].is_string() && (*items)[1].is_string()) {
      return {*(*items)[0].try_string(), *(*items)[1].try_string()};
    }
  }
  merges.item(index).fail("is {}; two tokens are needed, as \"a b\" or [\"a\", \"b\"]",
                          base::dump_json(value).substr(0, 100));
}

int32_t id_in_merge(const JsonPlace& merges, size_t index, const Vocabulary& vocabulary, std::string_view spelling,
                    const char* role) {
  const Vocabulary::Entry* entry = vocabulary.find_spelling(spelling);
  if (entry == nullptr) merges.item(index).fail("its {} {} is not in the vocabulary", role, json_quote(spelling));
  return entry->id;
}

void read_merges(const JsonPlace& merges, TokenizerSpec& spec) {
  const size_t count = merges.array().size();
  spec.merges.reserve(count);
  std::unordered_set<uint64_t> seen;
  seen.reserve(count);
  std::string result;
  for (size_t i = 0; i < count; ++i) {
    const Pair pair = read_pair(merges, i);
    BpeMerge merge;
    merge.left = id_in_merge(merges, i, spec.vocabulary, pair.left, "left token");
    merge.right = id_in_merge(merges, i, spec.vocabulary, pair.right, "right token");
    result.assign(pair.left).append(pair.right);
    merge.result = id_in_merge(merges, i, spec.vocabulary, result, "result");
    const uint64_t key = (static_cast<uint64_t>(merge.left) << 32) | static_cast<uint64_t>(merge.right);
    if (!seen.insert(key).second) merges.item(i).fail("the pair {} is there twice", base::dump_json(merges.array()[i]));
    spec.merges.push_back(merge);
  }
}

void add_to_vocabulary(const JsonPlace& place, const AddedToken& token, Vocabulary& vocabulary) {
  Vocabulary::Entry* known = vocabulary.edit(token.content);
  if (known == nullptr) {
    vocabulary.add({token.content, token.content, token.id, token.special});
    return;
  }
  if (known->id != token.id) {
    place.fail("token {} has id {} here and id {} elsewhere in the file", json_quote(token.content), token.id,
               known->id);
  }
  known->bytes = token.content;  // it is found in text as it is spelled
  known->is_special = token.special;
}

}  // namespace

void read_bpe_model(const JsonPlace& model, TokenizerSpec& spec) {
  model.object();
  refuse_options(model);
  spec.ignore_merges = model["ignore_merges"].boolean(false);
  read_vocabulary(model["vocab"], spec.vocabulary);
  read_merges(model["merges"], spec);
}

void read_added_tokens(const JsonPlace& added, TokenizerSpec& spec) {
  if (added.is_absent()) return;
  std::unordered_set<std::string> seen;
  for (size_t i = 0; i < added.array().size(); ++i) {
    const JsonPlace place = added.item(i);
    place.object();
    AddedToken token;
    token.content = place["content"].string();
    if (token.content.empty()) place.fail("the token is empty");
    if (token.content.size() > kMaxAddedToken) {
      place.fail("the token has {} bytes; at most {} are read", token.content.size(), kMaxAddedToken);
    }
    if (!seen.insert(token.content).second) place.fail("token {} is there twice", json_quote(token.content));
    token.id = place["id"].id(token.content);
    if (place["single_word"].boolean(false)) {
      place.fail("token {} has single_word, which is not supported", json_quote(token.content));
    }
    token.lstrip = place["lstrip"].boolean(false);
    token.rstrip = place["rstrip"].boolean(false);
    token.special = place["special"].boolean(false);
    token.normalized = place["normalized"].boolean(!token.special);
    add_to_vocabulary(place, token, spec.vocabulary);
    spec.added.push_back(std::move(token));
  }
}

}  // namespace expertmesh::data
