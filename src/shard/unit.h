// SPDX-License-Identifier: Apache-2.0
// An FSDP unit: parameters that are gathered, freed and reduced together (a decoder layer's dense part, its experts,
// the root). All sharded ones are split over the same group. Collective over the shard group: unshard,
// reduce_gradients, reduce_full_gradients. Async: unshard() posts, wait() completes; value() of the parameters can be
// used after wait(). Posted operations of one group are waited for in the order of posting.
// Memory: the unsharded storage lives between unshard() and reshard(); tensors that autograd saved stay valid when it
// is gathered again, because it is the same storage with a new buffer.
#pragma once

#include <c10/core/Allocator.h>

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "shard/flat_exchange.h"
#include "shard/parameter.h"

namespace expertmesh::shard {

// Buffers of unsharded storages, reused by size: a step allocates nothing once it has run.
class BufferPool {
 public:
  at::DataPtr take(size_t bytes);
  void give(size_t bytes, at::DataPtr buffer);

 private:
  std::unordered_map<size_t, std::vector<at::DataPtr>> free_;
};

// How a unit is gathered and reduced: each parameter straight into its own tensor, or through one flat buffer.
enum class GatherMode { kPerParameter, kFlat };

class Unit {
 public:
  // Without a pool, what reshard() frees is there for anything: for a unit that is gathered once a step.
  Unit(std::string name, std::vector<Parameter*> parameters, GatherMode mode, BufferPool* pool);
  ~Unit();
  Unit(const Unit&) = delete;
  Unit& operator=(const Unit&) = delete;

  const std::string& name() const { return name_; }
  const std::vector<Parameter*>& parameters() const { return parameters_; }

  // Posts the gather; nothing where it is posted or gathered already.
  void unshard();
  void wait();
  // Frees the unsharded storage; a posted gather is completed first.
  void reshard();
  bool is_unsharded() const { return state_ == State::kUnsharded; }

  // Sums the micro-batch's full gradients (value().grad(); none counts as zeros) over the shard group into the
  // parameters' grad() shards, added to what earlier micro-batches left there, and frees them. Those that have a
  // full_grad() are left to reduce_full_gradients(), replica groups to finish_reductions().
  void reduce_gradients();
  // Once a step, after the last micro-batch: sums full_grad() over the shard group; grad() is then a part of it.
  void reduce_full_gradients();

 private:
  enum class State { kSharded, kPosted, kUnsharded };

  std::vector<comm::GatherPart> gather_parts() const;
  void keep_unsharded_gradient(Parameter& parameter);
  void reduce(std::vector<comm::ReducePart> parts);

  std::string name_;
  std::vector<Parameter*> parameters_;
  std::vector<Parameter*> sharded_;
  comm::Group* group_ = nullptr;
  GatherMode mode_;
  BufferPool* pool_;
  State state_ = State::kSharded;
  std::unique_ptr<comm::Work> work_;    // kPerParameter
  std::unique_ptr<FlatGather> gather_;  // kFlat
};

// Sums grad() over the replica groups of each parameter: once a step, after the last micro-batch. Parameters without a
// gradient get zeros first. Collective over every replica group, in order of the parameters.
void finish_reductions(const std::vector<Parameter*>& parameters);

// Element type of a tensor for comm.
comm::DType comm_dtype(at::ScalarType type);

}  // namespace expertmesh::shard
