// SPDX-License-Identifier: Apache-2.0
// The parts of the bf16 experts of one MoE layer (ops/cpu/expert_gemm.h), each over all experts, whose weights fit no
// cache, taken by the threads one expert after the other. In each round every part runs once, behind what AMX does at
// most from the first cache, where the processor has it.
//   expert_bench [rows hidden width experts] [--threads N] [--rounds N] [--kernels avx512]
// --kernels: one of `expertmesh list kernels` instead of the one that is chosen here.
#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "amx_probe.h"
#include "base/median.h"
#include "ops/cpu/expert_act.h"
#include "ops/cpu/expert_gemm.h"
#include "ops/cpu/expert_kernels.h"

namespace expertmesh {
namespace {

using namespace ops::cpu;

struct Sizes {
  int64_t rows = 128, hidden = 2048, width = 768, experts = 128;  // rows: of each expert
  int threads = 2, rounds = 7;

  int64_t all_rows() const { return rows * experts; }
  double gflop() const { return 2e-9 * static_cast<double>(all_rows() * hidden * width); }  // of hidden x width
};

// In huge pages, as training has its tensors.
class Matrix {
 public:
  explicit Matrix(int64_t elements) : bytes_(static_cast<size_t>(elements) * sizeof(Bf16)) {
    memory_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory_ == MAP_FAILED) std::exit(1);
    madvise(memory_, bytes_, MADV_HUGEPAGE);
    uint32_t state = 1;
    for (int64_t i = 0; i < elements; ++i) {
      state = state * 1664525 + 1013904223;
      data()[i].bits = static_cast<uint16_t>(0x3c00 | (state >> 16 & 0x83ff));
    }
  }
  ~Matrix() { munmap(memory_, bytes_); }
  Matrix(const Matrix&) = delete;
  Matrix& operator=(const Matrix&) = delete;
  Bf16* data() const { return static_cast<Bf16*>(memory_); }

 private:
  size_t bytes_;
  void* memory_;
};

// Memory of one thread.
struct Worker {
  explicit Worker(const Sizes& sizes)
      : scratch(std::max({expert_forward_scratch(sizes.hidden, sizes.width, sizes.rows),
                          expert_input_grad_scratch(sizes.width, sizes.hidden, sizes.rows),
                          expert_input_grad_scratch(sizes.hidden, 2 * sizes.width, sizes.rows),
                          expert_weight_grad_scratch(sizes.hidden, sizes.width, sizes.rows),
                          expert_weight_grad_scratch(2 * sizes.width, sizes.hidden, sizes.rows)})),
        grad_act(sizes.rows * sizes.width),
        weighted_act(sizes.rows * sizes.width),
        grad_gate_up(sizes.rows * 2 * sizes.width) {}
  Matrix scratch, grad_act, weighted_act, grad_gate_up;
};

class Bench {
 public:
  explicit Bench(const Sizes& sizes) : s_(sizes) {
    workers_.reserve(static_cast<size_t>(s_.threads));
    for (int i = 0; i < s_.threads; ++i) workers_.push_back(std::make_unique<Worker>(s_));
    // Tokens as a router spreads them: eight choices each.
    uint32_t state = 7;
    for (int64_t& token : tokens_) {
      state = state * 1664525 + 1013904223;
      token = state % static_cast<uint32_t>(num_tokens_);
    }
    std::iota(choices_.begin(), choices_.end(), 0);
    for (size_t i = choices_.size() - 1; i > 0; --i) {
      state = state * 1664525 + 1013904223;
      std::swap(choices_[i], choices_[(state >> 4) % (i + 1)]);
    }
  }

