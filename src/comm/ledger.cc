// SPDX-License-Identifier: Apache-2.0
#include "comm/ledger.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/json.h"

namespace expertmesh::comm {
namespace {

template <size_t N>
void put(std::array<char, N>& to, std::string_view text) {
  const size_t length = std::min(text.size(), N - 1);
  std::copy_n(text.begin(), length, to.begin());
  to[length] = '\0';
}

std::string_view state_name(Ledger::State state) {
  switch (state) {
    case Ledger::State::kPosted:
      return "posted";
    case Ledger::State::kWaiting:
      return "waiting";
    case Ledger::State::kDone:
      return "done";
    case Ledger::State::kFailed:
      return "failed";
  }
  return "unknown";
}

// Of the steady clock: comparable between the ranks of one host.
int64_t micros(Ledger::Clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::microseconds>(time.time_since_epoch()).count();
}

}  // namespace

std::string_view op_name(Op op) {
  switch (op) {
    case Op::kAllGather:
      return "all_gather";
    case Op::kReduceScatter:
      return "reduce_scatter";
    case Op::kAllReduce:
      return "all_reduce";
    case Op::kAllToAll:
      return "all_to_all";
    case Op::kBroadcast:
      return "broadcast";
    case Op::kBarrier:
      return "barrier";
    case Op::kWindow:
      return "window";
  }
  return "unknown";
}

Ledger::Ticket Ledger::post(std::string_view axis, uint64_t sequence, Op op, base::DType dtype, int64_t elements,
                            int64_t bytes, std::string_view tag) {
  const auto now = Clock::now();
  const std::lock_guard lock(mutex_);
  Entry& entry = ring_[next_ % kEntries];
  put(entry.axis, axis);
  put(entry.tag, tag);
  entry.sequence = sequence;
  entry.elements = elements;
  entry.bytes = bytes;
  entry.step = step_;
  entry.micro_batch = micro_batch_;
  entry.op = op;
  entry.dtype = dtype;
  entry.state = State::kPosted;
  entry.posted = now;
  entry.started = entry.ended = {};
  return next_++;
}

void Ledger::mark(Ticket ticket, State state) {
  const auto now = Clock::now();
  const std::lock_guard lock(mutex_);
  if (next_ - ticket > kEntries) return;
  Entry& entry = ring_[ticket % kEntries];
  entry.state = state;
  (state == State::kWaiting ? entry.started : entry.ended) = now;
}

void Ledger::set_step(int64_t step, int micro_batch) {
  const std::lock_guard lock(mutex_);
  step_ = step;
  micro_batch_ = micro_batch;
}

int64_t Ledger::step() const {
  const std::lock_guard lock(mutex_);
  return step_;
}

uint64_t Ledger::count() const {
  const std::lock_guard lock(mutex_);
  return next_;
}

std::vector<Ledger::Entry> Ledger::entries() const {
  const std::lock_guard lock(mutex_);
  std::vector<Entry> list;
  const uint64_t first = next_ > kEntries ? next_ - kEntries : 0;
  list.reserve(next_ - first);
  for (uint64_t at = first; at < next_; ++at) list.push_back(ring_[at % kEntries]);
  return list;
}

std::optional<Ledger::Entry> Ledger::last() const {
  const std::lock_guard lock(mutex_);
  if (next_ == 0) return std::nullopt;
  return ring_[(next_ - 1) % kEntries];
}

std::optional<Ledger::Entry> Ledger::last_done() const {
  const std::lock_guard lock(mutex_);
  const uint64_t first = next_ > kEntries ? next_ - kEntries : 0;
  for (uint64_t at = next_; at > first; --at) {
    const Entry& entry = ring_[(at - 1) % kEntries];
    if (entry.state == State::kDone) return entry;
  }
  return std::nullopt;
}

std::optional<Ledger::Entry> Ledger::waiting() const {
  const std::lock_guard lock(mutex_);
  const uint64_t first = next_ > kEntries ? next_ - kEntries : 0;
  for (uint64_t at = first; at < next_; ++at) {
    const Entry& entry = ring_[at % kEntries];
    if (entry.state == State::kWaiting) return entry;
  }
  return std::nullopt;
}

std::string Ledger::to_json(int rank) const {
  base::Json::Array list;
  for (const Entry& entry : entries()) {
    base::Json::Object object;
    object.emplace_back("axis", entry.axis_text());
    object.emplace_back("sequence", static_cast<int64_t>(entry.sequence));
    object.emplace_back("op", op_name(entry.op));
    object.emplace_back("dtype", base::dtype_name(entry.dtype));
    object.emplace_back("elements", entry.elements);
    object.emplace_back("bytes", entry.bytes);
    object.emplace_back("tag", entry.tag_text());
    object.emplace_back("step", entry.step);
    object.emplace_back("micro_batch", entry.micro_batch);
    object.emplace_back("posted_us", micros(entry.posted));
    object.emplace_back("started_us", micros(entry.started));
    object.emplace_back("ended_us", micros(entry.ended));
    object.emplace_back("state", state_name(entry.state));
    list.emplace_back(std::move(object));
  }
  base::Json::Object top;
  top.emplace_back("rank", rank);
  top.emplace_back("count", static_cast<int64_t>(count()));
  top.emplace_back("entries", std::move(list));
  return base::dump_json(base::Json(std::move(top)));
}

std::string Ledger::to_text(int rank, size_t limit) const {
  const std::vector<Entry> list = entries();
  std::string text;
  for (size_t at = list.size() > limit ? list.size() - limit : 0; at < list.size(); ++at) {
    const Entry& entry = list[at];
    text += fmt::format("rank {} axis {}: {} {} {} bytes, {}\n", rank, entry.axis_text(), describe(entry),
                        base::dtype_name(entry.dtype), entry.bytes, state_name(entry.state));
  }
  return text;
}

std::string describe(Op op, uint64_t sequence, std::string_view tag, int64_t step) {
  return fmt::format("{} #{} ({}{})", op_name(op), sequence, tag, step < 0 ? "" : fmt::format(", step {}", step));
}

std::string describe(const Ledger::Entry& entry) {
  return describe(entry.op, entry.sequence, entry.tag_text(), entry.step);
}

}  // namespace expertmesh::comm
