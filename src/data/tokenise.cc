// SPDX-License-Identifier: Apache-2.0
// The rows are cut into chunks of about equal size; threads take the next one that is left, and the results are put
// together in the order of the chunks.
#include "data/tokenise.h"

#include <algorithm>
#include <mutex>

#include "base/error.h"
#include "data/parallel.h"
#include "data/row_source.h"
#include "data/tokenizer.h"

namespace expertmesh::data {
namespace {

using base::Code;
using base::make_error;

constexpr uint64_t kChunkBytes = 64 << 10;

struct SourceRow {
  uint32_t file;
  RowText text;
};

struct Chunk {
  size_t begin = 0, end = 0;  // rows
  uint64_t bytes = 0;
};

struct ChunkResult {
  std::vector<int32_t> numbers;
  std::vector<TokenRecord> records;  // `begin` counts from the chunk's first number
  std::vector<SkippedRow> skipped;
};

std::vector<Chunk> make_chunks(const std::vector<SourceRow>& rows) {
  std::vector<Chunk> chunks;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (chunks.empty() || chunks.back().bytes >= kChunkBytes) chunks.push_back({i, i, 0});
    chunks.back().end = i + 1;
    chunks.back().bytes += rows[i].text.text.size();
  }
  return chunks;
}

class Tokeniser {
 public:
  explicit Tokeniser(const TokeniseJob& job) : job_(job) {
    for (size_t file = 0; file < job.files.size(); ++file) {
      for (const RowText& text : job.files[file].split()) rows_.push_back({static_cast<uint32_t>(file), text});
    }
    chunks_ = make_chunks(rows_);
    results_.resize(chunks_.size());
  }

  TokenContent run() {
    parallel_pieces(chunks_.size(), job_.threads, [this](size_t index) {
      results_[index] = tokenise_chunk(chunks_[index]);
      report(chunks_[index].bytes);
    });
    return join();
  }

 private:
  void report(uint64_t bytes) {
    if (!job_.progress) return;
    const std::scoped_lock lock(mutex_);
    job_.progress(bytes);
  }

  ChunkResult tokenise_chunk(const Chunk& chunk) const {
    ChunkResult result;
    for (size_t i = chunk.begin; i < chunk.end; ++i) {
      const size_t numbers = result.numbers.size();
      const size_t records = result.records.size();
      try {
        add_row(rows_[i], result);
      } catch (const base::Error& error) {
        if (!job_.skip_bad_rows || error.code() != Code::kData) throw;
        result.numbers.resize(numbers);
        result.records.resize(records);
        result.skipped.push_back({rows_[i].file, rows_[i].text.line});
      }
    }
    result.numbers.shrink_to_fit();
    return result;
  }

  void add_row(const SourceRow& source, ChunkResult& result) const {
    const RowFile& file = job_.files[source.file];
    const LoadedRow loaded = load_row(file, source.text, job_.converter, Use::kSft);
    at_row(file, source.text, [&] {
      for (const int cut : loaded.cuts) {
        TokenRecord record;
        record.begin = result.numbers.size();
        record.line = source.text.line;
        record.file = source.file;
        record.cut = static_cast<uint32_t>(cut);
        if (loaded.row.kind == RowKind::kTokenized) {
          add_tokenized(loaded.row, record, result.numbers);
        } else {
          const Rendered rendered = job_.renderer->render(loaded.row, cut);
          record.length = static_cast<uint32_t>(rendered.ids.size());
          record.prompt = rendered.prompt_tokens;
          record.weight = rendered.weight;
          result.numbers.insert(result.numbers.end(), rendered.ids.begin(), rendered.ids.end());
        }
        result.records.push_back(record);
      }
    });
  }

  void add_tokenized(const Row& row, TokenRecord& record, std::vector<int32_t>& numbers) const {
    record.length = static_cast<uint32_t>(row.input_ids.size());
    for (const std::vector<int32_t>* column : {&row.input_ids, &row.labels}) {
      const auto bad = std::ranges::find_if(
          *column, [&](int32_t id) { return job_.vocabulary_rows > 0 && int64_t{id} >= job_.vocabulary_rows; });
      if (bad != column->end()) {
        throw make_error(Code::kData, "data/vocabulary",
                         "token id {} is outside the model's vocabulary: its embedding has {} rows", *bad,
                         job_.vocabulary_rows);
      }
      numbers.insert(numbers.end(), column->begin(), column->end());
    }
  }

  TokenContent join() {
    TokenContent content;
    content.has_labels = job_.renderer == nullptr;
    content.rows = static_cast<int64_t>(rows_.size());
    if (job_.renderer != nullptr) content.id_limit = job_.renderer->tokenizer().id_limit();
    uint64_t begin = 0;
    for (ChunkResult& result : results_) {
      for (TokenRecord record : result.records) {
        record.begin += begin;
        content.records.push_back(record);
      }
      content.skipped.insert(content.skipped.end(), result.skipped.begin(), result.skipped.end());
      begin += result.numbers.size();
      content.numbers.push_back(std::move(result.numbers));
    }
    return content;
  }

  const TokeniseJob& job_;
  std::vector<SourceRow> rows_;
  std::vector<Chunk> chunks_;
  std::vector<ChunkResult> results_;
  std::mutex mutex_;
};

}  // namespace

TokenContent tokenise(const TokeniseJob& job) { return Tokeniser(job).run(); }

}  // namespace expertmesh::data
