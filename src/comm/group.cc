// SPDX-License-Identifier: Apache-2.0
#include "comm/group.h"

#include "base/check.h"

namespace expertmesh::comm {

std::unique_ptr<Window> Group::open_window(std::span<void* const> /*buffers*/, std::string_view tag) {
  EXPERTMESH_CHECK(false, "{}: ranks of axis {} do not share memory", tag, name());
  return nullptr;
}

double Group::all_reduce_double(double value, ReduceOp op, std::string_view tag) {
  all_reduce({{.data = &value, .count = 1, .dtype = DType::kF64}}, op, tag);
  return value;
}

int64_t Group::all_reduce_int(int64_t value, ReduceOp op, std::string_view tag) {
  all_reduce({{.data = &value, .count = 1, .dtype = DType::kI64}}, op, tag);
  return value;
}

std::vector<int64_t> Group::exchange_counts(std::span<const int64_t> counts, std::string_view tag) {
  const auto n = static_cast<size_t>(size());
  EXPERTMESH_CHECK(counts.size() == n, "{}: {} counts for {} ranks", tag, counts.size(), n);
  const std::vector<int64_t> one_each(n, 1);
  std::vector<int64_t> received(n, 0);
  all_to_all({.send = counts.data(),
              .send_counts = one_each,
              .recv = received.data(),
              .recv_counts = one_each,
              .row_bytes = sizeof(int64_t)},
             tag);
  return received;
}

std::vector<std::string> Group::all_gather_text(std::string_view text, std::string_view tag) {
  const auto n = static_cast<size_t>(size());
  const std::vector<int64_t> one_each(n, 1);
  const auto length = static_cast<int64_t>(text.size());
  std::vector<int64_t> lengths(n, 0);
  all_gather({{.local = &length, .full = lengths.data(), .lens = one_each, .dtype = DType::kI64}}, tag);
  int64_t total = 0;
  for (const int64_t len : lengths) total += len;
  std::string all(static_cast<size_t>(total), '\0');
  all_gather({{.local = text.data(), .full = all.data(), .lens = lengths, .dtype = DType::kU8}}, tag);
  std::vector<std::string> texts;
  texts.reserve(n);
  size_t at = 0;
  for (const int64_t len : lengths) {
    texts.push_back(all.substr(at, static_cast<size_t>(len)));
    at += static_cast<size_t>(len);
  }
  return texts;
}

}  // namespace expertmesh::comm
