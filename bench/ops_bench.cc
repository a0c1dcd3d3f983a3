// SPDX-License-Identifier: Apache-2.0
// Native operators against the reference ones at the sizes of the bench preset (2048 tokens, hidden 512, 8 query and 2
// key/value heads of 64, vocabulary 151,936), bf16, forward and backward. Then what decoding does, in GB/s of caches or
// weights that are read, beside a plain read of the same memory. Threads: OMP_NUM_THREADS.
//   ops_bench --benchmark_enable_random_interleaving=true --benchmark_repetitions=5
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/zeros.h>
#include <benchmark/benchmark.h>
#include <malloc.h>
#include <torch/csrc/autograd/autograd.h>
#include <xmmintrin.h>

#include <cstring>
#include <fstream>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/freed_memory.h"
#include "ops/cpu/adamw.h"
#include "ops/cpu/vec.h"
#include "ops/embedding_rows.h"
#include "ops/operators.h"
#include "ops/product.h"
#include "ops/raw.h"

namespace expertmesh::ops {
namespace {

constexpr int64_t kTokens = 2048, kHidden = 512, kHeads = 8, kKvHeads = 2, kHeadDim = 64, kWidth = 1024;

at::Tensor random(at::IntArrayRef shape) { return at::randn(shape).to(at::kBFloat16).set_requires_grad(true); }

// One forward and backward an iteration; gradients are dropped, as after an optimizer step.
void run_graph(benchmark::State& state, const std::vector<at::Tensor>& leaves, const std::function<at::Tensor()>& op) {
  at::Tensor grad;
  for (auto _ : state) {
    const at::Tensor out = op();
    if (!grad.defined()) grad = at::ones_like(out);
    torch::autograd::backward({out}, {grad});
    for (const at::Tensor& leaf : leaves) leaf.mutable_grad().reset();
  }
}

// kTokens tokens as documents of one length.
std::vector<int64_t> documents_of(int64_t length) {
  std::vector<int64_t> cu;
  for (int64_t end = 0; end <= kTokens; end += length) cu.push_back(end);
  return cu;
}

void rms_norm(benchmark::State& state, const Operators& ops) {
  const at::Tensor x = random({kTokens, kHidden}), weight = random({kHidden});
  run_graph(state, {x, weight}, [&] { return ops.rms_norm(x, weight, 1e-6, 0.0); });
}

void head_norm(benchmark::State& state, const Operators& ops) {
  const at::Tensor x = random({kTokens, kHeads, kHeadDim}), weight = random({kHeadDim});
  run_graph(state, {x, weight}, [&] { return ops.rms_norm(x, weight, 1e-6, 0.0); });
}

void gated_norm(benchmark::State& state, const Operators& ops) {
  const at::Tensor x = random({kTokens, kHeads, kHeadDim}), gate = random({kTokens, kHeads, kHeadDim}),
                   weight = random({kHeadDim});
  run_graph(state, {x, gate, weight}, [&] { return ops.gated_rms_norm(x, gate, weight, 1e-6); });
}

// The argument is the length of a document.
void causal_conv(benchmark::State& state, const Operators& ops) {
  const std::vector<int64_t> cu = documents_of(state.range(0));
  const at::Tensor x = random({kTokens, 2 * kWidth}), weight = random({2 * kWidth, 4});
  run_graph(state, {x, weight}, [&] {
    return ops.causal_conv1d_silu({.x_TC = x, .weight_CW = weight, .cu_seqlens = cu, .initial_state_BCW = {}}).out_TC;
  });
}

void rope(benchmark::State& state, const Operators& ops) {
  const at::Tensor x = random({kTokens, kHeads, kHeadDim}), positions = at::arange(kTokens, at::kLong);
  const at::Tensor cos = at::randn({kTokens, kHeadDim / 2}), sin = at::randn({kTokens, kHeadDim / 2});
  run_graph(state, {x}, [&] { return ops.rope(x, positions, cos, sin); });
}

void swiglu(benchmark::State& state, const Operators& ops) {
  const at::Tensor gate = random({kTokens, kWidth}), up = random({kTokens, kWidth});
  run_graph(state, {gate, up}, [&] { return ops.swiglu(gate, up); });
}

// The gate is the second half of a fused projection.
void sigmoid_gate(benchmark::State& state, const Operators& ops) {
  const at::Tensor x = random({kTokens, kHeads, kHeadDim}), both = random({kTokens, kHeads, 2 * kHeadDim});
  run_graph(state, {x, both}, [&] { return ops.sigmoid_gate(x, both.narrow(2, kHeadDim, kHeadDim)); });
}

void shared_expert_gate(benchmark::State& state, const Operators& ops) {
  const at::Tensor x = random({kTokens, kHidden}), gate = random({kTokens, 1});
  run_graph(state, {x, gate}, [&] { return ops.sigmoid_gate(x, gate); });
}

void delta_gates(benchmark::State& state, const Operators& ops) {
  const int64_t heads = 32;
  const at::Tensor a = random({kTokens, heads}), b = random({kTokens, heads});
  const at::Tensor A_log = at::randn({heads}).set_requires_grad(true),
                   bias = at::randn({heads}).set_requires_grad(true);
  run_graph(state, {a, b, A_log, bias}, [&] {
    const DeltaGates gates = ops.delta_gates(a, b, A_log, bias);
    return gates.g_TV + gates.beta_TV;
  });
}

// The argument is the length of a document.
void attention(benchmark::State& state, const Operators& ops) {
  const std::vector<int64_t> cu = documents_of(state.range(0));
  const at::Tensor q = random({kTokens, kHeads, kHeadDim}), k = random({kTokens, kKvHeads, kHeadDim}),
                   v = random({kTokens, kKvHeads, kHeadDim});
  run_graph(state, {q, k, v}, [&] { return ops.attention(q, k, v, cu, 0.125); });
}

// kTokens tokens as documents of unlike lengths (0), of one length (1), or one document (2).
std::vector<int64_t> lengths_of(int64_t kind) {
  if (kind == 0) return {1024, 512, 256, 128, 64, 64};
  return std::vector<int64_t>(kind == 1 ? 4 : 1, kind == 1 ? kTokens / 4 : kTokens);
}

// Heads of 128, 32 of queries and 4 of keys and values, by document.
void documents(benchmark::State& state) {
  std::vector<int64_t> cu = {0};
  for (const int64_t length : lengths_of(state.range(0))) cu.push_back(cu.back() + length);
  const at::Tensor q = random({kTokens, 32, 128}), k = random({kTokens, 4, 128}), v = random({kTokens, 4, 128});
  run_graph(state, {q, k, v}, [&] { return native_operators().attention(q, k, v, cu, 0.0884); });
}

// The same documents as ATen takes them, each padded to the longest. Causal attention needs no mask for padding that
// comes last.
void documents_padded(benchmark::State& state) {
  const std::vector<int64_t> lengths = lengths_of(state.range(0));
  const auto count = static_cast<int64_t>(lengths.size());
  const at::Tensor q = random({count, 32, lengths[0], 128}), k = random({count, 4, lengths[0], 128}),
                   v = random({count, 4, lengths[0], 128});
  run_graph(state, {q, k, v}, [&] {
    return at::scaled_dot_product_attention(q, k, v, {}, 0.0, /*is_causal=*/true, 0.0884, /*enable_gqa=*/true);
  });
}

// ATen's on one document after the other.
void documents_loop(benchmark::State& state) {
  const std::vector<int64_t> lengths = lengths_of(state.range(0));
  const at::Tensor q = random({1, 32, kTokens, 128}), k = random({1, 4, kTokens, 128}),
                   v = random({1, 4, kTokens, 128});
  run_graph(state, {q, k, v}, [&] {
    std::vector<at::Tensor> outs;
    int64_t begin = 0;
    for (const int64_t length : lengths) {
      const auto part = [&](const at::Tensor& x) { return x.narrow(2, begin, length); };
      outs.push_back(at::scaled_dot_product_attention(part(q), part(k), part(v), {}, 0.0, /*is_causal=*/true, 0.0884,
                                                      /*enable_gqa=*/true));
      begin += length;
    }
    return outs.size() == 1 ? outs[0] : at::cat(outs, 2);
  });
}

// A layer of Qwen3.5: 16 key heads and 32 value heads of 128, one document. The argument is its length.
void gated_delta_rule(benchmark::State& state, const Operators& ops) {
  const int64_t tokens = state.range(0), key_heads = 16, value_heads = 32, dim = 128;
  const std::vector<int64_t> cu = {0, tokens};
  const at::Tensor q = random({tokens, key_heads, dim}), k = random({tokens, key_heads, dim}),
                   v = random({tokens, value_heads, dim});
  const at::Tensor g = (at::rand({tokens, value_heads}) * -0.1).set_requires_grad(true);
  const at::Tensor beta = at::rand({tokens, value_heads}).set_requires_grad(true);
  run_graph(state, {q, k, v, g, beta}, [&] {
    return ops
        .gated_delta_rule({.q_TKD = q,
                           .k_TKD = k,
                           .v_TVE = v,
                           .g_TV = g,
                           .beta_TV = beta,
                           .cu_seqlens = cu,
                           .initial_state_BVDE = {}})
        .out_TVE;
  });
}

// Peak of resident memory since the last reset, in MiB.
void reset_peak() { std::ofstream("/proc/self/clear_refs") << "5"; }
double peak_mib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return static_cast<double>(std::stoll(line.substr(6))) / 1024;
  }
  return 0;
}

