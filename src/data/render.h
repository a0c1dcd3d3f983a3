// SPDX-License-Identifier: Apache-2.0
// Renders messages with a markup and tokenises them; finds the label boundary (spec 4.5).
// Threads: any; a Renderer is immutable.
// Errors: kData without a place: a prompt that is no prefix of the whole text, a tool call that is not JSON, ...
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/markup/markup.h"
#include "data/sample.h"

namespace expertmesh::data {

class Tokenizer;

struct Rendered {
  std::string text;
  size_t prompt_bytes = 0;  // text up to here is the prompt
  std::vector<int32_t> ids;
  uint32_t prompt_tokens = 0;  // ids up to here are not supervised
  float weight = 1.0F;         // of the rest
};

class Renderer {
 public:
  Renderer(const Tokenizer& tokenizer, const Markup& markup);

  // messages[:cut], whose last turn is the assistant's; its end marker and the newline after it are supervised.
  Rendered render(const Row& row, int cut) const;
  // The same without tokens: `ids` stays empty.
  Rendered render_text(std::span<const Message> messages, const std::optional<std::string>& tools) const;
  // Text of the whole conversation for scoring: no label boundary, the last turn may be anybody's.
  std::vector<int32_t> encode_conversation(const Row& row) const;

  // A conversation that waits for the assistant's answer, with the opening of it.
  struct Question {
    std::vector<int32_t> ids;
    bool opens_thought = false;  // the opening ends inside <think>
  };
  // `thinking`: whether the answer may begin with a thought; nothing: the markup's default.
  Question encode_question(const Row& row, std::optional<bool> thinking) const;

  const Tokenizer& tokenizer() const { return tokenizer_; }
  const Markup& markup() const { return markup_; }

 private:
  std::string escape(std::string_view text) const;
  std::vector<Turn> turns(std::span<const Message> messages) const;
  std::vector<base::Json> tools(const std::optional<std::string>& text) const;

  const Tokenizer& tokenizer_;
  const Markup& markup_;
  std::vector<std::string> specials_;
  std::array<bool, 256> is_first_byte_{};  // of any of them
  bool opener_is_special_ = false;
};

}  // namespace expertmesh::data
