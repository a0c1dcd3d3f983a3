// SPDX-License-Identifier: Apache-2.0
#include "shard/parameter.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <limits>
#include <utility>

#include "base/check.h"
#include "ops/new_tensor.h"

namespace expertmesh::shard {
namespace {

int64_t product(const std::vector<int64_t>& shape, size_t begin, size_t end) {
  int64_t numel = 1;
  for (size_t i = begin; i < end; ++i) numel *= shape[i];
  return numel;
}

}  // namespace

Parameter::Parameter(std::string name, std::vector<int64_t> global_shape, const Options& options)
    : name_(std::move(name)),
      global_shape_(std::move(global_shape)),
      options_(options),
      unsharded_box_(Box::whole(global_shape_)),
      local_box_(unsharded_box_) {}

int64_t Parameter::global_numel() const { return product(global_shape_, 0, global_shape_.size()); }

void Parameter::partition_experts(int ep_rank, int ep_size) {
  EXPERTMESH_CHECK(is_expert() && shard_dim_ < 0 && !is_materialized(), "{}", name_);
  EXPERTMESH_CHECK(global_shape_[0] % ep_size == 0, "{}: {} experts over {} ranks", name_, global_shape_[0], ep_size);
  unsharded_box_.narrow(0, ep_size, ep_rank);
  local_box_ = unsharded_box_;
}

void Parameter::shard(int dim, std::shared_ptr<comm::Group> group) {
  EXPERTMESH_CHECK(shard_dim_ < 0 && !is_materialized(), "{} is sharded already", name_);
  if (group->size() == 1) return;
  shard_dim_ = dim;
  shard_group_ = std::move(group);
  local_box_.narrow(dim, shard_group_->size(), shard_group_->rank());
  const std::vector<int64_t> shape = unsharded_shape();
  rows_ = product(shape, 0, dim);
  const int64_t inner = product(shape, dim + 1, shape.size());
  for (int rank = 0; rank < shard_group_->size(); ++rank) {
    lens_.push_back(chunk_range(shape[dim], shard_group_->size(), rank).size() * inner);
  }
}

void Parameter::replicate_over(std::shared_ptr<comm::Group> group) {
  if (group->size() > 1) replica_groups_.push_back(std::move(group));
}

bool Parameter::is_primary_replica() const {
  for (const auto& group : replica_groups_) {
    if (group->rank() != 0) return false;
  }
  return true;
}

void Parameter::materialize(at::ScalarType dtype) {
  EXPERTMESH_CHECK(!is_materialized(), "{}", name_);
  local_ = at::full(local_shape(), std::numeric_limits<double>::quiet_NaN(), at::TensorOptions().dtype(dtype));
  if (shard_group_ == nullptr) {
    full_ = local_.detach();
    is_unsharded_ = true;
  } else {
    full_ = at::empty(unsharded_shape(), at::TensorOptions().dtype(dtype));
    full_.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(at::DataPtr());
    full_.storage().unsafeGetStorageImpl()->set_nbytes(0);
  }
  full_.set_requires_grad(trainable_);
}

at::ScalarType Parameter::dtype() const { return local_.scalar_type(); }

const at::Tensor& Parameter::value() const {
  EXPERTMESH_CHECK(is_unsharded_, "{} is not gathered", name_);
  return full_;
}

void Parameter::clear_grad() {
  has_grad_ = has_full_grad_ = false;
  grad_.reset();
}

void Parameter::ensure_grad() {
  if (has_grad_) return;
  grad_ = at::zeros(local_shape(), at::TensorOptions().dtype(at::kFloat));
  has_grad_ = true;
}

at::Tensor& Parameter::full_grad_to_write(bool& is_fresh) {
  EXPERTMESH_CHECK(options_.sums_full_grad && (shard_group_ == nullptr || !has_grad_), "{}", name_);
  // Whole on this rank: the step's gradient itself.
  at::Tensor& grad = shard_group_ == nullptr ? grad_ : full_grad_;
  bool& has = shard_group_ == nullptr ? has_grad_ : has_full_grad_;
  if (!grad.defined()) grad = ops::new_tensor(unsharded_shape(), at::kFloat);
  is_fresh = !std::exchange(has, true);
  return grad;
}

at::Tensor& Parameter::full_grad() {
  bool is_fresh = false;
  at::Tensor& grad = full_grad_to_write(is_fresh);
  if (is_fresh) grad.zero_();
  return grad;
}

}  // namespace expertmesh::shard