  void run() {
    const double gflop = s_.gflop();
    if (has_amx()) {
      constexpr int64_t kSteps = 8000;
      parts_.push_back({"L1 rate of AMX", 4e-9 * kDotFlop * static_cast<double>(kSteps * s_.experts),
                        [](int64_t, const Worker&) { amx_from_first_cache(kSteps); }});
    }
    const size_t first = parts_.size();
    parts_.push_back({"forward", 3 * gflop, [this](int64_t e, const Worker& w) { forward(e, w); }});
    parts_.push_back({"gradient of act", gflop, [this](int64_t e, const Worker& w) {
                        input_grad(dy(e), down_.data() + e * s_.hidden * s_.width, {w.grad_act.data(), s_.width},
                                   s_.width, s_.hidden, false, w);
                      }});
    parts_.push_back({"SwiGLU backward", 0, [this](int64_t e, const Worker& w) { act_backward(e, w); }});
    parts_.push_back({"gradient of x", 2 * gflop, [this](int64_t e, const Worker& w) {
                        input_grad(
                            {w.grad_gate_up.data(), 2 * s_.width}, gate_up_.data() + e * 2 * s_.width * s_.hidden,
                            {dx_.data(), s_.hidden, choices_.data() + e * s_.rows}, s_.hidden, 2 * s_.width, true, w);
                      }});
    parts_.push_back({"gradient of down_proj", gflop, [this](int64_t e, const Worker& w) {
                        weight_grad(dy(e), {w.weighted_act.data(), s_.width},
                                    grad_down_.data() + e * s_.hidden * s_.width, s_.hidden, s_.width, w);
                      }});
    parts_.push_back({"gradient of gate_up_proj", 2 * gflop, [this](int64_t e, const Worker& w) {
                        weight_grad({w.grad_gate_up.data(), 2 * s_.width}, tokens_of(x_, e),
                                    grad_gate_up_.data() + e * 2 * s_.width * s_.hidden, 2 * s_.width, s_.hidden, w);
                      }});
    for (int round = -1; round < s_.rounds; ++round) {  // the first warms up
      for (Part& part : parts_) {
        const double seconds = time(part);
        if (round >= 0) part.seconds.push_back(seconds);
      }
    }
    print(first);
  }

 private:
  using Rows = IndexedRows<const Bf16>;
  struct Part {
    std::string name;
    double gflop;
    std::function<void(int64_t expert, const Worker&)> run;
    std::vector<double> seconds{};
  };

  Rows tokens_of(const Matrix& matrix, int64_t e) const {
    return {matrix.data(), s_.hidden, tokens_.data() + e * s_.rows};
  }
  Rows dy(int64_t e) const { return tokens_of(grad_y_, e); }

  void forward(int64_t e, const Worker& w) const {
    expert_forward({.hidden = s_.hidden,
                    .width = s_.width,
                    .gate_up_proj = gate_up_.data() + e * 2 * s_.width * s_.hidden,
                    .down_proj = down_.data() + e * s_.hidden * s_.width,
                    .rows = s_.rows,
                    .x = tokens_of(x_, e),
                    .gate_up = {acts_.data() + e * s_.rows * 2 * s_.width, 2 * s_.width, nullptr},
                    .y = {y_.data(), s_.hidden, choices_.data() + e * s_.rows},
                    .is_read_late = true,
                    .scratch = w.scratch.data()});
  }
  void input_grad(Rows a, const Bf16* weights, IndexedRows<Bf16> c, int64_t columns, int64_t depth, bool is_read_late,
                  const Worker& w) const {
    expert_input_grad({.a = a,
                       .weights = weights,
                       .c = c,
                       .rows = s_.rows,
                       .columns = columns,
                       .depth = depth,
                       .is_read_late = is_read_late,
                       .scratch = w.scratch.data()});
  }
  void act_backward(int64_t e, const Worker& w) {
    expert_act_backward(ExpertActBackward<Bf16>{.gate_up = acts_.data() + e * s_.rows * 2 * s_.width,
                                                .grad_act = w.grad_act.data(),
                                                .weights = routing_.data(),
                                                .weight_rows = choices_.data() + e * s_.rows,
                                                .weighted_act = w.weighted_act.data(),
                                                .grad_gate_up = w.grad_gate_up.data(),
                                                .grad_weights = grad_routing_.data(),
                                                .rows = s_.rows,
                                                .width = s_.width});
  }
  void weight_grad(Rows left, Rows right, Bf16* c, int64_t m, int64_t n, const Worker& w) const {
    expert_weight_grad({.left = left,
                        .right = right,
                        .c = c,
                        .rows = s_.rows,
                        .m = m,
                        .n = n,
                        .is_read_late = true,
                        .scratch = w.scratch.data()});
  }

