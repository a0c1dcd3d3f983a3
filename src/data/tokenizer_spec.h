// SPDX-License-Identifier: Apache-2.0
// What tokenizer.json and tokenizer_config.json say, checked, before it becomes a Tokenizer.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/file.h"
#include "data/bpe_merges.h"
#include "data/tokenizer_added.h"
#include "data/tokenizer_vocabulary.h"

namespace expertmesh::data {

struct TokenizerSpec {
  Vocabulary vocabulary;  // with the added tokens; all 256 single bytes are in it
  std::vector<BpeMerge> merges;
  bool ignore_merges = false;            // a word that is a token is that token
  bool nfc = false;                      // normalise to form C first
  std::vector<std::string> expressions;  // that cut text into words, one after the other
  std::vector<AddedToken> added;
  std::optional<std::string> eos_token, pad_token;
  std::string chat_template;
  std::string fingerprint;
};

// Reads the files of a model directory. Errors: kModel, with the file and the place inside it.
TokenizerSpec load_tokenizer_spec(const base::FileSystem& files, const std::string& directory);

// From texts; `name` and `config_name` stand for the files in messages. An empty config: there is none.
TokenizerSpec parse_tokenizer_spec(std::string_view text, const std::string& name, std::string_view config,
                                   const std::string& config_name);

}  // namespace expertmesh::data
