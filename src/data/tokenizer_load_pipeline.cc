// SPDX-License-Identifier: Apache-2.0
#include "data/tokenizer_load.h"
#include "data/tokenizer_split.h"

namespace expertmesh::data {
namespace {

using base::json_quote;

// What ByteLevel splits by where it is told to.
constexpr std::string_view kGpt2Expression =
    R"re('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)re";

[[noreturn]] void refuse_type(const JsonPlace& place, std::string_view supported) {
  place["type"].fail("{} is not supported; {} is", json_quote(place.type()), supported);
}

void read_normalizer(const JsonPlace& place, TokenizerSpec& spec) {
  if (place.is_absent()) return;
  if (place.type() == "NFC") {
    spec.nfc = true;
  } else if (place.type() == "Sequence") {
    const JsonPlace list = place["normalizers"];
    for (size_t i = 0; i < list.array().size(); ++i) read_normalizer(list.item(i), spec);
  } else {
    refuse_type(place, "NFC or null");
  }
}

// A text to be found as it is, as an expression.
std::string literal_expression(const std::string& text) {
  std::string out;
  for (const char c : text) {
    const bool plain = c == ' ' || static_cast<unsigned char>(c) >= 0x80 || (c >= '0' && c <= '9') ||
                       ((c | 0x20) >= 'a' && (c | 0x20) <= 'z');
    if (!plain && c > ' ' && c < 0x7f) out.push_back('\\');
    out.push_back(c);
  }
  return out;
}

void read_split(const JsonPlace& place, TokenizerSpec& spec) {
  const JsonPlace behavior = place["behavior"];
  if (behavior.string() != "Isolated")
    behavior.fail("{} is not supported; \"Isolated\" is", json_quote(behavior.string()));
  if (place["invert"].boolean(false)) place["invert"].fail("true is not supported");
  const JsonPlace pattern = place["pattern"];
  pattern.object();
  const bool is_regex = !pattern["Regex"].is_absent();
  const JsonPlace source = pattern[is_regex ? "Regex" : "String"];
  if (source.string().empty()) source.fail("is empty");
  spec.expressions.push_back(is_regex ? source.string() : literal_expression(source.string()));
  try {
    make_splitter(spec.expressions.back());
  } catch (base::Error& error) {
    error.at(source.where());
    throw;
  }
}

// Returns whether the text has become bytes, after which nothing can be split.
void read_pre_tokenizer(const JsonPlace& place, TokenizerSpec& spec, bool& is_byte_level) {
  if (is_byte_level) place.fail("follows ByteLevel, which has to be the last");
  const std::string& type = place.type();
  if (type == "Sequence") {
    const JsonPlace list = place["pretokenizers"];
    for (size_t i = 0; i < list.array().size(); ++i) read_pre_tokenizer(list.item(i), spec, is_byte_level);
  } else if (type == "Split") {
    read_split(place, spec);
  } else if (type == "ByteLevel") {
    if (place["add_prefix_space"].boolean(true)) place["add_prefix_space"].fail("true is not supported");
    if (place["use_regex"].boolean(true)) spec.expressions.emplace_back(kGpt2Expression);
    is_byte_level = true;
  } else {
    refuse_type(place, "a Sequence of Split and ByteLevel, or ByteLevel alone,");
  }
}

// A template that puts nothing but the text itself.
bool adds_nothing(const JsonPlace& place) {
  for (const char* key : {"single", "pair"}) {
    const JsonPlace list = place[key];
    if (list.is_absent()) continue;
    for (const base::Json& item : list.array()) {
      if (item.find("SpecialToken") != nullptr) return false;
    }
  }
  return true;
}

void read_post_processor(const JsonPlace& place) {
  if (place.is_absent() || place.type() == "ByteLevel") return;
  if (place.type() == "Sequence") {
    const JsonPlace list = place["processors"];
    for (size_t i = 0; i < list.array().size(); ++i) read_post_processor(list.item(i));
  } else if (place.type() != "TemplateProcessing" || !adds_nothing(place)) {
    place.fail("{} puts tokens around a text, which is not supported; ByteLevel or null is", json_quote(place.type()));
  }
}

void read_decoder(const JsonPlace& place) {
  if (place.is_absent()) place.fail("is missing; ByteLevel is needed");
  if (place.type() == "Sequence") {
    const JsonPlace list = place["decoders"];
    if (list.array().size() != 1) list.fail("has {} decoders; ByteLevel alone is needed", list.array().size());
    read_decoder(list.item(0));
  } else if (place.type() != "ByteLevel") {
    refuse_type(place, "ByteLevel");
  }
}

}  // namespace

void read_pipeline(const JsonPlace& root, TokenizerSpec& spec) {
  read_normalizer(root["normalizer"], spec);
  const JsonPlace pre_tokenizer = root["pre_tokenizer"];
  if (pre_tokenizer.is_absent()) pre_tokenizer.fail("is missing; ByteLevel is needed");
  bool is_byte_level = false;
  read_pre_tokenizer(pre_tokenizer, spec, is_byte_level);
  if (!is_byte_level) pre_tokenizer.fail("has no ByteLevel; only byte-level BPE is supported");
  read_post_processor(root["post_processor"]);
  read_decoder(root["decoder"]);
}

}  // namespace expertmesh::data