  double time(const Part& part) const {
    std::atomic<int64_t> next{0};
    const auto start = std::chrono::steady_clock::now();
    std::vector<std::thread> threads;
    threads.reserve(workers_.size());
    for (const auto& worker : workers_) {
      threads.emplace_back([&] {
        for (int64_t e = next++; e < s_.experts; e = next++) part.run(e, *worker);
      });
    }
    for (std::thread& thread : threads) thread.join();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  void print(size_t first) const {
    const double l1_rate = first > 0 ? parts_[0].gflop / base::median(parts_[0].seconds) : 0;
    fmt::print("{} experts with {} rows each, {} x {}, {} threads, {} rounds\n", s_.experts, s_.rows, s_.hidden,
               s_.width, s_.threads, s_.rounds);
    fmt::print("{:<26} {:>9} {:>9} {:>9} {:>10}\n", "", "best ms", "median ms", "GFLOP/s", "of L1 rate");
    double best = 0, median = 0, gflop = 0;
    const auto line = [&](std::string_view name, double least, double middle, double work) {
      fmt::print("{:<26} {:>9.1f} {:>9.1f} {:>9.0f} {:>10}\n", name, least * 1e3, middle * 1e3, work / middle,
                 l1_rate > 0 ? fmt::format("{:.0f}%", 100 * work / middle / l1_rate) : "-");
    };
    for (size_t i = 0; i < parts_.size(); ++i) {
      const Part& part = parts_[i];
      const double least = *std::ranges::min_element(part.seconds), middle = base::median(part.seconds);
      line(part.name, least, middle, part.gflop);
      if (i < first) continue;
      best += least;
      median += middle;
      gflop += part.gflop;
    }
    line("all", best, median, gflop);
  }

  Sizes s_;
  int64_t num_tokens_ = std::max<int64_t>(s_.all_rows() / 8, 1);
  Matrix gate_up_{s_.experts * 2 * s_.width * s_.hidden}, down_{s_.experts * s_.hidden * s_.width};
  Matrix grad_gate_up_{s_.experts * 2 * s_.width * s_.hidden}, grad_down_{s_.experts * s_.hidden * s_.width};
  Matrix x_{num_tokens_ * s_.hidden}, grad_y_{num_tokens_ * s_.hidden};
  Matrix acts_{s_.all_rows() * 2 * s_.width}, y_{s_.all_rows() * s_.hidden}, dx_{s_.all_rows() * s_.hidden};
  std::vector<int64_t> tokens_ = std::vector<int64_t>(static_cast<size_t>(s_.all_rows()));
  std::vector<int64_t> choices_ = tokens_;
  std::vector<float> routing_ = std::vector<float>(tokens_.size(), 0.5F), grad_routing_ = routing_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<Part> parts_;
};

}  // namespace
}  // namespace expertmesh

int main(int argc, char** argv) {
  using expertmesh::ops::cpu::kExpertKernels, expertmesh::ops::cpu::TEST_use_expert_kernels;
  expertmesh::Sizes sizes;
  int64_t* positional[] = {&sizes.rows, &sizes.hidden, &sizes.width, &sizes.experts};
  size_t next = 0;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--threads" && i + 1 < argc) {
      sizes.threads = std::max(1, std::atoi(argv[++i]));
    } else if (word == "--rounds" && i + 1 < argc) {
      sizes.rounds = std::max(1, std::atoi(argv[++i]));
    } else if (word == "--kernels" && i + 1 < argc) {
      const std::string_view name = argv[++i];
      const auto* const found =
          std::ranges::find_if(kExpertKernels, [&](const auto* row) { return row->name == name && row->runs_here(); });
      if (found == std::end(kExpertKernels)) {
        fmt::print("This processor has no kernels {}.\n", name);
        return 1;
      }
      TEST_use_expert_kernels(*found);
    } else if (next < std::size(positional)) {
      *positional[next++] = std::max(1LL, std::atoll(argv[i]));
    }
  }
  if (!expertmesh::ops::cpu::has_expert_gemm()) {
    fmt::print("This processor has none of AMX, AVX-512 and AVX2.\n");
    return 1;
  }
  expertmesh::Bench(sizes).run();
  return 0;
}
