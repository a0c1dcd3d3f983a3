// SPDX-License-Identifier: Apache-2.0
#include <limits>
#include <memory>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/error.h"
#include "data/tokenizer_regex.h"
#include "data/tokenizer_split.h"
#include "data/tokenizer_unicode.h"

namespace expertmesh::data {
namespace {

constexpr size_t kFirstJitStack = size_t{32} << 10, kMaxJitStack = size_t{64} << 20;  // bytes
constexpr uint32_t kMatchLimit = 50'000'000;  // steps of one match, a second or so
constexpr uint32_t kHeapLimit = 1U << 18;     // KiB, without JIT

template <auto Function>
struct Deleter {
  template <typename T>
  void operator()(T* pointer) const {
    Function(pointer);
  }
};
using Code = std::unique_ptr<pcre2_code, Deleter<pcre2_code_free>>;
using MatchData = std::unique_ptr<pcre2_match_data, Deleter<pcre2_match_data_free>>;
using MatchContext = std::unique_ptr<pcre2_match_context, Deleter<pcre2_match_context_free>>;
using CompileContext = std::unique_ptr<pcre2_compile_context, Deleter<pcre2_compile_context_free>>;
using JitStack = std::unique_ptr<pcre2_jit_stack, Deleter<pcre2_jit_stack_free>>;

std::string pcre2_message(int code) {
  PCRE2_UCHAR text[256] = {};
  pcre2_get_error_message(code, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

class RegexSplitter : public Splitter {
 public:
  explicit RegexSplitter(std::string_view expression) {
    const std::string translated = translate_expression(expression);
    const CompileContext context(pcre2_compile_context_create(nullptr));
    pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
    int error = 0;
    PCRE2_SIZE offset = 0;
    code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                              PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &offset, context.get()));
    if (!code_) {
      throw base::make_error(base::Code::kModel, "data/tokenizer", "the regular expression \"{}\" is not valid: {}",
                             expression.substr(0, 200), pcre2_message(error));
    }
    pcre2_jit_compile(code_.get(), PCRE2_JIT_COMPLETE);  // where it fails, the interpreter does the work
  }

  void split(std::string_view text, std::vector<size_t>& ends) const override {
    Run run(*this, text);
    size_t from = 0, done = 0;
    while (from <= text.size() && run.match(from)) {
      if (run.first() > done) ends.push_back(run.first());
      if (run.last() > run.first()) ends.push_back(run.last());
      done = run.last();
      from = run.last() > run.first() ? run.last() : next_character(text, run.last());
    }
    if (done < text.size()) ends.push_back(text.size());
  }

 private:
  // One pass over one text.
  class Run {
   public:
    Run(const RegexSplitter& owner, std::string_view text)
        : owner_(owner),
          text_(text),
          data_(pcre2_match_data_create_from_pattern(owner.code_.get(), nullptr)),
          context_(pcre2_match_context_create(nullptr)) {
      pcre2_set_match_limit(context_.get(), kMatchLimit);
      pcre2_set_heap_limit(context_.get(), kHeapLimit);
    }

    bool match(size_t from) {
      int result = try_match(from);
      if (result == PCRE2_ERROR_JIT_STACKLIMIT && !stack_) {
        stack_.reset(pcre2_jit_stack_create(kFirstJitStack, kMaxJitStack, nullptr));
        pcre2_jit_stack_assign(context_.get(), nullptr, stack_.get());
        result = try_match(from);
      }
      if (result == PCRE2_ERROR_NOMATCH) return false;
      if (result < 0) {
        throw base::make_error(base::Code::kData, "data/tokenizer",
                               "the tokenizer's regular expression gave up at byte {} of a text of {} bytes: {}", from,
                               text_.size(), pcre2_message(result))
            .hint("Split the text, or give the model directory an expression that backtracks less.");
      }
      return true;
    }
    size_t first() const { return pcre2_get_ovector_pointer(data_.get())[0]; }
    size_t last() const { return pcre2_get_ovector_pointer(data_.get())[1]; }

   private:
    int try_match(size_t from) {
      return pcre2_match(owner_.code_.get(), reinterpret_cast<PCRE2_SPTR>(text_.data()), text_.size(), from,
                         PCRE2_NO_UTF_CHECK, data_.get(), context_.get());
    }

    const RegexSplitter& owner_;
    std::string_view text_;
    MatchData data_;
    MatchContext context_;
    JitStack stack_;
  };

  static size_t next_character(std::string_view text, size_t at) {
    return at < text.size() ? at + code_point_at(text.data() + at).length : at + 1;
  }

  Code code_;
};

}  // namespace

std::unique_ptr<Splitter> make_regex_splitter(std::string_view expression) {
  return std::make_unique<RegexSplitter>(expression);
}

std::unique_ptr<Splitter> make_splitter(std::string_view expression) {
  if (expression == kQwen3Expression) return make_qwen_splitter(false);
  if (expression == kQwen35Expression) return make_qwen_splitter(true);
  return make_regex_splitter(expression);
}

}  // namespace expertmesh::data
