// SPDX-License-Identifier: Apache-2.0
#include "model/common/layers.h"

#include "ops/product.h"

namespace expertmesh::model {

Linear::Linear(std::string path, int64_t in, int64_t out, bool has_bias)
    : Module(std::move(path)),
      weight_(add_parameter("weight", {out, in})),
      bias_(has_bias ? &add_parameter("bias", {out}, {.init = shard::Init::kZeros}) : nullptr) {}

at::Tensor Linear::forward(const at::Tensor& x) const {
  enter();
  return ops::linear(x, weight_.value(), bias_ == nullptr ? at::Tensor() : bias_->value());
}

RmsNorm::RmsNorm(std::string path, int64_t size, const NormOptions& options)
    : Module(std::move(path)),
      weight_(add_parameter("weight", {size},
                            {.init = options.weight_offset == 1.0 ? shard::Init::kZeros : shard::Init::kOnes})),
      options_(options) {}

at::Tensor RmsNorm::forward(const at::Tensor& x, const ops::Operators& ops) const {
  enter();
  return ops.rms_norm(x, weight_.value(), options_.eps, options_.weight_offset);
}

}  // namespace expertmesh::model
