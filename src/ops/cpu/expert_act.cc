// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/expert_act.h"

#include "ops/cpu/sigmoid.h"

namespace expertmesh::ops::cpu {
namespace {

EXPERTMESH_INLINE Vec rounded(const float* /*type*/, Vec v) { return v; }
EXPERTMESH_INLINE Vec rounded(const Bf16* /*type*/, Vec v) {
  Bf16 lanes[kLanes];
  store(lanes, v);
  return load(lanes);
}

template <typename T>
EXPERTMESH_INLINE float backward_row(const ExpertActBackward<T>& args, int64_t row, float weight) {
  const T* gate = args.gate_up + row * 2 * args.width;
  const T* grad_act = args.grad_act + row * args.width;
  Vec dot{};
  for (int64_t i = 0; i < args.width; i += kLanes) {
    const int64_t n = lanes_at(i, args.width);
    const Vec g = load(gate + i, n), u = load(gate + args.width + i, n), d = load(grad_act + i, n);
    const Vec s = sigmoid(g);
    const Vec silu = g * s;
    const Vec act = silu * u;
    dot += d * rounded(gate, act);
    if (args.weighted_act) store(args.weighted_act + row * args.width + i, act * weight, n);
    if (args.grad_gate_up) {
      T* out = args.grad_gate_up + row * 2 * args.width + i;
      const Vec scaled = d * weight;
      store(out, scaled * u * (s + silu * (1.0F - s)), n);
      store(out + args.width, scaled * silu, n);
    }
  }
  return sum(dot);
}

template <typename T>
EXPERTMESH_INLINE void backward(const ExpertActBackward<T>& args) {
  for (int64_t row = 0; row < args.rows; ++row) {
    const int64_t weight_row = args.weight_rows[row];
    const float dot = backward_row(args, row, args.weights[weight_row]);
    if (args.grad_weights) args.grad_weights[weight_row] = dot;
  }
}

// As bf16, in the lower halves.
EXPERTMESH_INLINE UintVec rounded_bits(Vec v) {
  uint16_t lanes[kLanes];
  store(reinterpret_cast<Bf16*>(lanes), v);
  return load_bits(lanes, kLanes);
}

EXPERTMESH_INLINE UintVec swiglu_bits(const SwigluColumns& args, int64_t row, int64_t column, int64_t n) {
  const Vec g = load(args.gate + row * args.stride + column, n), u = load(args.up + row * args.stride + column, n);
  return rounded_bits(g * (1.0F / (1.0F + exp(-g))) * u);
}

EXPERTMESH_INLINE void columns_forward(const SwigluColumns& args) {
  for (int64_t column = 0; column < args.columns; column += kLanes) {
    const int64_t n = lanes_at(column, args.columns);
    uint32_t* to = args.act + column / kLanes * args.act_block;
    for (int64_t row = 0; row < args.rows; row += 2, to += kLanes) {
      UintVec pairs = swiglu_bits(args, row, column, n);
      if (row + 1 < args.rows) pairs |= swiglu_bits(args, row + 1, column, n) << 16;
      std::memcpy(to, &pairs, sizeof pairs);
    }
  }
}

}  // namespace

EXPERTMESH_CPU_KERNEL(void, swiglu_columns, (const SwigluColumns& args), columns_forward, (args))
EXPERTMESH_CPU_KERNEL(void, expert_act_backward, (const ExpertActBackward<float>& args), backward, (args))
EXPERTMESH_CPU_KERNEL(void, expert_act_backward, (const ExpertActBackward<Bf16>& args), backward, (args))

}  // namespace expertmesh::ops::cpu
