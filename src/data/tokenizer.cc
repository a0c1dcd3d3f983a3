// SPDX-License-Identifier: Apache-2.0
// encode: added tokens that match the raw text -> normalise what is between them -> added tokens that match the
// normalised text -> words -> merged bytes. decode: the bytes of all ids, then UTF-8 with replacement.
#include "data/tokenizer.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <thread>
#include <utility>

#include "base/json.h"
#include "data/bpe.h"
#include "data/tokenizer_added.h"
#include "data/tokenizer_batch.h"
#include "data/tokenizer_bytes.h"
#include "data/tokenizer_normalizer.h"
#include "data/tokenizer_spec.h"
#include "data/tokenizer_split.h"
#include "data/tokenizer_unicode.h"

namespace expertmesh::data {
namespace {

constexpr size_t kMaxTextBytes = size_t{1} << 30;  // positions inside a word are 32-bit

// Buffers and the word cache of one thread while it encodes.
struct Workspace {
  explicit Workspace(const BpeMerges& merges) : bpe(merges) {}
  BpeWorkspace bpe;
  std::string normalized;
  std::vector<size_t> ends, finer_ends;
};

// Workspaces that no thread uses now: a later call finds its words cached.
class WorkspacePool {
 public:
  explicit WorkspacePool(const BpeMerges& merges) : merges_(&merges) {}

  std::unique_ptr<Workspace> take() {
    {
      const std::lock_guard lock(mutex_);
      if (!free_.empty()) {
        auto out = std::move(free_.back());
        free_.pop_back();
        return out;
      }
    }
    return std::make_unique<Workspace>(*merges_);
  }
  void give(std::unique_ptr<Workspace> workspace) {
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(workspace));
  }

 private:
  const BpeMerges* merges_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Workspace>> free_;
};

Bpe build_bpe(const TokenizerSpec& spec) {
  std::array<int32_t, 256> byte_ids{};
  for (int byte = 0; byte < 256; ++byte) {
    const auto* entry = spec.vocabulary.find_spelling(byte_spelling(static_cast<unsigned char>(byte)));
    byte_ids[static_cast<size_t>(byte)] = entry->id;
  }
  Vocabulary whole_words;
  if (spec.ignore_merges) {
    for (const auto& entry : spec.vocabulary.entries()) {
      if (const auto bytes = try_bytes_of_spelling(entry.spelling)) whole_words.add({*bytes, {}, entry.id, false});
    }
  }
  return Bpe(BpeMerges(spec.merges), byte_ids, std::move(whole_words));
}

AddedTokenSearch build_search(const TokenizerSpec& spec, bool normalized) {
  std::vector<AddedToken> tokens;
  for (AddedToken token : spec.added) {
    if (token.normalized != normalized) continue;
    std::string storage;
    if (normalized && spec.nfc) token.content = std::string(normalize_nfc(token.content, storage));
    tokens.push_back(std::move(token));
  }
  return AddedTokenSearch(tokens);
}

// Calls on_text for each part between two matches and on_token for each match.
template <typename OnText, typename OnToken>
void split_at_added(const AddedTokenSearch& search, std::string_view text, OnText on_text, OnToken on_token) {
  size_t from = 0;
  while (const auto match = search.find(text, from)) {
    if (match->first > from) on_text(text.substr(from, match->first - from));
    on_token(match->id);
    from = match->last;
  }
  if (from < text.size()) on_text(text.substr(from));
}

}  // namespace

struct Tokenizer::Parts {
  explicit Parts(TokenizerSpec given)
      : spec(std::move(given)),
        bpe(build_bpe(spec)),
        raw_search(build_search(spec, false)),
        normalized_search(build_search(spec, true)),
        pool(bpe.merges()) {
    for (const std::string& expression : spec.expressions) splitters.push_back(make_splitter(expression));
    for (const auto& entry : spec.vocabulary.entries()) {
      if (entry.is_special) special_tokens.push_back(entry.spelling);
    }
    spec.merges = {};  // bpe has them
  }

  void encode(std::string_view text, Workspace& workspace, std::vector<int32_t>& out) const {
    const auto on_token = [&](int32_t id) { out.push_back(id); };
    const auto on_raw = [&](std::string_view part) {
      if (spec.nfc) part = normalize_nfc(part, workspace.normalized);
      split_at_added(
          normalized_search, part, [&](std::string_view words) { encode_words(words, workspace, out); }, on_token);
    };
    split_at_added(raw_search, text, on_raw, on_token);
  }

  // Text without added tokens.
  void encode_words(std::string_view text, Workspace& workspace, std::vector<int32_t>& out) const {
    auto& ends = workspace.ends;
    ends.clear();
    if (splitters.empty()) {
      ends.push_back(text.size());
    } else {
      splitters[0]->split(text, ends);
    }
    for (size_t i = 1; i < splitters.size(); ++i) split_finer(*splitters[i], text, workspace);
    size_t from = 0;
    for (const size_t end : ends) {
      bpe.encode_word(text.substr(from, end - from), workspace.bpe, out);
      from = end;
    }
  }

