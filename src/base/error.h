// SPDX-License-Identifier: Apache-2.0
// The one error type: thrown anywhere, caught once in app, which prints one block and exits with its code.
// Grammar: error[room/topic] where: message. hint
#pragma once

#include <fmt/format.h>

#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace expertmesh::base {

// Exit codes are an interface (docs/exit-codes.md).
enum class Code : int {
  kUsage = 2,        // unknown command or flag
  kConfig = 10,      // unknown key, bad value, sizes that do not divide
  kData = 11,        // bad row, empty set
  kModel = 12,       // missing tensor, wrong shape, malformed weights or config.json
  kCheckpoint = 13,  // corrupt, incomplete, locked, I/O error while saving
  kCommSetup = 14,   // port in use, rendezvous, peers missing
  kPeerLost = 15,    // another rank ended and its cause is not known here
  kTimeout = 16,     // a rank did not enter a collective in time
  kNumerics = 17,    // non-finite loss or norm, replicas that differ
  kPreempted = 18,   // SIGTERM: saved, not complete
  kResources = 19,   // out of memory or disk
  kInternal = 70,    // failed check, diverging collectives
};

// What went wrong, where, and what to do instead. `topic` is "room" or "room/detail", for example "config/ep_size".
class Error : public std::exception {
 public:
  Error(Code code, std::string topic, std::string message) noexcept
      : code_(code), topic_(std::move(topic)), message_(std::move(message)) {}

  // The place of the fault: "config.yaml:14:12", "rows.jsonl:7", "model.safetensors: tensor x".
  Error& at(std::string where) {
    where_ = std::move(where);
    return *this;
  }
  // What to do instead; a full sentence.
  Error& hint(std::string text) {
    hint_ = std::move(text);
    return *this;
  }
  // The rank that failed, its mesh coordinates ("dp 1, ep 0"), and the step; filled by the rank wrapper.
  Error& on_rank(int rank, std::string coords = {}, long step = -1) {
    rank_ = rank;
    coords_ = std::move(coords);
    step_ = step;
    return *this;
  }

  Code code() const { return code_; }
  const std::string& topic() const { return topic_; }
  const std::string& message() const { return message_; }
  const std::string& hint() const { return hint_; }
  const std::string& where() const { return where_; }
  std::optional<int> rank() const { return rank_; }
  const std::string& coords() const { return coords_; }
  long step() const { return step_; }

  // One line: "error[config/ep_size] config.yaml:14:12: ep_size 3 does not divide dp_size 8. Use 1, 2, 4 or 8."
  std::string text() const;
  // The same without "error[...]", for a warning that goes on: "config.yaml:14:12: ep_size 3 ... Use 1, 2, 4 or 8."
  std::string reason() const;
  const char* what() const noexcept override;

 private:
  Code code_;
  std::string topic_, message_, hint_, where_, coords_;
  std::optional<int> rank_;
  long step_ = -1;
  mutable std::string what_;
};

// throw make_error(Code::kConfig, "config/ep_size", "ep_size {} does not divide dp_size {}", 3, 8).at(...).hint(...);
template <typename... Args>
Error make_error(Code code, std::string topic, fmt::format_string<Args...> format, Args&&... args) {
  return Error(code, std::move(topic), fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace expertmesh::base
