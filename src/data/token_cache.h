// SPDX-License-Identifier: Apache-2.0
// Where tokenised data sets are kept between runs: one file a key, the oldest removed beyond a limit.
#pragma once

#include <optional>
#include <string>

#include "base/file.h"
#include "data/token_store.h"

namespace expertmesh::data {

class TokenCache {
 public:
  // "" = no cache.
  TokenCache(base::FileSystem& fs, std::string directory) : fs_(fs), directory_(std::move(directory)) {}

  std::optional<TokenStore> try_get(const ContentHash& key) const;
  // Keeps the content and returns it as a store; where it cannot be written, a warning and a store in memory.
  TokenStore put(const ContentHash& key, const TokenContent& content);

 private:
  std::string path(const ContentHash& key) const;
  void remove_old(const std::string& keep);

  base::FileSystem& fs_;
  std::string directory_;
};

}  // namespace expertmesh::data
