// SPDX-License-Identifier: Apache-2.0
#include "shard/unit.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/trace.h"
#include "ops/new_tensor.h"

namespace expertmesh::shard {
namespace {

// What this micro-batch left as the parameter's full gradient; zeros where nothing did.
at::Tensor take_full_gradient(const Parameter& parameter, at::Tensor& full) {
  const at::Tensor from_autograd = std::exchange(full.mutable_grad(), {});
  if (from_autograd.defined()) return from_autograd.contiguous();
  return at::zeros(parameter.unsharded_shape(), at::TensorOptions().dtype(parameter.dtype()));
}

// A gather starts from NaN where tests ask for it: bytes of ones are one in any float type.
void poison_where_asked(const at::DataPtr& buffer, size_t bytes) {
  if (ops::poisons_new_memory() && bytes > 0) std::memset(buffer.get(), 0xff, bytes);
}

at::DataPtr new_buffer(size_t bytes) {
  at::DataPtr buffer = c10::GetCPUAllocator()->allocate(bytes);
  poison_where_asked(buffer, bytes);
  return buffer;
}

}  // namespace

comm::DType comm_dtype(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return comm::DType::kF32;
    case at::kBFloat16:
      return comm::DType::kBF16;
    case at::kDouble:
      return comm::DType::kF64;
    case at::kLong:
      return comm::DType::kI64;
    default:
      EXPERTMESH_CHECK(false, "no collective for {}", c10::toString(type));
  }
}

at::DataPtr BufferPool::take(size_t bytes) {
  auto& buffers = free_[bytes];
  if (buffers.empty()) return new_buffer(bytes);
  at::DataPtr buffer = std::move(buffers.back());
  buffers.pop_back();
  poison_where_asked(buffer, bytes);
  return buffer;
}

void BufferPool::give(size_t bytes, at::DataPtr buffer) { free_[bytes].push_back(std::move(buffer)); }

Unit::Unit(std::string name, std::vector<Parameter*> parameters, GatherMode mode, BufferPool* pool)
    : name_(std::move(name)), parameters_(std::move(parameters)), mode_(mode), pool_(pool) {
  for (Parameter* parameter : parameters_) {
    if (parameter->shard_group() == nullptr) continue;
    EXPERTMESH_CHECK(group_ == nullptr || group_ == parameter->shard_group(), "{}: two shard groups", name_);
    group_ = parameter->shard_group();
    sharded_.push_back(parameter);
  }
  if (sharded_.empty()) state_ = State::kUnsharded;
}

Unit::~Unit() = default;

void Unit::unshard() {
  if (state_ != State::kSharded) return;
  const base::PostingLane lane(base::Lane::kFsdp);
  for (Parameter* parameter : sharded_) {
    const size_t bytes = parameter->full_.numel() * parameter->full_.element_size();
    auto* storage = parameter->full_.storage().unsafeGetStorageImpl();
    storage->set_data_ptr_noswap(pool_ != nullptr ? pool_->take(bytes) : new_buffer(bytes));
    storage->set_nbytes(bytes);
  }
  if (mode_ == GatherMode::kFlat) {
    gather_ = std::make_unique<FlatGather>(*group_, gather_parts(), name_);
  } else {
    work_ = group_->all_gather_async(gather_parts(), name_);
  }
  state_ = State::kPosted;
}

std::vector<comm::GatherPart> Unit::gather_parts() const {
  std::vector<comm::GatherPart> parts;
  for (Parameter* parameter : sharded_) {
    parts.push_back({.local = parameter->local_.const_data_ptr(),
                     .full = parameter->full_.mutable_data_ptr(),
                     .rows = parameter->rows_,
                     .lens = parameter->lens_,
                     .dtype = comm_dtype(parameter->dtype())});
  }
  return parts;
}

void Unit::wait() {
  unshard();
  if (state_ != State::kPosted) return;
  if (gather_ != nullptr) {
    gather_->finish();
    gather_.reset();
  } else {
    work_->wait();
    work_.reset();
  }
  for (Parameter* parameter : sharded_) parameter->is_unsharded_ = true;
  state_ = State::kUnsharded;
}

void Unit::reshard() {
  if (sharded_.empty() || state_ == State::kSharded) return;
  wait();
  for (Parameter* parameter : sharded_) {
    auto* storage = parameter->full_.storage().unsafeGetStorageImpl();
    const size_t bytes = storage->nbytes();
    at::DataPtr buffer = storage->set_data_ptr(at::DataPtr());
    if (pool_ != nullptr) pool_->give(bytes, std::move(buffer));
    storage->set_nbytes(0);
    parameter->is_unsharded_ = false;
  }
  state_ = State::kSharded;
}

