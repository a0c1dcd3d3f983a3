// SPDX-License-Identifier: Apache-2.0
// Token ids of all samples of one data set: one flat image in memory, or the same bytes mapped from the token cache.
// Format (this machine's byte order; another version, key or a wrong checksum makes the file as good as absent):
//   header | int32 numbers | TokenRecord, one a sample | SkippedRow, one a bad row that was left out
// Threads: any, once built.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "data/content_hash.h"

namespace expertmesh::data {

struct TokenRecord {
  uint64_t begin = 0;   // of its ids in the numbers; labels of tokenized rows follow the ids
  uint32_t length = 0;  // tokens, uncut
  uint32_t prompt = 0;  // tokens without supervision in front; rendered rows only
  float weight = 1.0F;  // of the supervised rest
  uint32_t line = 0;    // of the row in its file
  uint32_t file = 0;    // index in the list of files
  uint32_t cut = 0;     // messages in the sample; 0 for tokenized rows
};

struct SkippedRow {
  uint32_t file = 0, line = 0;
};

// What goes into a store; `numbers` in pieces, in order.
struct TokenContent {
  bool has_labels = false;  // tokenized rows: each sample's labels follow its ids
  int64_t rows = 0;         // read, skipped ones included
  int64_t id_limit = 0;     // one more than the tokenizer's largest id; 0 without a tokenizer
  std::vector<std::vector<int32_t>> numbers;
  std::vector<TokenRecord> records;
  std::vector<SkippedRow> skipped;
};

class TokenStore {
 public:
  // In memory.
  explicit TokenStore(const TokenContent& content, const ContentHash& key);
  // The file, where it is there, whole and made for this key; a damaged one is reported in the log and not used.
  static std::optional<TokenStore> try_open(const base::FileSystem& fs, const std::string& path,
                                            const ContentHash& key);
  // Writes beside and renames into place.
  static void write(base::FileSystem& fs, const std::string& path, const TokenContent& content, const ContentHash& key);

  bool has_labels() const { return has_labels_; }
  int64_t rows() const { return rows_; }
  int64_t id_limit() const { return id_limit_; }
  std::span<const TokenRecord> records() const { return records_; }
  std::span<const SkippedRow> skipped() const { return skipped_; }
  std::span<const int32_t> ids(const TokenRecord& record) const {
    return numbers_.subspan(record.begin, record.length);
  }
  // Only where has_labels().
  std::span<const int32_t> labels(const TokenRecord& record) const {
    return numbers_.subspan(record.begin + record.length, record.length);
  }

 private:
  TokenStore() = default;
  bool attach(std::span<const std::byte> image, const ContentHash& key);

  std::vector<std::byte> memory_;
  std::unique_ptr<base::MappedFile> map_;
  bool has_labels_ = false;
  int64_t rows_ = 0, id_limit_ = 0;
  std::span<const int32_t> numbers_;
  std::span<const TokenRecord> records_;
  std::span<const SkippedRow> skipped_;
};

}  // namespace expertmesh::data
