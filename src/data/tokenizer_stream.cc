// SPDX-License-Identifier: Apache-2.0
#include "data/tokenizer.h"
#include "data/tokenizer_unicode.h"

namespace expertmesh::data {

std::string StreamDecoder::push(int32_t id) {
  pending_.append(tokenizer_->token_bytes(id));
  const size_t ready = pending_.size() - unfinished_utf8_tail(pending_);
  std::string out = replace_invalid_utf8(std::string_view(pending_).substr(0, ready));
  pending_.erase(0, ready);
  return out;
}

std::string StreamDecoder::finish() {
  std::string out = replace_invalid_utf8(pending_);
  pending_.clear();
  return out;
}

}  // namespace expertmesh::data
