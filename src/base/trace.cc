// SPDX-License-Identifier: Apache-2.0
#include "base/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "base/json.h"

namespace expertmesh::base {

Trace::Trace(size_t max_events) : max_events_(max_events) {
  intern("");
  set_origin();
}

void Trace::attach(Trace* trace) {
  Trace*& current = detail::t_trace;
  EXPERTMESH_CHECK(current == nullptr || current->open_.empty(), "a span is open");
  current = trace;
}

// Names are few: a number of them that does not fit is a mistake of who makes them up.
Trace::Name Trace::intern(std::string_view name) {
  const auto found = ids_.find(name);
  if (found != ids_.end()) return found->second;
  EXPERTMESH_CHECK(names_.size() <= std::numeric_limits<Name>::max(), "too many names of spans, {} next", name);
  const auto id = static_cast<Name>(names_.size());
  names_.emplace_back(name);
  ids_.emplace(name, id);
  sums_.emplace_back();
  return id;
}

// An outermost span is kept whole or not at all, as far as can be told from those before it.
void Trace::begin_outermost() {
  most_of_outermost_ = std::max(most_of_outermost_, events_.size() - first_of_outermost_);
  first_of_outermost_ = events_.size();
  if (events_.size() + most_of_outermost_ > max_events_) is_full_ = true;
}

void Trace::open(std::string_view name, SpanKind kind, int64_t index, Lane lane, std::string_view detail) {
  if (open_.empty()) begin_outermost();
  Open next;
  next.event.name = intern(name);
  next.event.detail = intern(detail);
  next.event.index = index;
  next.event.lane = lane;
  next.event.kind = kind;
  if (kind == SpanKind::kOperator) ++num_operators_;
  next.event.begin_ns = now_ns() - origin_ns_;
  open_.push_back(next);
}

void Trace::add_work(const Work& work) {
  open_.back().event.flops += work.flops;
  open_.back().event.bytes += work.bytes;
}

void Trace::close() {
  Open closed = open_.back();
  open_.pop_back();
  Event& event = closed.event;
  event.end_ns = now_ns() - origin_ns_;
  const int64_t total = event.end_ns - event.begin_ns;
  if (event.kind == SpanKind::kOperator) --num_operators_;
  if (event.kind == SpanKind::kLibrary && total < kShortestLibraryCallNs) {
    if (!open_.empty()) open_.back().inside_ns += closed.inside_ns;  // what it called keeps its own time
    return;
  }
  if (!open_.empty()) open_.back().inside_ns += total;
  if (event.kind == SpanKind::kWait) lanes_[static_cast<size_t>(event.lane)].waited_ns += total;
  Sum& sum = sums_[event.name];
  sum.kind = event.kind;
  sum.lane = event.lane;
  ++sum.calls;
  sum.total_ns += total;
  sum.self_ns += total - closed.inside_ns;
  sum.flops += event.flops;
  sum.bytes += event.bytes;
  event.lane = Lane::kCompute;  // a wait is the thread's own
  keep(event);
}

void Trace::keep(const Event& event) {
  if (is_full_ || events_.size() >= max_events_) {
    is_full_ = true;
    ++dropped_;
    return;
  }
  events_.push_back(event);
}

Trace::Flight Trace::launch(std::string_view name, std::string_view detail, Lane lane, double bytes) {
  const auto at = static_cast<size_t>(lane);
  const Flight flight{
      .begin_ns = now_ns() - origin_ns_, .bytes = bytes, .name = intern(name), .detail = intern(detail), .lane = lane};
  if (num_flying_[at]++ == 0) flying_since_ns_[at] = flight.begin_ns;
  return flight;
}

void Trace::land(const Flight& flight) {
  const auto at = static_cast<size_t>(flight.lane);
  const int64_t end = now_ns() - origin_ns_;
  LaneSum& sum = lanes_[at];
  if (--num_flying_[at] == 0) sum.flying_ns += end - flying_since_ns_[at];
  ++sum.flights;
  sum.bytes += flight.bytes;
  keep({.begin_ns = flight.begin_ns,
        .end_ns = end,
        .flops = 0,
        .bytes = flight.bytes,
        .index = -1,
        .name = flight.name,
        .detail = flight.detail,
        .lane = flight.lane,
        .kind = SpanKind::kFlight});
}

Lane Trace::set_posting_lane(Lane lane) { return std::exchange(posting_lane_, lane); }

std::vector<std::pair<std::string_view, Trace::Sum>> Trace::sums() const {
  std::vector<std::pair<std::string_view, Sum>> result;
  for (size_t i = 0; i < sums_.size(); ++i) {
    if (sums_[i].calls > 0) result.emplace_back(names_[i], sums_[i]);
  }
  return result;
}

namespace {

constexpr int kThreadsPerLane = 100;  // numbers of rows in the viewer

std::string_view kind_name(SpanKind kind) {
  switch (kind) {
    case SpanKind::kScope:
      return "scope";
    case SpanKind::kOperator:
      return "operator";
    case SpanKind::kLibrary:
      return "library";
    case SpanKind::kWait:
      return "wait";
    case SpanKind::kFlight:
      return "flight";
  }
  return "unknown";
}

// Row by row of each lane: events that overlap on a lane other than compute take the first row that is free.
class Rows {
 public:
  int row_of(const Trace::Event& event) {
    if (event.lane == Lane::kCompute) return 0;
    std::vector<int64_t>& ends = ends_[static_cast<size_t>(event.lane)];
    size_t row = 0;
    while (row < ends.size() && ends[row] > event.begin_ns) ++row;
    if (row == ends.size()) ends.push_back(0);
    ends[row] = event.end_ns;
    return static_cast<int>(row);
  }
  int count(Lane lane) const {
    return lane == Lane::kCompute ? 1 : static_cast<int>(ends_[static_cast<size_t>(lane)].size());
  }

