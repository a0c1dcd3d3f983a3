// SPDX-License-Identifier: Apache-2.0
// All fields are int64, one after the other; a list has its length in front.
#include "generate/report.h"

#include <cstring>

#include "base/check.h"

namespace expertmesh::generate {
namespace {

class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}
  int64_t next() {
    int64_t value = 0;
    EXPERTMESH_CHECK(bytes_.size() >= sizeof(value), "a report ends too early");
    std::memcpy(&value, bytes_.data(), sizeof(value));
    bytes_.remove_prefix(sizeof(value));
    return value;
  }
  bool is_at_end() const { return bytes_.empty(); }

 private:
  std::string_view bytes_;
};

}  // namespace

std::string pack(const RankReport& report) {
  std::vector<int64_t> values{report.wants_stop ? 1 : 0, report.has_work ? 1 : 0, report.prompt_tokens,
                              report.new_tokens, static_cast<int64_t>(report.finished.size())};
  for (const auto& [row, answer] : report.finished) {
    values.insert(values.end(),
                  {static_cast<int64_t>(row), answer.is_ended ? 1 : 0, static_cast<int64_t>(answer.ids.size())});
    values.insert(values.end(), answer.ids.begin(), answer.ids.end());
  }
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(int64_t)};
}

RankReport unpack(std::string_view bytes) {
  Reader reader(bytes);
  RankReport report;
  report.wants_stop = reader.next() != 0;
  report.has_work = reader.next() != 0;
  report.prompt_tokens = reader.next();
  report.new_tokens = reader.next();
  for (int64_t left = reader.next(); left > 0; --left) {
    FinishedRow row;
    row.row = static_cast<size_t>(reader.next());
    row.answer.is_ended = reader.next() != 0;
    for (int64_t ids = reader.next(); ids > 0; --ids) row.answer.ids.push_back(static_cast<int32_t>(reader.next()));
    report.finished.push_back(std::move(row));
  }
  EXPERTMESH_CHECK(reader.is_at_end(), "a report is longer than what it says");
  return report;
}

}  // namespace expertmesh::generate