  static void split_finer(const Splitter& splitter, std::string_view text, Workspace& workspace) {
    auto& finer = workspace.finer_ends;
    finer.clear();
    size_t from = 0;
    for (const size_t end : workspace.ends) {
      const size_t before = finer.size();
      splitter.split(text.substr(from, end - from), finer);
      for (size_t i = before; i < finer.size(); ++i) finer[i] += from;
      from = end;
    }
    workspace.ends.swap(finer);
  }

  TokenizerSpec spec;
  Bpe bpe;
  AddedTokenSearch raw_search, normalized_search;
  std::vector<std::unique_ptr<Splitter>> splitters;
  std::vector<std::string> special_tokens;
  mutable WorkspacePool pool;
};

namespace {

void check_text(std::string_view text) {
  if (text.size() > kMaxTextBytes) {
    throw base::make_error(base::Code::kData, "data/tokenizer", "a text of {} bytes is too long; at most {} are read",
                           text.size(), kMaxTextBytes);
  }
  if (const auto bad = base::find_invalid_utf8(text)) {
    throw base::make_error(base::Code::kData, "data/tokenizer",
                           "the text is not valid UTF-8: byte 0x{:02x} at offset {}",
                           static_cast<unsigned>(static_cast<unsigned char>(text[*bad])), *bad)
        .hint("Convert the file to UTF-8.");
  }
}

}  // namespace

Tokenizer Tokenizer::load(const base::FileSystem& files, const std::string& directory) {
  return Tokenizer(load_tokenizer_spec(files, directory));
}

bool Tokenizer::exists(const base::FileSystem& files, const std::string& directory) {
  return files.stat(base::join_path(directory, "tokenizer.json")).exists;
}

Tokenizer::Tokenizer(TokenizerSpec spec) : parts_(std::make_unique<Parts>(std::move(spec))) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

std::vector<int32_t> Tokenizer::encode(std::string_view text) const {
  check_text(text);
  std::vector<int32_t> out;
  auto workspace = parts_->pool.take();
  parts_->encode(text, *workspace, out);
  parts_->pool.give(std::move(workspace));
  return out;
}

std::vector<std::vector<int32_t>> Tokenizer::encode_batch(std::span<const std::string> texts, int threads) const {
  std::vector<std::vector<int32_t>> out(texts.size());
  const size_t wanted = threads > 0 ? static_cast<size_t>(threads) : std::max(1U, std::thread::hardware_concurrency());
  BatchRun(texts.size()).run(wanted, [&](size_t first, size_t last, size_t& at) {
    auto workspace = parts_->pool.take();
    for (at = first; at < last; ++at) {
      try {
        check_text(texts[at]);
        parts_->encode(texts[at], *workspace, out[at]);
      } catch (base::Error& error) {
        error.at(fmt::format("text {} of {}", at + 1, texts.size()));
        throw;
      }
    }
    parts_->pool.give(std::move(workspace));
  });
  return out;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string bytes;
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto* entry = parts_->spec.vocabulary.find_id(ids[i]);
    if (entry == nullptr) {
      throw base::make_error(base::Code::kData, "data/tokenizer", "id {} at position {} has no token (ids end at {})",
                             ids[i], i, id_limit() - 1);
    }
    if (!(skip_special && entry->is_special)) bytes.append(entry->bytes);
  }
  return replace_invalid_utf8(bytes);
}

std::string_view Tokenizer::token_bytes(int32_t id) const {
  const auto* entry = parts_->spec.vocabulary.find_id(id);
  return entry == nullptr ? std::string_view{} : std::string_view(entry->bytes);
}

int64_t Tokenizer::vocab_size() const { return static_cast<int64_t>(parts_->spec.vocabulary.size()); }

int64_t Tokenizer::id_limit() const { return int64_t{parts_->spec.vocabulary.entries().back().id} + 1; }

std::optional<int32_t> Tokenizer::token_to_id(std::string_view token) const {
  const auto* entry = parts_->spec.vocabulary.find_spelling(token);
  return entry == nullptr ? std::nullopt : std::optional(entry->id);
}

std::optional<std::string> Tokenizer::id_to_token(int32_t id) const {
  const auto* entry = parts_->spec.vocabulary.find_id(id);
  return entry == nullptr ? std::nullopt : std::optional(entry->spelling);
}

bool Tokenizer::is_special(int32_t id) const {
  const auto* entry = parts_->spec.vocabulary.find_id(id);
  return entry != nullptr && entry->is_special;
}

const std::vector<std::string>& Tokenizer::special_tokens() const { return parts_->special_tokens; }
const std::optional<std::string>& Tokenizer::eos_token() const { return parts_->spec.eos_token; }
const std::optional<std::string>& Tokenizer::pad_token() const { return parts_->spec.pad_token; }

std::optional<int32_t> Tokenizer::eos_id() const { return eos_token() ? token_to_id(*eos_token()) : std::nullopt; }
std::optional<int32_t> Tokenizer::pad_id() const { return pad_token() ? token_to_id(*pad_token()) : std::nullopt; }

const std::string& Tokenizer::chat_template() const { return parts_->spec.chat_template; }
const std::string& Tokenizer::fingerprint() const { return parts_->spec.fingerprint; }

}  // namespace expertmesh::data
