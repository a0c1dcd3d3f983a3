// SPDX-License-Identifier: Apache-2.0
// The two autograd calls of a training step, behind a light header: a layer's own graph is run back from a gradient.
#pragma once

#include <ATen/core/Tensor.h>

namespace expertmesh::ops {

// A leaf with hidden's values that collects a gradient.
at::Tensor make_graph_input(const at::Tensor& hidden);

// Runs the graph of `output` back; gradients land in the leaves' grad(). The graph is freed.
void run_backward(const at::Tensor& output, const at::Tensor& grad_output);
// The same where a second gradient enters at `inner`, a tensor of the same graph.
void run_backward(const at::Tensor& output, const at::Tensor& grad_output, const at::Tensor& inner,
                  const at::Tensor& grad_inner);

}  // namespace expertmesh::ops
