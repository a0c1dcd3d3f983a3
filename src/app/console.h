// SPDX-License-Identifier: Apache-2.0
// What a training run shows: the start table, a progress bar on a terminal or a line a logging step elsewhere, the log
// file and the loss curve.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/file.h"
#include "train/observer.h"
#include "train/run_report.h"

namespace expertmesh::app {

// "1:02:03" or "02:03".
std::string format_duration(double seconds);

// A line that is redrawn in place on a terminal and not shown elsewhere. Log lines go above it.
class StatusLine {
 public:
  StatusLine();
  ~StatusLine();
  bool is_on() const { return is_terminal_; }
  void show(const std::string& text);
  void clear();

 private:
  bool is_terminal_;
};

// "tokenising   34% [=======>            ] 12.3 MiB/s ETA 00:07", for anything that takes over a second.
class ProgressLine {
 public:
  ProgressLine(StatusLine& line, std::string what)
      : line_(line), what_(std::move(what)), start_(std::chrono::steady_clock::now()) {}
  void update(uint64_t done, uint64_t total);

 private:
  StatusLine& line_;
  std::string what_;
  std::chrono::steady_clock::time_point start_;
};

// "scoring 12/100 rows, 3.4 rows/s, ETA 00:26", for anything that takes over half a second.
class RowProgress {
 public:
  RowProgress(StatusLine& line, std::string what, size_t total)
      : line_(line), what_(std::move(what)), total_(total), start_(std::chrono::steady_clock::now()) {}
  void add_row();

 private:
  StatusLine& line_;
  std::string what_;
  size_t done_ = 0, total_;
  std::chrono::steady_clock::time_point start_;
};

class Console : public train::Observer {
 public:
  explicit Console(StatusLine& line) : line_(line) {}

  void on_start(const std::vector<train::TableSection>& table, const std::string& output_dir) override;
  void on_step(const train::StepRecord& record) override;
  void on_save(const std::string& what, double done_fraction) override;
  void on_end(const train::RunSummary& summary) override;
  train::Stop wants_stop() const override;

 private:
  void show_bar(const train::StepRecord& record);

  StatusLine& line_;
  std::unique_ptr<base::FileSystem> fs_ = base::make_posix_file_system(base::Code::kCheckpoint);
  std::string output_dir_;
  std::unique_ptr<train::LogFile> log_;
  std::vector<train::CurvePoint> curve_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// Sections with their rows lined up.
std::string format_table(const std::vector<train::TableSection>& table);

}  // namespace expertmesh::app
