// SPDX-License-Identifier: Apache-2.0
// One parameter of the model as one rank sees it: its global shape, which slice of it this rank keeps (the shard), the
// gradient of that slice in fp32, and the unsharded tensor that the layers compute with while it is gathered.
// Owns: its tensors. Threads: one rank. Before materialize() there are shapes only.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/group.h"
#include "shard/slice.h"

namespace expertmesh::shard {

// How `expertmesh init` fills a new parameter: normal numbers of the model's initializer_range, ones, zeros, or the log
// of numbers spread evenly over 0.01 to 16 (decay rates).
enum class Init { kNormal, kOnes, kZeros, kLogUniform };

class Parameter {
 public:
  struct Options {
    bool is_expert = false;  // dim 0 counts experts: EP partitions it
    bool keep_fp32 = false;  // stays fp32 in memory whatever `bf16` says (A_log, dt_bias)
    // Operators form its gradient in full_grad(), over all micro-batches of a step (head, embedding).
    bool sums_full_grad = false;
    Init init = Init::kNormal;
  };

  Parameter(std::string name, std::vector<int64_t> global_shape, const Options& options);
  Parameter(std::string name, std::vector<int64_t> global_shape)
      : Parameter(std::move(name), std::move(global_shape), Options()) {}
  Parameter(const Parameter&) = delete;
  Parameter& operator=(const Parameter&) = delete;

  // The model's own name: "model.layers.3.mlp.experts.gate_up_proj".
  const std::string& name() const { return name_; }
  const std::vector<int64_t>& global_shape() const { return global_shape_; }
  int64_t global_numel() const;
  bool is_expert() const { return options_.is_expert; }
  bool keep_fp32() const { return options_.keep_fp32; }
  bool sums_full_grad() const { return options_.sums_full_grad; }
  Init init() const { return options_.init; }

  // False: no gradient is formed, no optimizer state kept.
  bool trainable() const { return trainable_; }
  void set_trainable(bool trainable) { trainable_ = trainable; }

  // --- placement: set once, before materialize(); EP before any other sharding ---
  // Keeps experts of `ep_rank` among `ep_size` equal parts of dim 0.
  void partition_experts(int ep_rank, int ep_size);
  // Splits `dim` over the group, as evenly as ceil division does: the last ranks may get less, or nothing.
  void shard(int dim, std::shared_ptr<comm::Group> group);
  // Ranks that hold the same shard: gradients are summed over this group too. May be called several times.
  void replicate_over(std::shared_ptr<comm::Group> group);

  // The part of the global tensor in the unsharded view (all of it but for EP), and in this rank's shard.
  const Box& unsharded_box() const { return unsharded_box_; }
  const Box& local_box() const { return local_box_; }
  std::vector<int64_t> unsharded_shape() const { return unsharded_box_.shape(); }
  std::vector<int64_t> local_shape() const { return local_box_.shape(); }
  int64_t local_numel() const { return local_box_.numel(); }
  // The group over which it is sharded; nullptr: whole on this rank.
  comm::Group* shard_group() const { return shard_group_.get(); }
  const std::vector<std::shared_ptr<comm::Group>>& replica_groups() const { return replica_groups_; }
  // True on exactly one rank for each element of the global tensor: that rank counts it in the norm and saves it.
  bool is_primary_replica() const;

  // --- tensors ---
  // Allocates the shard (dtype kBFloat16 or kFloat) and its unsharded leaf. Values are NaN until they are loaded.
  void materialize(at::ScalarType dtype);
  bool is_materialized() const { return local_.defined(); }
  at::ScalarType dtype() const;

  // This rank's shard, contiguous, local_shape().
  at::Tensor& local() { return local_; }
  const at::Tensor& local() const { return local_; }
  // The shard's gradient of this step in fp32, local_shape(). Valid where has_grad().
  at::Tensor& grad() { return grad_; }
  const at::Tensor& grad() const { return grad_; }
  bool has_grad() const { return has_grad_; }
  // Its memory serves the activations until the next reduction.
  void clear_grad();
  // Makes the step's gradient zero where no reduction has brought one.
  void ensure_grad();

  // The unsharded leaf (requires_grad where trainable). Programmer error while it is resharded.
  const at::Tensor& value() const;
  bool is_unsharded() const { return is_unsharded_; }

  // Where sums_full_grad(): an fp32 gradient of the unsharded tensor to add to instead of value().grad(). Zero at first
  // use in a step; Unit::reduce_full_gradients takes it from there.
  at::Tensor& full_grad();
  // The same for an operator that can write all of it: not zeroed where `is_fresh` comes back true.
  at::Tensor& full_grad_to_write(bool& is_fresh);

 private:
  friend class Unit;

  std::string name_;
  std::vector<int64_t> global_shape_;
  Options options_;
  bool trainable_ = true;

  Box unsharded_box_, local_box_;
  int shard_dim_ = -1;
  std::shared_ptr<comm::Group> shard_group_;
  int64_t rows_ = 1;           // of GatherPart: product of the dims before shard_dim_
  std::vector<int64_t> lens_;  // of GatherPart: elements a row, by group rank
  std::vector<std::shared_ptr<comm::Group>> replica_groups_;

  at::Tensor local_, grad_, full_, full_grad_;
  bool has_grad_ = false;
  bool has_full_grad_ = false;  // full_grad_ keeps its memory from step to step; reduced, grad_ is a part of it
  bool is_unsharded_ = false;
};

}  // namespace expertmesh::shard
