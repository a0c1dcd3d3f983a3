// SPDX-License-Identifier: Apache-2.0
// What is behind ControlStore: for store.cc and wire.cc only (a heavy header).
#pragma once

#include <atomic>
#include <chrono>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "comm/c10d/store.h"

namespace expertmesh::comm {

struct ControlStore::Handle {
  c10::intrusive_ptr<c10d::Store> base;      // the connection
  c10::intrusive_ptr<c10d::Store> prefixed;  // the job's keys on it
  std::string prefix;
  int port = 0;
  std::chrono::milliseconds answer_limit{0};
  std::atomic<bool> is_lost{false};  // after a call without an answer: a late one would be taken for the next call's
};

}  // namespace expertmesh::comm
