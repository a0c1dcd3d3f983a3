// SPDX-License-Identifier: Apache-2.0
#include "app/signals.h"

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <string_view>

namespace expertmesh::app {
namespace {

std::atomic<int> g_first{0};
std::atomic<bool> g_answer_stopped{false};
std::atomic<const char*> g_unfinished_file{nullptr};

// Async-signal-safe: remembers, writes, leaves.
void on_stop_signal(int signal) {
  int none = 0;
  if (!g_first.compare_exchange_strong(none, signal)) _exit(128 + signal);
  constexpr std::string_view kText = "\n[info] ending after this step and saving; once more ends at once\n";
  (void)!write(STDERR_FILENO, kText.data(), kText.size());
}

void on_answer_interrupt(int signal) {
  if (g_answer_stopped.exchange(true)) _exit(128 + signal);
}

// The signal is blocked until the handler returns, and then does what it does by default.
void on_unfinished_file(int signal) {
  if (const char* path = g_unfinished_file.load()) unlink(path);
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

void set_handler(int signal, void (*handler)(int)) {
  struct sigaction action{};
  action.sa_handler = handler;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  sigaction(signal, &action, nullptr);
}

}  // namespace

void ignore_broken_pipes() { set_handler(SIGPIPE, SIG_IGN); }

void take_stop_signals() {
  set_handler(SIGINT, on_stop_signal);
  set_handler(SIGTERM, on_stop_signal);
}

int stop_signal() { return g_first.load(); }

FileGoneOnSignal::FileGoneOnSignal(const std::string& path) : path_(path) {
  g_unfinished_file = path_.c_str();
  sigaction(SIGINT, nullptr, &interrupt_before_);
  sigaction(SIGTERM, nullptr, &terminate_before_);
  if (interrupt_before_.sa_handler != SIG_IGN) set_handler(SIGINT, on_unfinished_file);
  if (terminate_before_.sa_handler != SIG_IGN) set_handler(SIGTERM, on_unfinished_file);
}

FileGoneOnSignal::~FileGoneOnSignal() {
  sigaction(SIGINT, &interrupt_before_, nullptr);
  sigaction(SIGTERM, &terminate_before_, nullptr);
  g_unfinished_file = nullptr;
}

StoppableAnswer::StoppableAnswer() { set_handler(SIGINT, on_answer_interrupt); }

// The wish goes with its answer: a rank that is early with the next one must not find it.
StoppableAnswer::~StoppableAnswer() {
  set_handler(SIGINT, SIG_DFL);
  g_answer_stopped = false;
}

bool is_answer_stopped() { return g_answer_stopped.load(); }

}  // namespace expertmesh::app
