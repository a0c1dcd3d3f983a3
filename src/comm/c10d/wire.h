// SPDX-License-Identifier: Apache-2.0
// Bytes between the processes of one group, over Gloo. Nothing here knows about tensors, tags or reductions.
// Collective over: the group. Threads: one call at a time.
// Waiting: `tick` is called about every 50 ms; it ends the wait by throwing. After that, and after any error, the wire
// is
//   broken: it is left to the end of the process, because Gloo cannot cancel an operation that it waits in.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "comm/c10d/store.h"

namespace expertmesh::comm {

// A peer's connection failed.
struct WireLost : std::runtime_error {
  using std::runtime_error::runtime_error;
};

using Tick = std::function<void()>;

// Memory that Gloo may still hold after a broken operation: shared with it.
class WireBuffer {
 public:
  explicit WireBuffer(int64_t bytes);
  ~WireBuffer();
  WireBuffer(const WireBuffer&) = delete;
  WireBuffer& operator=(const WireBuffer&) = delete;

  std::byte* data() const { return data_; }
  int64_t size() const { return size_; }

 private:
  friend class Wire;
  struct Impl;
  std::unique_ptr<Impl> impl_;
  std::byte* data_ = nullptr;
  int64_t size_ = 0;
};

class Wire {
 public:
  // `key` names the group in the store; `is_one_host` binds to the loopback address.
  Wire(const ControlStore& store, const std::string& key, int rank, int size, bool is_one_host,
       std::chrono::milliseconds timeout);
  ~Wire();
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;

  // The first bytes of the buffers are used; counts are bytes, by rank.
  void all_to_all(const WireBuffer& send, const std::vector<int64_t>& send_counts, WireBuffer& recv,
                  const std::vector<int64_t>& recv_counts, const Tick& tick);
  // `bytes` of every rank, in rank order.
  void all_gather(const WireBuffer& send, int64_t bytes, WireBuffer& recv, const Tick& tick);
  void broadcast(WireBuffer& data, int64_t bytes, int root, const Tick& tick);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace expertmesh::comm
