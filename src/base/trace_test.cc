// SPDX-License-Identifier: Apache-2.0
#include "base/trace.h"

#include <gtest/gtest.h>

#include <map>
#include <thread>

#include "base/json.h"

namespace expertmesh::base {
namespace {

// A trace on this thread for the length of a test.
class Attached {
 public:
  explicit Attached(size_t max_events = Trace::kMaxEvents) : trace(max_events) { Trace::attach(&trace); }
  ~Attached() { Trace::attach(nullptr); }
  Attached(const Attached&) = delete;
  Attached& operator=(const Attached&) = delete;

  Trace::Sum sum(std::string_view name) const {
    for (const auto& [found, sum] : trace.sums()) {
      if (found == name) return sum;
    }
    return {};
  }

  Trace trace;
};

Json parse_chrome(const Trace& trace, int rank = 0) {
  return parse_json(std::string(kChromeHead) + chrome_events(trace, rank, "dp 0") + chrome_tail());
}

// {"ph": "X"} events.
std::vector<Json> spans_of(const Json& chrome) {
  std::vector<Json> spans;
  for (const Json& event : *chrome.find("traceEvents")->try_array()) {
    if (*event.find("ph")->try_string() == "X") spans.push_back(event);
  }
  return spans;
}

TEST(Trace, WithoutOneASpanDoesNothing) {
  ASSERT_EQ(current_trace(), nullptr);
  const Span span("a");
  bool is_asked = false;
  span.does([&] {
    is_asked = true;
    return Work{};
  });
  EXPECT_FALSE(is_asked);
}

TEST(Trace, BelongsToOneThread) {
  const Attached attached;
  std::thread([] {
    EXPECT_EQ(current_trace(), nullptr);
    const Span span("elsewhere");
  }).join();
  EXPECT_TRUE(attached.trace.events().empty());
}

TEST(Trace, SelfTimesAddUpToTheOutermost) {
  const Attached attached;
  {
    const Span step("step", SpanKind::kScope, 1);
    for (int i = 0; i < 3; ++i) {
      const Span layer("layer", SpanKind::kScope, i);
      const Span op("norm");
      op.does([] { return Work{.flops = 5, .bytes = 7}; });
      const Span wait("wait: exchange", Lane::kExchange, "layer 0 dispatch");
    }
  }
  const Trace::Sum step = attached.sum("step"), layer = attached.sum("layer"), norm = attached.sum("norm"),
                   wait = attached.sum("wait: exchange");
  EXPECT_EQ(step.calls, 1);
  EXPECT_EQ(layer.calls, 3);
  EXPECT_EQ(step.total_ns, step.self_ns + layer.self_ns + norm.self_ns + wait.self_ns);
  EXPECT_EQ(norm.total_ns, norm.self_ns + wait.total_ns);
  EXPECT_EQ(norm.flops, 15);
  EXPECT_EQ(norm.bytes, 21);
  EXPECT_EQ(attached.trace.lane_sum(Lane::kExchange).waited_ns, wait.total_ns);
  EXPECT_EQ(attached.trace.lane_sum(Lane::kFsdp).waited_ns, 0);
}

TEST(Trace, ShortCallsOfTheLibraryStayWithTheirCaller) {
  const Attached attached;
  {
    const Span step("step", SpanKind::kScope);
    const Span call("aten::add", SpanKind::kLibrary);
  }
  EXPECT_EQ(attached.sum("aten::add").calls, 0);
  EXPECT_EQ(attached.sum("step").self_ns, attached.sum("step").total_ns);
}

TEST(Trace, WhatAShortCallCallsIsCountedOnce) {
  const Attached attached;
  {
    const Span step("step", SpanKind::kScope);
    const Span call("aten::add", SpanKind::kLibrary);
    const Span op("norm");
  }
  const Trace::Sum step = attached.sum("step");
  EXPECT_EQ(attached.sum("norm").calls, 1);
  EXPECT_EQ(step.total_ns, step.self_ns + attached.sum("aten::add").self_ns + attached.sum("norm").self_ns);
}

TEST(Trace, KnowsWhatStandsInAnOperator) {
  const Attached attached;
  EXPECT_FALSE(attached.trace.is_in_operator());
  {
    const Span layer("layer", SpanKind::kScope);
    EXPECT_FALSE(attached.trace.is_in_operator());
    const Span op("norm");
    EXPECT_TRUE(attached.trace.is_in_operator());
  }
  EXPECT_FALSE(attached.trace.is_in_operator());
}

TEST(Trace, FlightsCountWhileAnyIsOnItsWay) {
  Attached attached;
  const auto first = attached.trace.launch("all_to_all", "layer 0", Lane::kExchange, 100);
  const auto second = attached.trace.launch("all_to_all", "layer 0", Lane::kExchange, 20);
  attached.trace.land(first);
  attached.trace.land(second);
  const Trace::LaneSum& sum = attached.trace.lane_sum(Lane::kExchange);
  EXPECT_EQ(sum.flights, 2);
  EXPECT_EQ(sum.bytes, 120);
  const std::vector<Trace::Event>& events = attached.trace.events();
  ASSERT_EQ(events.size(), 2U);
  EXPECT_EQ(sum.flying_ns, events[1].end_ns - events[0].begin_ns);
}

TEST(Trace, PostingLaneIsPutBack) {
  const Attached attached;
  EXPECT_EQ(attached.trace.posting_lane(), Lane::kCompute);
  {
    const PostingLane lane(Lane::kFsdp);
    EXPECT_EQ(attached.trace.posting_lane(), Lane::kFsdp);
  }
  EXPECT_EQ(attached.trace.posting_lane(), Lane::kCompute);
}

TEST(Trace, ChromeEventsNestAndNameTheirLanes) {
  Attached attached;
  {
    const Span step("step", SpanKind::kScope, 3);
    const auto flight = attached.trace.launch("all_to_all", "layer \"0\"", Lane::kExchange, 64);
    const auto overlapping = attached.trace.launch("all_to_all", "layer 1", Lane::kExchange, 64);
    {
      const Span op("experts");
    }
    attached.trace.land(flight);
    attached.trace.land(overlapping);
  }
  const Json chrome = parse_chrome(attached.trace, 2);
  std::map<int64_t, std::string> lanes;
  for (const Json& event : *chrome.find("traceEvents")->try_array()) {
    if (*event.find("name")->try_string() != "thread_name") continue;
    lanes[*event.find("tid")->try_int64()] = *event.find("args")->find("name")->try_string();
  }
  const std::vector<Json> spans = spans_of(chrome);
  ASSERT_EQ(spans.size(), 4U);
  EXPECT_EQ(*spans[0].find("name")->try_string(), "step 3");
  EXPECT_EQ(*spans[0].find("pid")->try_int64(), 2);
  EXPECT_EQ(lanes[*spans[0].find("tid")->try_int64()], "compute");
  EXPECT_EQ(lanes[*spans[1].find("tid")->try_int64()], "exchange");
  EXPECT_EQ(lanes[*spans[2].find("tid")->try_int64()], "exchange");
  EXPECT_NE(*spans[1].find("tid")->try_int64(), *spans[2].find("tid")->try_int64()) << "they overlap";
  EXPECT_EQ(*spans[1].find("args")->find("what")->try_string(), "layer \"0\"");
  EXPECT_EQ(*spans[3].find("name")->try_string(), "experts");
}

TEST(Trace, EmptyIsValid) { EXPECT_TRUE(spans_of(parse_chrome(Trace())).empty()); }

TEST(Trace, WhatDoesNotFitIsCountedAndSummed) {
  const Attached attached(10);
  for (int64_t step = 0; step < 5; ++step) {
    const Span outer("step", SpanKind::kScope, step);
    for (int i = 0; i < 3; ++i) const Span op("norm");
  }
  // Whole steps of four events: two fit.
  EXPECT_EQ(attached.trace.events().size(), 8U);
  EXPECT_EQ(attached.trace.dropped(), 12);
  EXPECT_EQ(attached.sum("norm").calls, 15);
  EXPECT_EQ(attached.sum("step").calls, 5);
}

TEST(Trace, NeverHoldsMoreThanItsLimit) {
  const Attached attached(3);
  {
    const Span step("step", SpanKind::kScope);
    for (int i = 0; i < 9; ++i) const Span op("norm");
  }
  EXPECT_EQ(attached.trace.events().size(), 3U);
  EXPECT_EQ(attached.trace.dropped(), 7);
}

}  // namespace
}  // namespace expertmesh::base
