// SPDX-License-Identifier: Apache-2.0
// What one rank does when: nested spans of its thread, and what is on its way to and from its peers meanwhile. For a
// trace of the run and for sums by name, which are kept apart so that they stay whole when the trace is full.
// Threads: a Trace belongs to the thread it is attached to. Spans of a thread without one cost a branch.
// Memory: at most `max_events` events of 48 bytes; what comes after is counted, not kept.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace expertmesh::base {

// kCompute: the rank's own thread, with its waits. The others: what is on its way there, from posting to completion.
// kAgreement: small collectives by which ranks agree on numbers.
enum class Lane : uint8_t { kCompute, kExchange, kFsdp, kAgreement };
constexpr size_t kNumLanes = 4;
constexpr std::array<std::string_view, kNumLanes> kLaneNames{"compute", "exchange", "FSDP", "agreement"};

// kScope: has other spans inside, as a step or a layer. kOperator: work under its own name, whatever library calls it
// makes. kLibrary: a library's call outside of an operator. kWait: for peers, with the copying that a wait does.
// kFlight: on a lane other than kCompute.
enum class SpanKind : uint8_t { kScope, kOperator, kLibrary, kWait, kFlight };

// What is known of an operator's work.
struct Work {
  double flops = 0;
  double bytes = 0;  // read and written at least
};

class Trace {
 public:
  using Name = uint16_t;
  static constexpr size_t kMaxEvents = size_t{1} << 18;
  static constexpr Name kNoName = 0;
  static constexpr int64_t kShortestLibraryCallNs = 5000;  // shorter ones stay a part of what called them

  struct Event {
    int64_t begin_ns = 0, end_ns = 0;  // since the trace's origin
    double flops = 0, bytes = 0;
    int64_t index = -1;  // "layer 3"; -1: none
    Name name = kNoName, detail = kNoName;
    Lane lane = Lane::kCompute;
    SpanKind kind = SpanKind::kScope;
  };

  // Over all spans of a name, whether they were kept or not.
  struct Sum {
    SpanKind kind = SpanKind::kScope;
    Lane lane = Lane::kCompute;
    int64_t calls = 0;
    int64_t total_ns = 0, self_ns = 0;  // self: without the spans inside
    double flops = 0, bytes = 0;
  };

  struct LaneSum {
    int64_t flights = 0;
    double bytes = 0;       // this rank's own contributions
    int64_t waited_ns = 0;  // of the rank's thread
    int64_t flying_ns = 0;  // at least one was on its way
  };

  explicit Trace(size_t max_events = kMaxEvents);

  // Times count from here: called by all ranks at one moment, it lines their traces up.
  void set_origin() { origin_ns_ = now_ns(); }

  // Of the calling thread, from now on; nullptr: none. No span is open at either change.
  static void attach(Trace* trace);

  // Spans, innermost last.
  void open(std::string_view name, SpanKind kind, int64_t index = -1, Lane lane = Lane::kCompute,
            std::string_view detail = {});
  void add_work(const Work& work);
  void close();
  // Whether a span of the library would be dropped: it stands in an operator.
  bool is_in_operator() const { return num_operators_ > 0; }

  // Something on its way: the handle goes to land().
  struct Flight {
    int64_t begin_ns = 0;
    double bytes = 0;
    Name name = kNoName, detail = kNoName;
    Lane lane = Lane::kExchange;
  };
  Flight launch(std::string_view name, std::string_view detail, Lane lane, double bytes);
  void land(const Flight& flight);

  // The lane of what is posted from here on; kCompute: by its kind.
  Lane posting_lane() const { return posting_lane_; }
  Lane set_posting_lane(Lane lane);

  const std::vector<Event>& events() const { return events_; }
  int64_t dropped() const { return dropped_; }
  std::string_view name(Name name) const { return names_[name]; }
  // By name, those with spans.
  std::vector<std::pair<std::string_view, Sum>> sums() const;
  const LaneSum& lane_sum(Lane lane) const { return lanes_[static_cast<size_t>(lane)]; }

 private:
  struct Open {
    Event event;
    int64_t inside_ns = 0;
  };

  int64_t now_ns() const {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
  Name intern(std::string_view name);
  void keep(const Event& event);
  void begin_outermost();

  struct Hash : std::hash<std::string_view> {
    using is_transparent = void;
  };

  size_t max_events_;
  int64_t origin_ns_ = 0;
  std::vector<Event> events_;
  std::vector<Open> open_;
  int num_operators_ = 0;
  size_t first_of_outermost_ = 0;  // of events_: where the newest outermost span's begin
  size_t most_of_outermost_ = 0;   // the largest number of events of an outermost span
  bool is_full_ = false;
  int64_t dropped_ = 0;
  Lane posting_lane_ = Lane::kCompute;
  std::vector<std::string> names_;
  std::unordered_map<std::string, Name, Hash, std::equal_to<>> ids_;
  std::vector<Sum> sums_;  // by name
  std::array<LaneSum, kNumLanes> lanes_{};
  std::array<int64_t, kNumLanes> num_flying_{}, flying_since_ns_{};
};

namespace detail {
constinit inline thread_local Trace* t_trace = nullptr;
}  // namespace detail

// Of the calling thread; nullptr where nothing is recorded.
inline Trace* current_trace() { return detail::t_trace; }

// From here to the end of the scope.
class Span {
 public:
  explicit Span(std::string_view name, SpanKind kind = SpanKind::kOperator, int64_t index = -1)
      : trace_(current_trace()) {
    if (trace_ != nullptr) [[unlikely]]
      trace_->open(name, kind, index);
  }
  // A wait for what goes on `lane`.
  Span(std::string_view name, Lane lane, std::string_view detail) : trace_(current_trace()) {
    if (trace_ != nullptr) [[unlikely]]
      trace_->open(name, SpanKind::kWait, -1, lane, detail);
  }
  ~Span() {
    if (trace_ != nullptr) [[unlikely]]
      trace_->close();
  }
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

  // work(): the Work that is done here; asked for only where it is recorded.
  template <typename Function>
  void does(const Function& work) const {
    if (trace_ != nullptr) [[unlikely]]
      trace_->add_work(work());
  }

 private:
  Trace* trace_;
};

// Collectives posted within it are shown on this lane.
class PostingLane {
 public:
  explicit PostingLane(Lane lane) : trace_(current_trace()) {
    if (trace_ != nullptr) [[unlikely]]
      before_ = trace_->set_posting_lane(lane);
  }
  ~PostingLane() {
    if (trace_ != nullptr) [[unlikely]]
      trace_->set_posting_lane(before_);
  }
  PostingLane(const PostingLane&) = delete;
  PostingLane& operator=(const PostingLane&) = delete;

 private:
  Trace* trace_;
  Lane before_ = Lane::kCompute;
};

// {"ph":"X", ...} events of the trace-event format that chrome://tracing and Perfetto open, one a line, each followed
// by a comma. The rank is the process; what overlaps on a lane goes to rows of its own.
std::string chrome_events(const Trace& trace, int rank, std::string_view place);
// What stands before and after the events of all ranks.
inline constexpr std::string_view kChromeHead = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
std::string chrome_tail();

}  // namespace expertmesh::base
