// SPDX-License-Identifier: Apache-2.0
#include "base/fault.h"
#include "comm/rank_errors.h"
#include "comm/world.h"

namespace expertmesh::comm {
namespace {

// The job's cause, where this rank only saw its consequence.
base::Error cause_of(const World& world, const base::Error& seen) {
  auto cause = world.abort_cause();
  return cause ? *std::move(cause) : seen;
}

}  // namespace

void run_rank(World& world, const WorldOptions& options, const std::function<void(World&)>& body) {
  base::set_fault_rank(world.rank());
  try {
    body(world);
    return;
  } catch (...) {
    base::Error error = translate_exception(std::current_exception());
    if (!error.rank()) error.on_rank(world.rank(), error.coords(), error.step());
    world.abort(error);
    FailureReport report{cause_of(world, error), {}, {&world.ledger()}, {world.rank()}};
    if (report.cause.message() != error.message()) report.consequences.push_back(error);
    if (options.on_failure) options.on_failure(report);
    throw report.cause;
  }
}

}  // namespace expertmesh::comm
