// SPDX-License-Identifier: Apache-2.0
// A dispatcher is the whole path from tokens and their experts to the combined output, forward and backward: plan,
// permute, exchange over ep, expert MLP, exchange back, weighted sum at the source. One file per dispatcher.
// Shapes: T tokens of this rank, K choices a token, H hidden, I expert width, E experts (E_local on this rank).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/group.h"

namespace expertmesh::moe {

// What is decided once per layer and micro-batch and kept for the recompute: the choice itself and the split sizes that
// follow from it (a few bytes a token). Filled by the first forward, read by later ones.
struct Routing {
  // The walk's part: text is generated, so there is no backward, and mostly few tokens.
  bool is_generating = false;
  // The router's part:
  bool decided = false;
  at::Tensor ids_TK;  // int64, global expert ids
  // The dispatcher's part, undefined until its first forward:
  std::vector<int64_t> send_counts;  // rows to each ep rank
  std::vector<int64_t> recv_counts;  // rows from each ep rank
  at::Tensor tokens_per_source_SE;   // int64 [ep_size, E_local]: rows that each source sends to each local expert
  // Of those that cut the exchange into chunks (chunk_step.h):
  at::Tensor chunk_counts;               // what each source told of its slices
  std::vector<at::Tensor> arrived_rows;  // int32, a slice: which of its source's token rows each row is
};

struct ExpertWeights {
  at::Tensor gate_up_proj;  // [E_local, 2I, H], gate rows first
  at::Tensor down_proj;     // [E_local, H, I]
};

// Bytes of tokens, results and their gradients that a rank has brought to others: as they were, and with a row for each
// choice.
struct TokenTraffic {
  int64_t bytes = 0;
  int64_t bytes_by_choice = 0;

  // Rows like those of rows_RH.
  void add(int64_t token_rows, int64_t choices, const at::Tensor& rows_RH);
};

struct DispatcherOptions {
  bool dedup = true;  // of those that exchange token rows: a token travels once to a rank, not once for each choice
  bool operator==(const DispatcherOptions&) const = default;
};

// Work of this rank alone on the same tokens, as a shared expert's: hidden_TH -> [T, H], differentiable.
using LocalWork = std::function<at::Tensor(const at::Tensor& hidden_TH)>;

class Dispatcher {
 public:
  virtual ~Dispatcher() = default;
  virtual std::string_view name() const = 0;
  virtual const DispatcherOptions& options() const = 0;
  // Since it was made.
  virtual TokenTraffic traffic() const = 0;

  // out_TH = sum_k weights[t, k] * MLP_{ids[t, k]}(hidden[t]), summed in fp32, in hidden's dtype. Differentiable in
  // hidden, weights_TK (fp32) and both weight tensors. Gradients of experts without tokens are zeros.
  // Collective over ep, forward and backward, also with T == 0.
  at::Tensor forward(const at::Tensor& hidden_TH, const at::Tensor& weights_TK, Routing& routing,
                     const ExpertWeights& weights, comm::Group& ep) const {
    return run(hidden_TH, weights_TK, routing, weights, ep, {}).experts_TH;
  }

  struct Output {
    at::Tensor experts_TH, local_TH;
  };
  // That, and local(hidden_TH) in the time that an exchange takes, forward and backward. The same to the bit as beside
  // it.
  Output forward(const at::Tensor& hidden_TH, const at::Tensor& weights_TK, Routing& routing,
                 const ExpertWeights& weights, comm::Group& ep, const LocalWork& local) const {
    return run(hidden_TH, weights_TK, routing, weights, ep, local);
  }

 protected:
  // local: may be empty.
  virtual Output run(const at::Tensor& hidden_TH, const at::Tensor& weights_TK, Routing& routing,
                     const ExpertWeights& weights, comm::Group& ep, const LocalWork& local) const = 0;
};

struct DispatcherInfo {
  std::string_view name;
  std::string_view status;  // "reference", "validated", "experimental"
  std::string_view needs;
  std::unique_ptr<Dispatcher> (*make)(const DispatcherOptions& options);
};

// The table: one row each.
std::span<const DispatcherInfo> dispatchers();

// Throws kConfig listing the known names.
std::unique_ptr<Dispatcher> make_dispatcher(std::string_view name, const DispatcherOptions& options = {});

// Whether the option changes anything: `eager` has a row for each choice, and `mc2` exchanges none where ranks share
// memory.
bool has_dedup(std::string_view name, bool shares_memory);

}  // namespace expertmesh::moe
