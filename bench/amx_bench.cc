// SPDX-License-Identifier: Apache-2.0
// The bf16 products of experts with each instruction set that this processor has, one thread, interleaved with what AMX
// can do at most: dot products alone, and with the loads that they need from the first cache ("L1 rate"). With AVX-512
// BF16 also what the AMX kernel does around its dot products: "lines" moves the cache lines of each tile by vectors and
// multiplies nothing; "rest" moves none either.
//   amx_bench [--rounds N]
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "amx_probe.h"
#include "base/median.h"
#include "ops/cpu/amx_expert_product.h"

namespace expertmesh {
namespace {

using namespace ops::cpu;
// Of this thread, so that what else the machine does counts less.
double cpu_seconds() {
  timespec time = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

constexpr double kDotGflop = 1e-9 * kDotFlop;
constexpr int64_t kProbeSteps = 2000;

// No tile instructions: kLines says whether the memory of tiles is read and written all the same.
template <bool kLines>
struct NoTiles : AmxTiles {
  EXPERTMESH_INLINE static void configure(const TileConfig& /*config*/) {}
  EXPERTMESH_INLINE static void release() {}
  template <int kTile>
  EXPERTMESH_INLINE static void zero() {}
  template <int kTile>
  EXPERTMESH_INLINE static void load(const void* from, int64_t stride) {
    const auto* at = static_cast<const char*>(from);
#pragma GCC unroll 16
    for (int i = 0; i < kAmxRows; ++i, at += stride) {
      Vec v;
      if (kLines) asm volatile("vmovups %1, %0" : "=v"(v) : "m"(*reinterpret_cast<const char(*)[64]>(at)));
    }
  }
  template <int kTile>
  EXPERTMESH_INLINE static void store(void* to, int64_t stride) {
    auto* at = static_cast<char*>(to);
#pragma GCC unroll 16
    for (int i = 0; i < kAmxRows; ++i, at += stride) {
      if (kLines) asm volatile("vmovups %1, %0" : "=m"(*reinterpret_cast<char(*)[64]>(at)) : "v"(Vec{}));
    }
    asm volatile("" : : : "memory");
  }
  template <int kC, int kA, int kB>
  EXPERTMESH_INLINE static void multiply_add() {}
};

#define EXPERTMESH_BENCH_TARGET [[gnu::target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx2,fma")]]
EXPERTMESH_BENCH_TARGET void run_lines(const ExpertProduct& product) { multiply_on_tiles<NoTiles<true>>(product); }
EXPERTMESH_BENCH_TARGET void run_rest(const ExpertProduct& product) { multiply_on_tiles<NoTiles<false>>(product); }

struct Shape {
  std::string_view name;
  int64_t rows, columns, depth;
  bool is_read_late = false;
};
// Hidden size 2048, width 768: as expert_gemm calls them for an expert with 128 or 32 tokens.
constexpr Shape kShapes[] = {
    {"gate and up, 128 tokens", 32, 128, 2048},
    {"gate and up, 32 tokens", 32, 32, 2048},
    {"down, 128 tokens", 96, 128, 768},
    {"gradient of act, 128 tokens", 128, 64, 2048},
    {"gradient of x, 128 tokens", 128, 64, 1536},
    {"gradient of weights, 128 tokens", 128, 256, 128, true},
    {"gradient of weights, 32 tokens", 128, 256, 32, true},
};

struct Candidate {
  std::string name;
  double gflop;
  std::function<void()> run;
  std::vector<double> rates = {};
};

// The matrices of a shape, with small numbers everywhere.
struct Matrices {
  std::vector<Bf16> a, c;
  std::vector<uint32_t> b;
  ExpertProduct product;

  explicit Matrices(const Shape& shape)
      : a(static_cast<size_t>(shape.rows * shape.depth + 32), Bf16{0x3c00}),
        c(static_cast<size_t>(shape.rows * shape.columns + 32)),
        b(static_cast<size_t>(shape.columns * shape.depth / 2 + 16), 0x3c003c00) {
    const auto on_line = [](auto* p) { return p + (64 - reinterpret_cast<uintptr_t>(p) % 64) % 64 / sizeof *p; };
    product = {.a = {on_line(a.data()), shape.depth, nullptr},
               .b = on_line(b.data()),
               .c = {on_line(c.data()), shape.columns, nullptr},
               .rows = shape.rows,
               .columns = shape.columns,
               .depth = shape.depth,
               .is_read_late = shape.is_read_late};
  }
};

void measure(Candidate& candidate) {
  const int64_t times = std::max<int64_t>(1, static_cast<int64_t>(1.0 / candidate.gflop));  // some milliseconds
  const double start = cpu_seconds();
  for (int64_t i = 0; i < times; ++i) candidate.run();
  candidate.rates.push_back(candidate.gflop * static_cast<double>(times) / (cpu_seconds() - start));
}

void run(int rounds) {
  std::vector<Matrices> matrices;
  for (const Shape& shape : kShapes) matrices.emplace_back(shape);
  std::vector<Candidate> candidates;
  if (has_amx()) {
    candidates.push_back({"amx, dot products alone", 4 * kProbeSteps * kDotGflop, [] { amx_dots(kProbeSteps); }});
    candidates.push_back({"amx, L1 rate", 4 * kProbeSteps * kDotGflop, [] { amx_from_first_cache(kProbeSteps); }});
  } else {
    fmt::print("amx: {}\n", amx_state_text(amx_state()));
  }
  for (size_t i = 0; i < std::size(kShapes); ++i) {
    const Shape& shape = kShapes[i];
    const double gflop = 2e-9 * static_cast<double>(shape.rows * shape.columns * shape.depth);
    const ExpertProduct& product = matrices[i].product;
    for (const ExpertKernels* kernels : kExpertKernels) {
      if (!kernels->runs_here()) continue;
      candidates.push_back({fmt::format("{}, {}", kernels->name, shape.name), gflop,
                            [kernels, product] { kernels->multiply(product); }});
    }
    if (!kExpertKernelsAvx512Bf16.runs_here()) continue;
    candidates.push_back({fmt::format("lines, {}", shape.name), gflop, [product] { run_lines(product); }});
    candidates.push_back({fmt::format("rest, {}", shape.name), gflop, [product] { run_rest(product); }});
  }
  for (Candidate& candidate : candidates) candidate.run();
  for (int round = 0; round < rounds; ++round) {
    for (Candidate& candidate : candidates) measure(candidate);
  }
  const double l1_rate = has_amx() ? base::median(candidates[1].rates) : 0.0;
  fmt::print("{:<44} {:>9} {:>9} {:>9} {:>10}\n", "", "best", "median", "ns a dot", "of L1 rate");
  for (const Candidate& candidate : candidates) {
    const double median = base::median(candidate.rates);
    fmt::print("{:<44} {:>9.1f} {:>9.1f} {:>9.2f} {:>10}\n", candidate.name, *std::ranges::max_element(candidate.rates),
               median, kDotGflop / median * 1e9, l1_rate > 0.0 ? fmt::format("{:.2f}", median / l1_rate) : "-");
  }
  fmt::print("GFLOP/s, one thread; a dot: 16 x 16 x 32\n");
}

}  // namespace
}  // namespace expertmesh

int main(int argc, char** argv) {
  int rounds = 15;
  for (int i = 1; i + 1 < argc; ++i) {
    if (std::string_view(argv[i]) == "--rounds") rounds = std::max(1, std::atoi(argv[i + 1]));
  }
  expertmesh::run(rounds);
  return 0;
}
