// SPDX-License-Identifier: Apache-2.0
// The control store of a job of processes: small values under keys, served by rank 0 or by the launcher's agent.
// Owns: one connection. Threads: any, one call at a time; a blocking call blocks the others, so each thread has its
// own. Errors: StoreLost where the server is gone; kCommSetup from connect().
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

#include "comm/launcher.h"

namespace expertmesh::comm {

// The server does not answer any more.
struct StoreLost : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// It is there, and has not answered within the limit: its process hangs, or the network is down.
struct StoreSilent : StoreLost {
  using StoreLost::StoreLost;
};

class ControlStore {
 public:
  // Connects, and serves where this rank has to. `timeout` is the limit of answers as well.
  static std::unique_ptr<ControlStore> connect(const Launch& launch, std::chrono::milliseconds timeout);
  ~ControlStore();
  ControlStore(const ControlStore&) = delete;
  ControlStore& operator=(const ControlStore&) = delete;

  // How long a call waits for its answer; copied by clone().
  void limit_answers(std::chrono::milliseconds limit);
  // A connection of its own to the same store.
  std::unique_ptr<ControlStore> clone() const;

  void set(std::string_view key, std::string_view value);
  std::optional<std::string> try_get(std::string_view key);
  // The value that stands afterwards: `value` where nothing stood there before.
  std::string set_once(std::string_view key, std::string_view value);
  int64_t add(std::string_view key, int64_t amount);

  struct Handle;  // libtorch's store, for Wire
  const Handle& handle() const { return *handle_; }

 private:
  explicit ControlStore(std::unique_ptr<Handle> handle);
  std::unique_ptr<Handle> handle_;
};

}  // namespace expertmesh::comm
