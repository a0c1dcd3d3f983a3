// SPDX-License-Identifier: Apache-2.0
#include "app/console.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <mutex>

#include "app/signals.h"
#include "base/log.h"

namespace expertmesh::app {
namespace {

using Clock = std::chrono::steady_clock;

// The line on the terminal now; log lines clear it and draw it again.
std::mutex g_line_mutex;
std::string g_line;

void erase_line() { std::fputs("\r\033[K", stderr); }

void before_log() {
  if (!g_line.empty()) erase_line();
}
void after_log() {
  if (!g_line.empty()) std::fputs(g_line.c_str(), stderr);
}

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

std::string bar(double fraction, int width) {
  const int filled = static_cast<int>(std::clamp(fraction, 0.0, 1.0) * width);
  std::string text(filled, '=');
  if (filled < width) text += '>';
  text.resize(width, ' ');
  return "[" + text + "]";
}

// The worst layer's load: "  load 8.00 (layer 3, 28 dead)".
std::string load_text(const train::StepRecord& record) {
  const train::LayerLoad* worst = train::worst_load(record);
  if (worst == nullptr) return "";
  return fmt::format("  load {:.2f} (layer {}{})", worst->max_over_mean, worst->layer,
                     worst->dead > 0 ? fmt::format(", {} dead", worst->dead) : "");
}

std::string eta(double seconds, double fraction) {
  if (fraction <= 0) return "--:--";
  return format_duration(seconds / fraction - seconds);
}

}  // namespace

std::string format_duration(double seconds) {
  const auto total = static_cast<int64_t>(std::llround(std::max(0.0, seconds)));
  const int64_t hours = total / 3600, minutes = total / 60 % 60;
  if (hours > 0) return fmt::format("{}:{:02}:{:02}", hours, minutes, total % 60);
  return fmt::format("{:02}:{:02}", minutes, total % 60);
}

StatusLine::StatusLine() : is_terminal_(isatty(STDERR_FILENO) == 1) {
  if (is_terminal_) base::set_log_hooks(before_log, after_log);
}

StatusLine::~StatusLine() {
  clear();
  if (is_terminal_) base::set_log_hooks(nullptr, nullptr);
}

void StatusLine::show(const std::string& text) {
  if (!is_terminal_) return;
  const std::scoped_lock lock(g_line_mutex);
  g_line = text;
  std::fputs(("\r\033[K" + text).c_str(), stderr);
}

void StatusLine::clear() {
  const std::scoped_lock lock(g_line_mutex);
  if (!g_line.empty()) erase_line();
  g_line.clear();
}

void ProgressLine::update(uint64_t done, uint64_t total) {
  const double seconds = seconds_since(start_);
  if (!line_.is_on() || seconds < 0.5) return;
  const double fraction = total == 0 ? 1.0 : static_cast<double>(done) / static_cast<double>(total);
  line_.show(fmt::format("{} {:3.0f}% {} {:.1f} MiB/s ETA {}", what_, 100 * fraction, bar(fraction, 30),
                         static_cast<double>(done) / seconds / (1 << 20), eta(seconds, fraction)));
}

void RowProgress::add_row() {
  ++done_;
  const double seconds = seconds_since(start_);
  if (!line_.is_on() || seconds < 0.5) return;
  const double fraction = static_cast<double>(done_) / static_cast<double>(total_);
  line_.show(fmt::format("{} {}/{} rows, {:.1f} rows/s, ETA {}", what_, done_, total_,
                         static_cast<double>(done_) / seconds, eta(seconds, fraction)));
}

std::string format_table(const std::vector<train::TableSection>& table) {
  size_t title = 0, name = 0;
  for (const auto& section : table) {
    title = std::max(title, section.title.size());
    for (const auto& row : section.rows) name = std::max(name, row.first.size());
  }
  std::string text;
  for (const auto& section : table) {
    std::string heading = section.title;
    for (const auto& [key, value] : section.rows) {
      text += fmt::format("{:<{}}  {:<{}}  {}\n", heading, title, key, name, value);
      heading.clear();
    }
  }
  return text;
}

void Console::on_start(const std::vector<train::TableSection>& table, const std::string& output_dir) {
  output_dir_ = output_dir;
  log_ = std::make_unique<train::LogFile>(*fs_, output_dir);
  line_.clear();
  std::fputs(format_table(table).c_str(), stdout);
  std::fflush(stdout);
  start_ = Clock::now();
}

void Console::show_bar(const train::StepRecord& record) {
  const double fraction =
      static_cast<double>(record.step) / static_cast<double>(std::max<int64_t>(1, record.total_steps));
  line_.show(fmt::format("{}/{} {} loss {:.4f} norm {:.3f} lr {:.2e} {:.0f} tok/s ETA {}", record.step,
                         record.total_steps, bar(fraction, 20), record.loss, record.grad_norm, record.learning_rate,
                         record.tokens_per_s, eta(seconds_since(start_), fraction)));
}

void Console::on_step(const train::StepRecord& record) {
  curve_.push_back({record.step, record.loss});
  if (record.is_logged) log_->write(record);
  if (line_.is_on()) {
    show_bar(record);
  } else if (record.is_logged) {
    fmt::print("step {}/{}  loss {:.4f}{}  grad_norm {:.4f}  learning_rate {:.4g}  tokens/s {:.0f}{}\n", record.step,
               record.total_steps, record.loss, record.aux_loss ? fmt::format("  aux {:.4f}", *record.aux_loss) : "",
               record.grad_norm, record.learning_rate, record.tokens_per_s, load_text(record));
    std::fflush(stdout);
  }
}

void Console::on_save(const std::string& what, double done_fraction) {
  line_.show(fmt::format("saving {} {:3.0f}% {}", what, 100 * done_fraction, bar(done_fraction, 30)));
}

void Console::on_end(const train::RunSummary& summary) {
  line_.clear();
  const std::string curve = base::join_path(output_dir_, "loss.svg");
  base::write_file_atomic(*fs_, curve, train::loss_curve_svg(curve_, "training loss"));
  fmt::print(
      "{} after {} steps in {}: loss {:.4f} -> {:.4f}, {:.0f} tokens/s{}\nmodel in {}, log in trainer_log.jsonl, curve "
      "in loss.svg\n",
      summary.stop != train::Stop::kNone ? "stopped" : "done", summary.steps, format_duration(summary.seconds),
      summary.first_loss, summary.last_loss, summary.tokens_per_s,
      summary.skipped_steps > 0 ? fmt::format(", {} steps skipped", summary.skipped_steps) : "", summary.output_dir);
  if (!summary.profile.empty()) fmt::print("\n{}", summary.profile);
}

train::Stop Console::wants_stop() const {
  const int signal = stop_signal();
  if (signal == 0) return train::Stop::kNone;
  return signal == SIGTERM ? train::Stop::kSystem : train::Stop::kUser;
}

}  // namespace expertmesh::app
