// SPDX-License-Identifier: Apache-2.0
// The two Qwen expressions by hand. In the order of their alternatives, at each place:
//   1 an English contraction  2 letters, with one other character in front of them  3 one digit
//   4 other characters with a space in front and line ends behind  5 white space up to the last line end of its run
//   6 white space but the last character where a word follows  7 white space
// "Letter" includes marks for Qwen3.5. No two alternatives need more than one look ahead, so one pass is enough.
#include <array>

#include "data/tokenizer_split.h"
#include "data/tokenizer_unicode.h"

namespace expertmesh::data {

const std::string_view kQwen3Expression =
    R"re((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)re";
const std::string_view kQwen35Expression =
    R"re((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*)re"
    R"re(|\s*[\r\n]+|\s+(?!\S)|\s+)re";

namespace {

enum class Kind : uint8_t { kWord, kNumber, kSpace, kOther };

class QwenSplitter : public Splitter {
 public:
  explicit QwenSplitter(bool marks_in_words) : flags_(char_flags()) {
    const uint8_t word_flags = marks_in_words ? kLetter | kMark : kLetter;
    for (uint32_t flags = 0; flags < kind_of_.size(); ++flags) {
      kind_of_[flags] = (flags & word_flags) != 0 ? Kind::kWord
                        : (flags & kNumber) != 0  ? Kind::kNumber
                        : (flags & kSpace) != 0   ? Kind::kSpace
                                                  : Kind::kOther;
    }
    for (uint32_t byte = 0; byte < ascii_kind_.size(); ++byte) ascii_kind_[byte] = kind_of_[flags_[byte]];
  }

  void split(std::string_view text, std::vector<size_t>& ends) const override {
    const char* const begin = text.data();
    const char* const end = begin + text.size();
    for (const char* at = begin; at != end;) {
      at = next_end(at, end);
      ends.push_back(static_cast<size_t>(at - begin));
    }
  }

 private:
  struct Char {
    Kind kind;
    uint32_t length;
  };
  Char char_at(const char* at) const {
    const auto byte = static_cast<unsigned char>(*at);
    if (byte < 0x80) return {ascii_kind_[byte], 1};
    const CodePoint point = code_point_at(at);
    return {kind_of_[flags_[point.value]], point.length};
  }
  bool is_kind(const char* at, const char* end, Kind kind) const { return at != end && char_at(at).kind == kind; }

  const char* next_end(const char* at, const char* end) const {
    const Char first = char_at(at);
    const char* const second = at + first.length;
    if (*at == '\'') {
      if (const size_t length = contraction(at, end)) return at + length;
    }
    if (first.kind == Kind::kWord) return skip(second, end, Kind::kWord);
    if (first.kind == Kind::kNumber) return second;
    const bool is_newline = *at == '\r' || *at == '\n';
    if (!is_newline && is_kind(second, end, Kind::kWord)) return skip(second, end, Kind::kWord);
    if (first.kind == Kind::kOther) return other(second, end);
    if (*at == ' ' && is_kind(second, end, Kind::kOther)) return other(second, end);
    return white_space(at, end);
  }

  const char* skip(const char* at, const char* end, Kind kind) const {
    while (at != end) {
      const Char next = char_at(at);
      if (next.kind != kind) break;
      at += next.length;
    }
    return at;
  }

  const char* other(const char* at, const char* end) const {
    at = skip(at, end, Kind::kOther);
    while (at != end && (*at == '\r' || *at == '\n')) ++at;
    return at;
  }

  const char* white_space(const char* at, const char* end) const {
    const char* const start = at;
    const char* after_newline = nullptr;
    const char* last = at;
    while (at != end) {
      const Char next = char_at(at);
      if (next.kind != Kind::kSpace) break;
      last = at;
      at += next.length;
      if (*last == '\r' || *last == '\n') after_newline = at;
    }
    if (after_newline != nullptr) return after_newline;
    return at == end || last == start ? at : last;
  }

  // Length of 's 't 'm 'd 're 've 'll in any case, 0 where none starts here. Without case, the long s is an s.
  static size_t contraction(const char* at, const char* end) {
    const auto left = static_cast<size_t>(end - at);
    if (left < 2) return 0;
    const char a = static_cast<char>(at[1] | 0x20);
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
    if (left < 3) return 0;
    if (at[1] == '\xc5' && at[2] == '\xbf') return 3;
    const char b = static_cast<char>(at[2] | 0x20);
    return ((a == 'r' || a == 'v') && b == 'e') || (a == 'l' && b == 'l') ? 3 : 0;
  }

  const uint8_t* flags_;
  std::array<Kind, 256> kind_of_{};  // by flags
  std::array<Kind, 128> ascii_kind_{};
};

}  // namespace

std::unique_ptr<Splitter> make_qwen_splitter(bool marks_in_words) {
  return std::make_unique<QwenSplitter>(marks_in_words);
}

}  // namespace expertmesh::data