// Arguments: the vocabulary and the hidden size. MiB: memory beyond weight, its gradient and hidden states.
void linear_cross_entropy(benchmark::State& state, const Operators& ops) {
  const int64_t vocab = state.range(0), hidden = state.range(1);
  CrossEntropyInput input{.hidden_TH = random({kTokens, hidden}),
                          .weight_VH = random({vocab, hidden}),
                          .targets_T = at::randint(0, vocab, {kTokens}, at::kLong),
                          .weights_T = {},
                          .scale = 1.0 / kTokens,
                          .needs_grad_hidden = true,
                          .grad_weight_VH = at::zeros({vocab, hidden}),
                          .overwrites_grad_weight = true};
  malloc_trim(0);
  reset_peak();
  const double before = peak_mib();
  for (auto _ : state) benchmark::DoNotOptimize(ops.linear_cross_entropy(input).loss);
  state.counters["MiB"] = peak_mib() - before;
  const double products = 6.0 * kTokens * static_cast<double>(vocab) * static_cast<double>(hidden);
  state.counters["GF/s"] =
      benchmark::Counter(products * 1e-9 * static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
}

// The gradient of an embedding's table: 2048 tokens into its rows. Argument: the hidden size.
void embedding_gradient(benchmark::State& state) {
  const int64_t vocab = 151936, hidden = state.range(0);
  const at::Tensor rows = random({kTokens, hidden}).detach(), ids = at::randint(0, vocab, {kTokens}, at::kLong);
  const at::Tensor sum = at::zeros({vocab, hidden});
  for (auto _ : state) add_to_rows(sum, ids, rows);
}

constexpr int64_t kStateElements = 32 << 20;

template <typename Body>
void over_elements(const Body& body) {
  at::parallel_for(0, kStateElements, 1 << 15, [&](int64_t begin, int64_t end) { body(begin, end - begin); });
}

void count_bytes(benchmark::State& state, double bytes_per_element) {
  state.counters["GB/s"] = benchmark::Counter(
      1e-9 * bytes_per_element * kStateElements * static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
}

// Bytes read and written by a plain copy of as much memory; with stores past the caches (1) or as the C library does it
// (0).
void copy_memory(benchmark::State& state) {
  const at::Tensor from = at::ones({kStateElements}), to = at::ones({kStateElements});
  const float* source = raw<float>(from);
  float* target = mutable_raw<float>(to);
  for (auto _ : state) {
    over_elements([&](int64_t begin, int64_t size) {
      if (state.range(0) == 0) {
        std::memcpy(target + begin, source + begin, static_cast<size_t>(size) * sizeof(float));
      } else {
        for (int64_t i = begin; i < begin + size; i += 4) _mm_stream_ps(target + i, _mm_loadu_ps(source + i));
        _mm_sfence();
      }
    });
  }
  count_bytes(state, 8);
}

// The three storages of a weight (adamw.h): read are weight, states and gradient, written weight and states.
void adamw_master(benchmark::State& state) {
  std::vector<cpu::Bf16> w(kStateElements, {0});
  std::vector<uint16_t> low(kStateElements, 0);
  std::vector<float> grad(kStateElements, 0.1F), m(kStateElements, 0.0F), v(kStateElements, 0.0F);
  for (auto _ : state) {
    over_elements([&](int64_t i, int64_t n) { cpu::adamw({}, &w[i], &low[i], &grad[i], &m[i], &v[i], n); });
  }
  count_bytes(state, 28);
}

void adamw_bf16(benchmark::State& state) {
  std::vector<cpu::Bf16> w(kStateElements, {0}), m(kStateElements, {0}), v(kStateElements, {0});
  std::vector<float> grad(kStateElements, 0.1F);
  for (auto _ : state) {
    over_elements([&](int64_t i, int64_t n) { cpu::adamw({}, &w[i], &grad[i], &m[i], &v[i], n); });
  }
  count_bytes(state, 16);
}

void adamw_fp32(benchmark::State& state) {
  std::vector<float> w(kStateElements, 0.0F), grad(kStateElements, 0.1F), m = w, v = w;
  for (auto _ : state) {
    over_elements([&](int64_t i, int64_t n) { cpu::adamw({}, &w[i], &grad[i], &m[i], &v[i], n); });
  }
  count_bytes(state, 28);
}

// What the gradient norm sums up, and a plain read of the same.
void sum_of_squares(benchmark::State& state) {
  const at::Tensor grad = at::ones({kStateElements});
  for (auto _ : state) {
    over_elements(
        [&](int64_t i, int64_t n) { benchmark::DoNotOptimize(cpu::sum_of_squares(raw<float>(grad) + i, n)); });
  }
  count_bytes(state, 4);
}

// Tensors that are read in turn, as the layers of a model are: together too large for any cache.
class Layers {
 public:
  Layers(at::IntArrayRef shape, at::ScalarType dtype) {
    constexpr int64_t kBytes = int64_t{256} << 20;
    do {
      tensors_.push_back(at::randn(shape).to(dtype));
    } while (static_cast<int64_t>(tensors_.size() * tensors_.front().nbytes()) < kBytes);
  }

  const at::Tensor& next() { return tensors_[next_++ % tensors_.size()]; }

  void count(benchmark::State& state) const {
    state.counters["GB/s"] = benchmark::Counter(
        1e-9 * static_cast<double>(tensors_.front().nbytes()) * static_cast<double>(state.iterations()),
        benchmark::Counter::kIsRate);
  }

 private:
  std::vector<at::Tensor> tensors_;
  size_t next_ = 0;
};

// With its own prefetch, without which one thread reads at less than half of that.
void read(benchmark::State& state, Layers& layers) {
  constexpr int64_t kAhead = 4096;  // bytes
  for (auto _ : state) {
    const at::Tensor& tensor = layers.next();
    const auto lines = static_cast<int64_t>(tensor.nbytes() / sizeof(cpu::UintVec));
    at::parallel_for(0, lines, 1024, [&](int64_t begin, int64_t end) {
      const char* p = raw<char>(tensor) + begin * static_cast<int64_t>(sizeof(cpu::UintVec));
      cpu::UintVec sum{};
      for (int64_t i = begin; i < end; ++i, p += sizeof sum) {
        cpu::UintVec line;
        std::memcpy(&line, p, sizeof line);
        __builtin_prefetch(p + kAhead);
        sum ^= line;
      }
      benchmark::DoNotOptimize(sum);
    });
  }
  layers.count(state);
}

// One new token of each of B documents against L cached ones, 32 query and 4 key/value heads of 128. Arguments: L, B.
Layers make_caches(const benchmark::State& state, at::ScalarType dtype) {
  return {{state.range(1), 2, 4, state.range(0), 128}, dtype};
}

void cached_attention(benchmark::State& state, at::ScalarType dtype) {
  Layers caches = make_caches(state, dtype);
  const int64_t length = state.range(0), documents = state.range(1);
  const at::Tensor q = at::randn({documents, 32, 128}).to(dtype);
  std::vector<int64_t> cu = {0};
  while (static_cast<int64_t>(cu.size()) <= documents) cu.push_back(cu.back() + 1);
  const std::vector<int64_t> lengths(static_cast<size_t>(documents), length);
  for (auto _ : state) {
    const at::Tensor& cache = caches.next();
    std::vector<at::Tensor> keys, values;
    for (int64_t b = 0; b < documents; ++b) {
      keys.push_back(cache[b][0]);
      values.push_back(cache[b][1]);
    }
    benchmark::DoNotOptimize(native_operators().cached_attention(
        {.q_TND = q, .keys_MSD = keys, .values_MSD = values, .cu_seqlens = cu, .lengths = lengths, .scale = 0.1}));
  }
  caches.count(state);
}

void read_caches(benchmark::State& state, at::ScalarType dtype) {
  Layers caches = make_caches(state, dtype);
  read(state, caches);
}

// Rows of x times the weight's transpose, without a graph. Arguments: rows, out, in.
void linear_rows(benchmark::State& state, at::ScalarType dtype,
                 at::Tensor (*op)(const at::Tensor& x, const at::Tensor& weight)) {
  const at::NoGradGuard no_graph;
  Layers weights({state.range(1), state.range(2)}, dtype);
  const at::Tensor x = at::randn({state.range(0), state.range(2)}).to(dtype);
  for (auto _ : state) benchmark::DoNotOptimize(op(x, weights.next()));
  weights.count(state);
}

void read_weights(benchmark::State& state, at::ScalarType dtype) {
  Layers weights({state.range(1), state.range(2)}, dtype);
  read(state, weights);
}

void add_decoding_rows() {
  for (const auto& [dtype, name] :
       {std::pair(at::kBFloat16, std::string("bf16")), std::pair(at::kFloat, std::string("fp32"))}) {
    const auto add = [&](const std::string& what, const auto& body) {
      return benchmark::RegisterBenchmark((what + "/" + name).c_str(), body)
          ->Unit(benchmark::kMicrosecond)
          ->UseRealTime();
    };
    add("cached_attention", [=](benchmark::State& state) {
      cached_attention(state, dtype);
    })->ArgsProduct({{512, 4096, 32768}, {1, 8}});
    add("read_caches", [=](benchmark::State& state) {
      read_caches(state, dtype);
    })->ArgsProduct({{512, 4096, 32768}, {1, 8}});
    const auto sizes = [](auto* row, const std::vector<int64_t>& rows) {
      constexpr int64_t kSizes[][2] = {{kHidden, kHidden}, {2048, 2048}, {151936, kHidden}};
      for (const auto& [out, in] : kSizes) {
        for (const int64_t count : rows) row->Args({count, out, in});
      }
    };
    const std::vector<int64_t> few = {1, 2, 4, 8};
    const auto own = [](const at::Tensor& x, const at::Tensor& w) {
      const ops::DecodingScope decoding;
      return ops::linear(x, w, at::Tensor());
    };
    const auto library = [](const at::Tensor& x, const at::Tensor& w) { return at::linear(x, w); };
    sizes(add("linear", [=](benchmark::State& state) { linear_rows(state, dtype, own); }), few);
    sizes(add("linear_library", [=](benchmark::State& state) { linear_rows(state, dtype, library); }), few);
    sizes(add("read_weights", [=](benchmark::State& state) { read_weights(state, dtype); }), {1});
  }
}

void add_rows(const std::string& name, void (*body)(benchmark::State&, const Operators&),
              const std::vector<int64_t>& arguments = {}) {
  for (const Operators* ops : {&native_operators(), &reference_operators()}) {
    auto* row = benchmark::RegisterBenchmark((name + "/" + std::string(ops->name)).c_str(),
                                             [=](benchmark::State& state) { body(state, *ops); });
    row->Unit(benchmark::kMillisecond)->MeasureProcessCPUTime()->UseRealTime();
    for (const int64_t argument : arguments) row->Arg(argument);
  }
}

void add_head_rows() {
  for (const Operators* ops : {&native_operators(), &reference_operators()}) {
    benchmark::RegisterBenchmark(("linear_cross_entropy/" + std::string(ops->name)).c_str(),
                                 [=](benchmark::State& state) { linear_cross_entropy(state, *ops); })
        ->Unit(benchmark::kMillisecond)
        ->MeasureProcessCPUTime()
        ->UseRealTime()
        ->ArgsProduct({{151936, 248320}, {512, 2048}});
  }
}

void add_memory_rows() {
  const auto add = [](const std::string& name, void (*body)(benchmark::State&)) {
    return benchmark::RegisterBenchmark(name.c_str(), body)->Unit(benchmark::kMillisecond)->UseRealTime();
  };
  add("copy", copy_memory)->Arg(0)->Arg(1);
  add("read", [](benchmark::State& state) {
    Layers one({kStateElements, 2}, at::kFloat);
    read(state, one);
  });
  add("adamw/master", adamw_master);
  add("adamw/bf16", adamw_bf16);
  add("adamw/fp32", adamw_fp32);
  add("gradient_norm", sum_of_squares);
  add("embedding_gradient", embedding_gradient)->Arg(512)->Arg(2048);
}

void add_document_rows() {
  using Body = void (*)(benchmark::State&);
  const std::pair<const char*, Body> rows[] = {
      {"documents/varlen", documents}, {"documents/loop", documents_loop}, {"documents/padded", documents_padded}};
  for (const auto& [name, body] : rows) {
    benchmark::RegisterBenchmark(name, body)
        ->Unit(benchmark::kMillisecond)
        ->MeasureProcessCPUTime()
        ->UseRealTime()
        ->DenseRange(0, 2);
  }
}

}  // namespace
}  // namespace expertmesh::ops

int main(int argc, char** argv) {
  using namespace expertmesh::ops;        // NOLINT(google-build-using-namespace)
  expertmesh::base::keep_freed_memory();  // as the trainer does
  add_rows("rms_norm", rms_norm);
  add_rows("head_norm", head_norm);
  add_rows("gated_norm", gated_norm);
  add_rows("causal_conv", causal_conv, {16, 2048});
  add_rows("rope", rope);
  add_rows("swiglu", swiglu);
  add_rows("sigmoid_gate", sigmoid_gate);
  add_rows("shared_expert_gate", shared_expert_gate);
  add_rows("delta_gates", delta_gates);
  add_rows("attention", attention, {64, 512, 2048});
  add_document_rows();
  add_rows("gated_delta_rule", gated_delta_rule, {2048, 8192});
  add_head_rows();
  add_memory_rows();
  add_decoding_rows();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
