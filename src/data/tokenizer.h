// SPDX-License-Identifier: Apache-2.0
// Byte-level BPE tokenizer of a Hugging Face model directory: text to ids and back, equal to the PyPI `tokenizers`
// library (docs/tokenizer.md has the supported parts and the known differences).
// Threads: all const members may be called at once. Errors: kModel while loading, kData for text and ids.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"

namespace expertmesh::data {

struct TokenizerSpec;

class Tokenizer {
 public:
  // Reads tokenizer.json and, where they are there, tokenizer_config.json and chat_template.jinja of `directory`.
  static Tokenizer load(const base::FileSystem& files, const std::string& directory);
  // True where the directory has a tokenizer.json.
  static bool exists(const base::FileSystem& files, const std::string& directory);
  // From parts that were read already (tests).
  explicit Tokenizer(TokenizerSpec spec);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // Ids of the text. Added tokens in it are matched, none is put in front or behind. Text that is not UTF-8 is an error
  // with the offset. Linear in the length of the text, also for one endless word.
  std::vector<int32_t> encode(std::string_view text) const;
  // The same for many texts, in their order. threads 0: as many as the machine has.
  std::vector<std::vector<int32_t>> encode_batch(std::span<const std::string> texts, int threads = 0) const;

  // Text of the ids; bytes that form no UTF-8 become U+FFFD, as everywhere. An id without a token is an error.
  std::string decode(std::span<const int32_t> ids, bool skip_special = false) const;
  // The bytes one id stands for, not necessarily whole characters; empty for an id without a token.
  std::string_view token_bytes(int32_t id) const;

  // Number of tokens with the added ones: Python's len(tokenizer). Embeddings may have more rows.
  int64_t vocab_size() const;
  // One more than the largest id; above vocab_size() where the ids have gaps.
  int64_t id_limit() const;

  // Tokens are spelled as in tokenizer.json: "<|im_end|>", and a word with a leading space in its byte-level spelling.
  std::optional<int32_t> token_to_id(std::string_view token) const;
  std::optional<std::string> id_to_token(int32_t id) const;
  bool is_special(int32_t id) const;
  // Texts of the special added tokens (to be neutralised in text of users), in the order of their ids.
  const std::vector<std::string>& special_tokens() const;

  // From tokenizer_config.json; nothing where it names none.
  const std::optional<std::string>& eos_token() const;
  const std::optional<std::string>& pad_token() const;
  std::optional<int32_t> eos_id() const;
  std::optional<int32_t> pad_id() const;
  // The Jinja text of chat_template.jinja or tokenizer_config.json; empty where there is none. Never executed.
  const std::string& chat_template() const;
  // Equal for equal files: a key for caches of ids.
  const std::string& fingerprint() const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

// Turns ids into text as they come: characters are handed out once all their bytes are there.
// Threads: one. The tokenizer must outlive it.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer) : tokenizer_(&tokenizer) {}
  std::string push(int32_t id);
  std::string finish();  // what is left, with U+FFFD for an unfinished character

 private:
  const Tokenizer* tokenizer_;
  std::string pending_;
};

}  // namespace expertmesh::data
