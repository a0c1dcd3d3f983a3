// SPDX-License-Identifier: Apache-2.0
#include "data/token_store.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <type_traits>

#include "base/check.h"
#include "base/crc32c.h"
#include "base/log.h"

namespace expertmesh::data {
namespace {

constexpr std::array<char, 8> kMagic = {'e', 'm', 't', 'o', 'k', 'e', 'n', 's'};
constexpr uint32_t kVersion = 1;

struct Header {
  std::array<char, 8> magic = kMagic;
  uint32_t version = kVersion;
  uint32_t has_labels = 0;
  ContentHash key;
  uint64_t num_numbers = 0;  // padded to an even count, so that records are aligned
  uint64_t num_records = 0;
  uint64_t num_skipped = 0;
  int64_t rows = 0;
  int64_t id_limit = 0;
  uint32_t payload_crc = 0;
  uint32_t header_crc = 0;  // of the bytes before it
};
static_assert(std::is_trivially_copyable_v<Header> && sizeof(Header) == 80);
static_assert(std::is_trivially_copyable_v<TokenRecord> && sizeof(TokenRecord) == 32);
static_assert(sizeof(SkippedRow) == 8);

template <typename T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

uint32_t header_crc(const Header& header) {
  return base::crc32c(std::as_bytes(std::span(&header, 1)).first(offsetof(Header, header_crc)));
}

// Hands the image out piece by piece: first the header, which knows the checksum of the rest.
template <typename Sink>
void emit(const TokenContent& content, const ContentHash& key, Sink&& sink) {
  Header header;
  header.has_labels = content.has_labels ? 1 : 0;
  header.key = key;
  header.num_records = content.records.size();
  header.num_skipped = content.skipped.size();
  header.rows = content.rows;
  header.id_limit = content.id_limit;
  const auto payload = [&](auto&& take) {
    header.num_numbers = 0;
    for (const std::vector<int32_t>& piece : content.numbers) {
      take(bytes_of(piece));
      header.num_numbers += piece.size();
    }
    if (header.num_numbers % 2 != 0) {
      static constexpr std::array<std::byte, 4> kPadding{};
      take(std::span<const std::byte>(kPadding));
      ++header.num_numbers;
    }
    take(bytes_of(content.records));
    take(bytes_of(content.skipped));
  };
  uint32_t crc = 0;
  payload([&](std::span<const std::byte> piece) { crc = base::crc32c(piece, crc); });
  header.payload_crc = crc;
  header.header_crc = header_crc(header);
  sink(std::as_bytes(std::span(&header, 1)));
  payload(sink);
}

template <typename T>
std::span<const T> view(std::span<const std::byte>& rest, uint64_t count) {
  const auto* begin = reinterpret_cast<const T*>(rest.data());
  rest = rest.subspan(count * sizeof(T));
  return {begin, count};
}

// A name that no other thread or process uses.
std::string temporary_name(const std::string& path) {
  static std::atomic<int> counter{0};
  return fmt::format("{}.tmp-{}-{}", path, ::getpid(), counter++);
}

// The error that brought us here is the one to report, not one of the removal.
void remove_leftover(base::FileSystem& fs, const std::string& path) {
  try {
    fs.remove_file(path);
  } catch (const base::Error& error) {
    base::log_debug("{}", error.text());
  }
}

}  // namespace

bool TokenStore::attach(std::span<const std::byte> image, const ContentHash& key) {
  Header header;
  if (image.size() < sizeof header) return false;
  std::memcpy(&header, image.data(), sizeof header);
  if (header.magic != kMagic || header.version != kVersion || header.header_crc != header_crc(header)) return false;
  if (header.key != key) return false;
  std::span<const std::byte> rest = image.subspan(sizeof header);
  // Counts are bounded by the size before they are multiplied.
  const uint64_t limit = rest.size();
  if (header.num_numbers > limit || header.num_records > limit || header.num_skipped > limit) return false;
  const uint64_t expected = header.num_numbers * sizeof(int32_t) + header.num_records * sizeof(TokenRecord) +
                            header.num_skipped * sizeof(SkippedRow);
  if (expected != limit || base::crc32c(rest) != header.payload_crc) return false;
  numbers_ = view<int32_t>(rest, header.num_numbers);
  records_ = view<TokenRecord>(rest, header.num_records);
  skipped_ = view<SkippedRow>(rest, header.num_skipped);
  has_labels_ = header.has_labels != 0;
  rows_ = header.rows;
  id_limit_ = header.id_limit;
  const uint64_t per_token = has_labels_ ? 2 : 1;
  for (const TokenRecord& record : records_) {
    if (record.begin > numbers_.size() || record.length * per_token > numbers_.size() - record.begin) return false;
  }
  return true;
}

TokenStore::TokenStore(const TokenContent& content, const ContentHash& key) {
  emit(content, key,
       [&](std::span<const std::byte> piece) { memory_.insert(memory_.end(), piece.begin(), piece.end()); });
  EXPERTMESH_CHECK(attach(memory_, key), "an image that was just made cannot be read");
}

std::optional<TokenStore> TokenStore::try_open(const base::FileSystem& fs, const std::string& path,
                                               const ContentHash& key) {
  try {
    if (!fs.stat(path).is_regular) return std::nullopt;
    TokenStore store;
    store.map_ = fs.map(path);
    const std::span<const std::byte> bytes = store.map_->bytes();
    if (store.attach(bytes, key)) {
      store.map_->release(0, bytes.size());  // the check read all of it; training reads a little at a time
      return store;
    }
    base::log_warn("{}: the token cache is damaged and is made again", path);
  } catch (const base::Error& error) {
    base::log_warn("the token cache cannot be read: {}", error.reason());
  }
  return std::nullopt;
}

void TokenStore::write(base::FileSystem& fs, const std::string& path, const TokenContent& content,
                       const ContentHash& key) {
  const std::string temporary = temporary_name(path);
  const auto file = fs.create(temporary, true);
  try {
    emit(content, key, [&](std::span<const std::byte> piece) { file->append(piece); });
    file->sync();
    file->close();
    fs.rename(temporary, path);
  } catch (...) {
    remove_leftover(fs, temporary);
    throw;
  }
}

}  // namespace expertmesh::data
