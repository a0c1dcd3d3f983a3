// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/sigmoid_gate.h"

#include "ops/cpu/sigmoid.h"

namespace expertmesh::ops::cpu {
namespace {

template <typename T>
EXPERTMESH_INLINE void forward_rows(const SigmoidGateTensors<T>& tensors, SigmoidGateShape shape) {
  for (int64_t row = shape.begin; row < shape.end; ++row) {
    const T *x = tensors.x + row * shape.x_stride, *gate = tensors.gate + row * shape.gate_stride;
    T* y = tensors.y + row * shape.cols;
    const Vec of_row = shape.is_gate_of_row ? splat(sigmoid(load(gate, 1))[0]) : Vec{};
    for (int64_t i = 0; i < shape.cols; i += kLanes) {
      const int64_t n = lanes_at(i, shape.cols);
      store(y + i, load(x + i, n) * (shape.is_gate_of_row ? of_row : sigmoid(load(gate + i, n))), n);
    }
  }
}

template <typename T>
EXPERTMESH_INLINE void backward_of_elements(const SigmoidGateTensors<T>& tensors, SigmoidGateShape shape, int64_t row) {
  const T *x = tensors.x + row * shape.x_stride, *gate = tensors.gate + row * shape.gate_stride;
  for (int64_t i = 0; i < shape.cols; i += kLanes) {
    const int64_t n = lanes_at(i, shape.cols), at = row * shape.cols + i;
    const Vec grad = load(tensors.grad_y + at, n);
    const SigmoidSlope s = sigmoid_slope(load(gate + i, n));
    store(tensors.grad_x + at, grad * s.value, n);
    store(tensors.grad_gate + at, grad * load(x + i, n) * s.slope, n);
  }
}

template <typename T>
EXPERTMESH_INLINE void backward_of_row(const SigmoidGateTensors<T>& tensors, SigmoidGateShape shape, int64_t row) {
  const T* x = tensors.x + row * shape.x_stride;
  const SigmoidSlope s = sigmoid_slope(load(tensors.gate + row * shape.gate_stride, 1));
  const Vec value = splat(s.value[0]);
  Vec dots = splat(0.0F);
  for (int64_t i = 0; i < shape.cols; i += kLanes) {
    const int64_t n = lanes_at(i, shape.cols), at = row * shape.cols + i;
    const Vec grad = load(tensors.grad_y + at, n);
    dots += grad * load(x + i, n);
    store(tensors.grad_x + at, grad * value, n);
  }
  store(tensors.grad_gate + row, splat(sum(dots)) * s.slope, 1);
}

template <typename T>
EXPERTMESH_INLINE void backward_rows(const SigmoidGateTensors<T>& tensors, SigmoidGateShape shape) {
  for (int64_t row = shape.begin; row < shape.end; ++row) {
    if (shape.is_gate_of_row) {
      backward_of_row(tensors, shape, row);
    } else {
      backward_of_elements(tensors, shape, row);
    }
  }
}

}  // namespace

EXPERTMESH_CPU_KERNEL(void, sigmoid_gate_forward, (const SigmoidGateTensors<float>& tensors, SigmoidGateShape shape),
                      forward_rows, (tensors, shape))
EXPERTMESH_CPU_KERNEL(void, sigmoid_gate_forward, (const SigmoidGateTensors<Bf16>& tensors, SigmoidGateShape shape),
                      forward_rows, (tensors, shape))
EXPERTMESH_CPU_KERNEL(void, sigmoid_gate_backward, (const SigmoidGateTensors<float>& tensors, SigmoidGateShape shape),
                      backward_rows, (tensors, shape))
EXPERTMESH_CPU_KERNEL(void, sigmoid_gate_backward, (const SigmoidGateTensors<Bf16>& tensors, SigmoidGateShape shape),
                      backward_rows, (tensors, shape))

}  // namespace expertmesh::ops::cpu