 private:
  std::array<std::vector<int64_t>, kNumLanes> ends_;
};

int thread_of(Lane lane, int row) { return static_cast<int>(lane) * kThreadsPerLane + row; }

std::string metadata(int rank, int thread, std::string_view what, std::string_view name) {
  return fmt::format("{{\"ph\":\"M\",\"pid\":{},\"tid\":{},\"name\":\"{}\",\"args\":{{\"name\":{}}}}},\n", rank, thread,
                     what, json_quote(name));
}

std::string arguments_of(const Trace& trace, const Trace::Event& event) {
  std::string text;
  const auto add = [&](std::string_view key, const std::string& value) {
    text += fmt::format("{}\"{}\":{}", text.empty() ? "" : ",", key, value);
  };
  if (event.detail != Trace::kNoName) add("what", json_quote(trace.name(event.detail)));
  if (event.bytes > 0) add("bytes", fmt::format("{:.0f}", event.bytes));
  const auto ns = static_cast<double>(event.end_ns - event.begin_ns);
  if (event.flops > 0) add("flops", fmt::format("{:.0f}", event.flops));
  if (event.flops > 0 && ns > 0) add("gflops", fmt::format("{:.1f}", event.flops / ns));
  return text;
}

}  // namespace

std::string chrome_events(const Trace& trace, int rank, std::string_view place) {
  std::vector<Trace::Event> events = trace.events();
  // Outer before inner, also where they begin together.
  std::stable_sort(events.begin(), events.end(), [](const Trace::Event& a, const Trace::Event& b) {
    return a.begin_ns != b.begin_ns ? a.begin_ns < b.begin_ns : a.end_ns > b.end_ns;
  });
  std::string text = metadata(rank, 0, "process_name",
                              place.empty() ? fmt::format("rank {}", rank) : fmt::format("rank {} ({})", rank, place));
  Rows rows;
  for (const Trace::Event& event : events) {
    std::string name(trace.name(event.name));
    if (event.index >= 0) name += fmt::format(" {}", event.index);
    fmt::format_to(std::back_inserter(text),
                   "{{\"ph\":\"X\",\"pid\":{},\"tid\":{},\"ts\":{}.{:03},\"dur\":{}.{:03},\"name\":{},\"cat\":\"{}\","
                   "\"args\":{{{}}}}},\n",
                   rank, thread_of(event.lane, rows.row_of(event)), event.begin_ns / 1000, event.begin_ns % 1000,
                   (event.end_ns - event.begin_ns) / 1000, (event.end_ns - event.begin_ns) % 1000, json_quote(name),
                   kind_name(event.kind), arguments_of(trace, event));
  }
  for (size_t lane = 0; lane < kNumLanes; ++lane) {
    for (int row = 0; row < rows.count(static_cast<Lane>(lane)); ++row) {
      text += metadata(rank, thread_of(static_cast<Lane>(lane), row), "thread_name", kLaneNames[lane]);
    }
  }
  return text;
}

std::string chrome_tail() {
  return "{\"ph\":\"M\",\"pid\":0,\"tid\":0,\"name\":\"process_sort_index\",\"args\":{\"sort_index\":0}}\n]}\n";
}

}  // namespace expertmesh::base
