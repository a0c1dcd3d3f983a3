// SPDX-License-Identifier: Apache-2.0
#include "data/token_cache.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "base/log.h"

namespace expertmesh::data {
namespace {

constexpr uint64_t kMaxBytes = uint64_t{20} << 30;
constexpr int64_t kDayNs = int64_t{24} * 3600 * 1'000'000'000;
constexpr std::string_view kEnding = ".tokens";

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

std::string TokenCache::path(const ContentHash& key) const {
  return base::join_path(directory_, key.hex() + std::string(kEnding));
}

std::optional<TokenStore> TokenCache::try_get(const ContentHash& key) const {
  if (directory_.empty()) return std::nullopt;
  return TokenStore::try_open(fs_, path(key), key);
}

TokenStore TokenCache::put(const ContentHash& key, const TokenContent& content) {
  if (directory_.empty()) return TokenStore(content, key);
  try {
    fs_.make_directories(directory_);
    TokenStore::write(fs_, path(key), content, key);
    remove_old(path(key));
    if (auto store = TokenStore::try_open(fs_, path(key), key)) return std::move(*store);
  } catch (const base::Error& error) {
    base::log_warn("the token cache cannot be written, the next start tokenises again: {}", error.reason());
  }
  return TokenStore(content, key);
}

void TokenCache::remove_old(const std::string& keep) {
  struct File {
    std::string path;
    base::FileStat stat;
  };
  std::vector<File> files;
  uint64_t total = 0;
  for (const std::string& name : fs_.list(directory_)) {
    std::string file = base::join_path(directory_, name);
    const base::FileStat stat = fs_.stat(file);
    if (!stat.is_regular) continue;
    if (name.find(std::string(kEnding) + ".tmp-") != std::string::npos) {
      // Left behind by a run that was killed while writing.
      if (now_ns() - stat.mtime_ns > kDayNs) fs_.remove_file(file);
    } else if (name.ends_with(kEnding)) {
      total += stat.size;
      files.push_back({std::move(file), stat});
    }
  }
  std::ranges::sort(files, {}, [](const File& file) { return file.stat.mtime_ns; });
  for (const File& file : files) {
    if (total <= kMaxBytes) return;
    if (file.path == keep) continue;
    fs_.remove_file(file.path);
    total -= file.stat.size;
  }
}

}  // namespace expertmesh::data
