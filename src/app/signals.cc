// SPDX-License-Identifier: Apache-2.0
#include "app/signals.h"

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <string_view>

namespace expertmesh::app {
namespace {

std::atomic<int> g_interrupts{0};

// Async-signal-safe: counts, writes, leaves.
void on_interrupt(int signal) {
  if (g_interrupts.fetch_add(1) == 0) {
    constexpr std::string_view kText = "\n[info] ending after this step and saving; once more ends at once\n";
    (void)!write(STDERR_FILENO, kText.data(), kText.size());
    return;
  }
  _exit(128 + signal);
}

}  // namespace

void install_signal_handlers() {
  struct sigaction action{};
  action.sa_handler = on_interrupt;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  struct sigaction ignore{};
  ignore.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &ignore, nullptr);
}

bool stop_requested() { return g_interrupts.load() > 0; }

}  // namespace expertmesh::app
