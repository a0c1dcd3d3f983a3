// SPDX-License-Identifier: Apache-2.0
// Pre-tokenization: cuts text into words by a regular expression; what lies between two matches is a word too.
// Threads: any. Errors: kModel for an expression that is not supported, kData where matching had to give up.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace expertmesh::data {

class Splitter {
 public:
  virtual ~Splitter() = default;
  // Appends the end of each word, counted from the start of the text; none is empty, the last is text.size().
  // The text is valid UTF-8.
  virtual void split(std::string_view text, std::vector<size_t>& ends) const = 0;
};

// The expressions of Qwen3 and Qwen3.5, which have a matcher of their own.
extern const std::string_view kQwen3Expression;
extern const std::string_view kQwen35Expression;

// The splitter of an expression in the syntax of tokenizer.json: the own matcher for those two, else PCRE2.
std::unique_ptr<Splitter> make_splitter(std::string_view expression);

// The matcher of the two expressions; with marks_in_words a word may hold marks (Qwen3.5). Ten times as fast as PCRE2,
// and it knows Unicode 16 as the reference library does.
std::unique_ptr<Splitter> make_qwen_splitter(bool marks_in_words);

// PCRE2 with any supported expression.
std::unique_ptr<Splitter> make_regex_splitter(std::string_view expression);

}  // namespace expertmesh::data