// Whole on this rank: full_grad() wrote into grad() itself; what autograd left is added.
void Unit::keep_unsharded_gradient(Parameter& parameter) {
  const at::Tensor gradient = std::exchange(parameter.full_.mutable_grad(), {});
  if (!gradient.defined()) return;
  if (parameter.has_grad_) {
    parameter.grad_.add_(gradient);
    return;
  }
  if (!parameter.grad_.defined())
    parameter.grad_ = at::empty(parameter.local_shape(), at::TensorOptions().dtype(at::kFloat));
  parameter.grad_.copy_(gradient);
  parameter.has_grad_ = true;
}

void Unit::reduce_gradients() {
  const base::Span span("gradients into shards");
  const base::PostingLane lane(base::Lane::kFsdp);
  std::vector<at::Tensor> gradients;  // alive until the reduction is done
  std::vector<comm::ReducePart> parts;
  std::vector<Parameter*> reduced;
  for (Parameter* parameter : parameters_) {
    if (!parameter->trainable()) continue;
    if (parameter->sums_full_grad()) {
      EXPERTMESH_CHECK(!parameter->full_.grad().defined(), "{}", parameter->name());
      continue;
    }
    if (parameter->shard_group() == nullptr) {
      keep_unsharded_gradient(*parameter);
      continue;
    }
    if (!parameter->grad_.defined()) {
      parameter->grad_ = at::empty(parameter->local_shape(), at::TensorOptions().dtype(at::kFloat));
    }
    gradients.push_back(take_full_gradient(*parameter, parameter->full_));
    parts.push_back({.full = gradients.back().const_data_ptr(),
                     .local = parameter->grad_.mutable_data_ptr<float>(),
                     .rows = parameter->rows_,
                     .lens = parameter->lens_,
                     .dtype = comm_dtype(gradients.back().scalar_type()),
                     .accumulate = parameter->has_grad_});
    reduced.push_back(parameter);
  }
  reduce(std::move(parts));
  for (Parameter* parameter : reduced) parameter->has_grad_ = true;
}

void Unit::reduce_full_gradients() {
  std::vector<comm::ReducePart> parts;
  for (Parameter* parameter : sharded_) {
    if (!parameter->trainable() || !parameter->sums_full_grad()) continue;
    EXPERTMESH_CHECK(parameter->rows_ == 1, "{} is sharded along dim {}", parameter->name(), parameter->shard_dim_);
    const at::Tensor& full = parameter->full_grad();
    const auto me = parameter->lens_.begin() + group_->rank();
    const int64_t begin = std::accumulate(parameter->lens_.begin(), me, int64_t{0});
    parameter->grad_ = full.view({-1}).narrow(0, begin, *me).view(parameter->local_shape());
    parts.push_back({.full = full.const_data_ptr(),
                     .local = parameter->grad_.mutable_data_ptr<float>(),
                     .rows = 1,
                     .lens = parameter->lens_,
                     .dtype = comm::DType::kF32});
    parameter->has_grad_ = true;
  }
  reduce(std::move(parts));
}

void Unit::reduce(std::vector<comm::ReducePart> parts) {
  if (parts.empty()) return;
  if (mode_ == GatherMode::kFlat) {
    flat_reduce_scatter(*group_, parts, name_);
  } else {
    group_->reduce_scatter(std::move(parts), name_);
  }
}

void finish_reductions(const std::vector<Parameter*>& parameters) {
  // One collective a replica group, in order of first appearance: the same on all its ranks.
  std::vector<std::pair<comm::Group*, std::vector<comm::AllReducePart>>> groups;
  for (Parameter* parameter : parameters) {
    if (!parameter->trainable()) continue;
    parameter->ensure_grad();
    for (const auto& group : parameter->replica_groups()) {
      auto found = std::find_if(groups.begin(), groups.end(), [&](const auto& g) { return g.first == group.get(); });
      if (found == groups.end()) found = groups.insert(groups.end(), {group.get(), {}});
      found->second.push_back({parameter->grad().mutable_data_ptr(), parameter->local_numel(), comm::DType::kF32});
    }
  }
  const base::PostingLane lane(base::Lane::kFsdp);
  for (auto& [group, parts] : groups) group->all_reduce(std::move(parts), comm::ReduceOp::kSum, "replica gradients");
}

}  // namespace expertmesh::shard
