// SPDX-License-Identifier: Apache-2.0
#include "comm/wait_report.h"

#include <algorithm>

namespace expertmesh::comm {
namespace {

double seconds_since(Ledger::Clock::time_point time) {
  return std::chrono::duration<double>(Ledger::Clock::now() - time).count();
}

}  // namespace

std::string waits_text(const WaitPlace& place) {
  return fmt::format("axis {}: rank {} waits in {}", place.axis, place.rank,
                     describe(place.op, place.sequence, place.tag, place.step));
}

std::string doing_text(int rank, const Ledger& ledger) {
  if (const auto waiting = ledger.waiting()) {
    return fmt::format("rank {} waits in {} on axis {} for {:.1f} s", rank, describe(*waiting), waiting->axis_text(),
                       seconds_since(waiting->started));
  }
  if (const auto done = ledger.last_done()) {
    return fmt::format("rank {} last finished {} on axis {} {:.1f} s ago", rank, describe(*done), done->axis_text(),
                       seconds_since(done->ended));
  }
  return fmt::format("rank {} has finished no collective yet", rank);
}

std::string missing_text(int rank, const Ledger& ledger, const WaitPlace& place) {
  return fmt::format("{} and never entered #{}", doing_text(rank, ledger), place.sequence);
}

base::Error timeout_error(const WaitPlace& place, double seconds, const std::vector<std::string>& missing) {
  constexpr size_t kShown = 4;
  std::string text = fmt::format("{} for {:.1f} s; ", waits_text(place), seconds);
  for (size_t at = 0; at < std::min(kShown, missing.size()); ++at) {
    if (at > 0) text += "; ";
    text += missing[at];
  }
  if (missing.size() > kShown) text += fmt::format("; and {} more ranks", missing.size() - kShown);
  return base::Error(base::Code::kTimeout, "comm/timeout", std::move(text))
      .hint("Look at the missing ranks first: they hang or are slower than dist_timeout allows.");
}

base::Error mismatch_error(const WaitPlace& place, const std::string& difference) {
  return base::make_error(base::Code::kInternal, "comm/mismatch", "ranks differ in collective #{} of axis {}{}: {}",
                          place.sequence, place.axis, place.step < 0 ? "" : fmt::format(" in step {}", place.step),
                          difference)
      .hint("All ranks of an axis must make the same collective calls in the same order.");
}

base::Error left_error(const WaitPlace& place, int left_rank) {
  return base::make_error(base::Code::kInternal, "comm/left_early", "rank {} ended its work while {}", left_rank,
                          waits_text(place))
      .hint("All ranks of an axis must make the same collective calls.");
}

base::Error lost_error(const WaitPlace& place, int failed_rank, const std::optional<base::Error>& cause) {
  const std::string why = cause ? cause->text() : std::string("it failed");
  return base::make_error(base::Code::kPeerLost, "comm/peer_lost", "{} but rank {} ended the job: {}",
                          waits_text(place), failed_rank, why);
}

}  // namespace expertmesh::comm
