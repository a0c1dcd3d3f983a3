// SPDX-License-Identifier: Apache-2.0
#include "ops/local_graph.h"

#include <torch/csrc/autograd/autograd.h>

namespace expertmesh::ops {

at::Tensor make_graph_input(const at::Tensor& hidden) { return hidden.detach().set_requires_grad(true); }

void run_backward(const at::Tensor& output, const at::Tensor& grad_output) {
  torch::autograd::backward({output}, {grad_output});
}

void run_backward(const at::Tensor& output, const at::Tensor& grad_output, const at::Tensor& inner,
                  const at::Tensor& grad_inner) {
  torch::autograd::backward({output, inner}, {grad_output, grad_inner});
}

}  // namespace expertmesh::ops
