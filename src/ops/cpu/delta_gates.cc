// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/delta_gates.h"

#include <algorithm>

#include "ops/cpu/sigmoid.h"

namespace expertmesh::ops::cpu {
namespace {

template <typename T>
EXPERTMESH_INLINE void forward_rows(const DeltaGatesTensors<T>& tensors, DeltaGatesShape shape) {
  for (int64_t i = 0; i < shape.cols; i += kLanes) {
    const int64_t n = lanes_at(i, shape.cols);
    const Vec rate = -exp(load(tensors.A_log + i, n)), bias = load(tensors.dt_bias + i, n);
    for (int64_t row = shape.begin; row < shape.end; ++row) {
      const int64_t at = row * shape.cols + i;
      store(tensors.g + at, rate * softplus(load(tensors.a + at, n) + bias), n);
      store(tensors.beta + at, sigmoid(load(tensors.b + at, n)), n);
    }
  }
}

// At most kSumRows rows, which are a block of the sums. With x = a + dt_bias and r = -e^A_log: da = dg r sigmoid(x),
// d dt_bias += da, dA_log += dg g.
template <typename T>
EXPERTMESH_INLINE void backward_block(const DeltaGatesTensors<T>& tensors, DeltaGatesShape shape) {
  for (int64_t i = 0; i < shape.cols; i += kLanes) {
    const int64_t n = lanes_at(i, shape.cols);
    const Vec rate = -exp(load(tensors.A_log + i, n)), bias = load(tensors.dt_bias + i, n);
    Vec grad_A_log = splat(0.0F), grad_dt_bias = splat(0.0F);
    for (int64_t row = shape.begin; row < shape.end; ++row) {
      const int64_t at = row * shape.cols + i;
      const Vec step = load(tensors.a + at, n) + bias, along = load(tensors.grad_g + at, n) * rate;
      const Vec grad_a = along * sigmoid_slope(step).value;
      grad_A_log += along * softplus(step);
      grad_dt_bias += grad_a;
      store(tensors.grad_a + at, grad_a, n);
      store(tensors.grad_b + at, load(tensors.grad_beta + at, n) * sigmoid_slope(load(tensors.b + at, n)).slope, n);
    }
    store(tensors.grad_A_log.block + i, grad_A_log, n);
    store(tensors.grad_dt_bias.block + i, grad_dt_bias, n);
  }
  end_block(tensors.grad_A_log, shape.cols);
  end_block(tensors.grad_dt_bias, shape.cols);
}

template <typename T>
EXPERTMESH_INLINE void backward_rows(const DeltaGatesTensors<T>& tensors, DeltaGatesShape shape) {
  for (int64_t row = shape.begin; row < shape.end; row += kSumRows) {
    backward_block(tensors, {row, std::min(row + kSumRows, shape.end), shape.cols});
  }
}

}  // namespace

EXPERTMESH_CPU_KERNEL(void, delta_gates_forward, (const DeltaGatesTensors<float>& tensors, DeltaGatesShape shape),
                      forward_rows, (tensors, shape))
EXPERTMESH_CPU_KERNEL(void, delta_gates_forward, (const DeltaGatesTensors<Bf16>& tensors, DeltaGatesShape shape),
                      forward_rows, (tensors, shape))
EXPERTMESH_CPU_KERNEL(void, delta_gates_backward, (const DeltaGatesTensors<float>& tensors, DeltaGatesShape shape),
                      backward_rows, (tensors, shape))
EXPERTMESH_CPU_KERNEL(void, delta_gates_backward, (const DeltaGatesTensors<Bf16>& tensors, DeltaGatesShape shape),
                      backward_rows, (tensors, shape))

}  // namespace expertmesh::ops::cpu
