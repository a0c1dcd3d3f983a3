// SPDX-License-Identifier: Apache-2.0
// What a training run tells whoever shows it: the start table once, a record a step, how it ended. Called on global
// rank 0 only, from that rank's thread. Also carries the wish to stop from the outside in, on every rank.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace expertmesh::train {

// Rows of "name  value" under a heading; the viewer lines them up.
struct TableSection {
  std::string title;
  std::vector<std::pair<std::string, std::string>> rows;
};

// How the choices of a layer with experts fell since the last record; see moe::LoadSummary.
struct LayerLoad {
  int64_t layer = 0;
  double max_over_mean = 0;
  int64_t dead = 0;  // experts without a token
  double entropy = 0;
};

struct StepRecord {
  int64_t epoch = 0;
  int64_t step = 0;  // from 1
  int64_t total_steps = 0;
  double loss = 0;                     // NaN where it was not finite; without the balance loss
  std::optional<double> aux_loss;      // the balance loss before its coefficient; nothing where it is off
  double grad_norm = 0;                // before clipping
  double learning_rate = 0;            // of the next step, as upstream logs it
  double tokens_per_s = 0;             // all ranks, since the last record
  int64_t tokens_seen = 0;             // all ranks, since the start
  double step_s = 0;                   // mean over the steps since the last record
  double load_wait_s = 0;              // of that, waiting for data
  int64_t skipped_steps = 0;           // since the start
  std::vector<LayerLoad> expert_load;  // of each layer with experts; empty in a step that is not logged
  int64_t rss_mib = 0;                 // peak of this process
  bool is_logged = true;               // a logging step; other steps only move the progress bar
};

// The layer with the busiest expert; nullptr without layers.
inline const LayerLoad* worst_load(const StepRecord& record) {
  const auto worst =
      std::max_element(record.expert_load.begin(), record.expert_load.end(),
                       [](const LayerLoad& a, const LayerLoad& b) { return a.max_over_mean < b.max_over_mean; });
  return worst == record.expert_load.end() ? nullptr : &*worst;
}

// Who wants a run to end before its last step.
enum class Stop : int {
  kNone = 0,
  kUser = 1,    // Ctrl-C: what was trained so far is what is wanted
  kSystem = 2,  // SIGTERM: the machine is needed for something else
};

struct RunSummary {
  int64_t steps = 0;
  int64_t skipped_steps = 0;
  double first_loss = 0, last_loss = 0;
  double seconds = 0;
  double tokens_per_s = 0;
  std::string output_dir;
  std::string profile;  // the table; empty where nothing was recorded
  Stop stop = Stop::kNone;
};

class Observer {
 public:
  virtual ~Observer() = default;
  // `output_dir` exists.
  virtual void on_start(const std::vector<TableSection>& table, const std::string& output_dir) = 0;
  virtual void on_step(const StepRecord& record) = 0;
  virtual void on_save(const std::string& what, double done_fraction) = 0;  // a long save moves
  virtual void on_end(const RunSummary& summary) = 0;
  // Who has asked to end after the current step. Any thread.
  virtual Stop wants_stop() const = 0;
};

}  // namespace expertmesh::train
