// SPDX-License-Identifier: Apache-2.0
// Rank processes for tests: fork, the environment that torchrun would set, exit codes, output and times.
// Children leave with _exit: no destructor of the test program runs in them.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace expertmesh::comm::testing {

struct ProcessResult {
  int code = 0;  // exit code, or 128 + signal
  double seconds = 0;
  std::string output;  // stdout and stderr
};

// A port that was free a moment ago.
inline int free_port() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  if (fd < 0 || bind(fd, reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    std::perror("free_port");
    std::abort();
  }
  close(fd);
  return ntohs(address.sin_port);
}

struct ProcessOptions {
  int port = 0;                                                // 0: a free one
  std::chrono::milliseconds limit = std::chrono::seconds(60);  // then SIGKILL
  std::function<void(int rank)> before = {};                   // in the child, after its environment is set
};

// Runs `body` as rank 0 .. size - 1 of `size` processes; its result is the exit code. A failed expectation makes it 1.
inline std::vector<ProcessResult> run_processes(int size, const std::function<int(int rank)>& body,
                                                const ProcessOptions& options = {}) {
  using Clock = std::chrono::steady_clock;
  const std::string port = std::to_string(options.port != 0 ? options.port : free_port());
  const auto start = Clock::now();
  std::vector<pid_t> pids;
  std::vector<std::string> paths;
  for (int rank = 0; rank < size; ++rank) {
    char path[] = "/tmp/expertmesh-test-XXXXXX";
    const int file = mkstemp(path);
    paths.emplace_back(path);
    std::fflush(nullptr);
    const pid_t pid = fork();
    if (pid == 0) {
      dup2(file, 1);
      dup2(file, 2);
      setenv("RANK", std::to_string(rank).c_str(), 1);
      setenv("LOCAL_RANK", std::to_string(rank).c_str(), 1);
      setenv("WORLD_SIZE", std::to_string(size).c_str(), 1);
      setenv("LOCAL_WORLD_SIZE", std::to_string(size).c_str(), 1);
      setenv("MASTER_ADDR", "127.0.0.1", 1);
      setenv("MASTER_PORT", port.c_str(), 1);
      if (options.before) options.before(rank);
      int code = 99;
      try {
        code = body(rank);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "uncaught: %s\n", error.what());
      }
      if (code == 0 && ::testing::Test::HasFailure()) code = 1;
      std::fflush(nullptr);
      _exit(code);
    }
    close(file);
    pids.push_back(pid);
  }
  std::vector<ProcessResult> results(static_cast<size_t>(size));
  std::vector<bool> is_running(static_cast<size_t>(size), true);
  int num_running = size;
  bool is_killed = false;
  while (num_running > 0) {
    for (size_t at = 0; at < pids.size(); ++at) {
      int status = 0;
      if (!is_running[at] || waitpid(pids[at], &status, WNOHANG) != pids[at]) continue;
      is_running[at] = false;
      --num_running;
      results[at].code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      results[at].seconds = std::chrono::duration<double>(Clock::now() - start).count();
    }
    if (!is_killed && Clock::now() - start > options.limit) {
      is_killed = true;
      for (size_t at = 0; at < pids.size(); ++at) {
        if (is_running[at]) kill(pids[at], SIGKILL);
      }
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  for (size_t at = 0; at < pids.size(); ++at) {
    std::ostringstream text;
    text << std::ifstream(paths[at]).rdbuf();
    results[at].output = text.str();
    unlink(paths[at].c_str());
  }
  return results;
}

}  // namespace expertmesh::comm::testing
