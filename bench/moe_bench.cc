// SPDX-License-Identifier: Apache-2.0
// One MoE layer, forward and backward, routing given: the experts' products alone (a loop of at::mm with the mean
// number of rows), and each implementation of the expert MLP through the eager dispatcher. Rounds of all candidates are
// interleaved; beside each stand the roofline of the processor and of the memory, measured before every round
// (roofline.h).
// With several threads, OMP_WAIT_POLICY=passive keeps those that wait out of the CPU time.
//   moe_bench [tokens hidden width experts top_k] [--ranks N] [--threads N] [--rounds N] [--skew X] [--only NAME,NAME]
// With --turns, one round of the candidates each time a line arrives, for bench/moe_compare.py.
// With --decode, the experts' forward alone as decoding has it, without a graph, in layers that follow each other and
// together fit no cache: GB/s of the weights of the experts that have rows. [--fp32]
//   moe_bench 1 --decode
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Generator.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <fmt/format.h>
#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <iostream>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/freed_memory.h"
#include "base/median.h"
#include "comm/world.h"
#include "moe/dispatcher.h"
#include "moe/expert_mlp.h"
#include "ops/rank_memory.h"
#include "ops/rank_thread.h"
#include "roofline.h"

namespace expertmesh {
namespace {

using Clock = std::chrono::steady_clock;

struct Sizes {
  int64_t tokens = 1024, hidden = 512, width = 192, experts = 64, top_k = 8;  // a rank's; of the bench-size model
  int ranks = 2, threads = 1, rounds = 9;
  bool decode = false, fp32 = false, turns = false;
  std::string_view only;  // candidates, with commas between
  double skew = 0.5;      // 0: experts are equally likely

  // The least that goes through memory: weights are read forward and backward, their gradients written.
  double weight_bytes() const {
    const int64_t experts_of_a_rank = experts / ranks;
    return 6.0 * static_cast<double>(experts_of_a_rank * hidden * width);
  }
  double gflop() const { return 18e-9 * static_cast<double>(tokens * top_k * hidden * width); }  // of one rank
};

Sizes parse(int argc, char** argv) {
  Sizes sizes;
  int64_t* positional[] = {&sizes.tokens, &sizes.hidden, &sizes.width, &sizes.experts, &sizes.top_k};
  size_t next = 0;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    const auto value = [&] { return i + 1 < argc ? std::atoi(argv[++i]) : 1; };
    if (word == "--ranks") {
      sizes.ranks = value();
    } else if (word == "--threads") {
      sizes.threads = value();
    } else if (word == "--rounds") {
      sizes.rounds = value();
    } else if (word == "--skew") {
      sizes.skew = i + 1 < argc ? std::atof(argv[++i]) : 0;
    } else if (word == "--only") {
      sizes.only = i + 1 < argc ? argv[++i] : "";
    } else if (word == "--turns") {
      sizes.turns = true;
    } else if (word == "--decode") {
      sizes.decode = true;
    } else if (word == "--fp32") {
      sizes.fp32 = true;
    } else if (next < std::size(positional)) {
      *positional[next++] = std::atoll(argv[i]);
    }
  }
  return sizes;
}

// One rank's layer: leaves, and what the products alone work on.
struct Layer {
  Layer(const Sizes& sizes, int rank) {
    const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(rank + 1));
    const auto bf16 = [&](const std::vector<int64_t>& shape, double scale) {
      return (at::randn(shape, generator, at::kFloat) * scale).to(at::kBFloat16);
    };
    const int64_t local = sizes.experts / sizes.ranks;
    hidden = bf16({sizes.tokens, sizes.hidden}, 1).set_requires_grad(true);
    grad = bf16({sizes.tokens, sizes.hidden}, 1);
    // All experts alike: random numbers for each would take longer than the measurement.
    const auto experts_of = [&](int64_t rows, int64_t columns, double scale) {
      return bf16({1, rows, columns}, scale).expand({local, rows, columns}).contiguous().set_requires_grad(true);
    };
    gate_up = experts_of(2 * sizes.width, sizes.hidden, 0.04);
    down = experts_of(sizes.hidden, sizes.width, 0.07);
    for (int i = 0; i < 3 * sizes.rounds; ++i) {
      const at::Tensor favour = at::rand({sizes.experts}, generator, at::kFloat) * sizes.skew;
      const at::Tensor scores = at::rand({sizes.tokens, sizes.experts}, generator, at::kFloat) + favour;
      ids.push_back(scores.argsort(int64_t{1}, false).slice(1, 0, sizes.top_k).contiguous());
    }
    weights = at::rand({sizes.tokens, sizes.top_k}, generator, at::kFloat).set_requires_grad(true);
  }

  void step(const moe::Dispatcher& dispatcher, comm::Group& ep) {
    moe::Routing routing;
    routing.ids_TK = ids[next++ % ids.size()];  // as in training, no two steps have the same rows per expert
    routing.decided = true;
    dispatcher.forward(hidden, weights, routing, {gate_up, down}, ep).backward(grad);
    for (const at::Tensor* leaf : {&hidden, &weights, &gate_up, &down}) leaf->mutable_grad().reset();
  }

  at::Tensor hidden, grad, gate_up, down, weights;
  std::vector<at::Tensor> ids;
  size_t next = 0;
};

// The six products of an expert with the mean number of rows, for all local experts.
class Products {
 public:
  Products(const Sizes& sizes, const Layer& layer)
      : rows_(sizes.tokens * sizes.top_k * sizes.ranks / sizes.experts),
        gate_up_(layer.gate_up.detach()),
        down_(layer.down.detach()),
        x_(at::randn({rows_, sizes.hidden}, at::kFloat).to(at::kBFloat16)),
        h_(at::randn({rows_, 2 * sizes.width}, at::kFloat).to(at::kBFloat16)),
        a_(at::randn({rows_, sizes.width}, at::kFloat).to(at::kBFloat16)) {}

  void run() const {
    at::parallel_for(0, gate_up_.size(0), 1, [&](int64_t begin, int64_t end) {
      for (int64_t e = begin; e < end; ++e) run_expert(gate_up_[e], down_[e]);
    });
  }

 private:
  void run_expert(const at::Tensor& gate_up, const at::Tensor& down) const {
    at::mm(x_, gate_up.t());
    at::mm(a_, down.t());
    at::mm(x_, down);
    at::mm(h_, gate_up);
    at::mm(x_.t(), a_);
    at::mm(h_.t(), x_);
  }

  int64_t rows_;
  at::Tensor gate_up_, down_, x_, h_, a_;
};

struct Candidate {
  std::string name;
  std::function<void()> run;
  std::vector<double> seconds{};
  std::vector<double> cpu_seconds{};  // of the process: says more on a busy machine
};

double cpu_now() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double lower_quartile(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 4];
}

class Bench {
 public:
  Bench(const Sizes& sizes, comm::World& world)
      : sizes_(sizes), world_(world), layer_(sizes, world.rank()), products_(sizes, layer_) {
    add("products", [this] { products_.run(); });
    for (const moe::ExpertMlp* mlp :
         {&moe::reference_expert_mlp(), &moe::native_expert_mlp(), &moe::packed_expert_mlp()}) {
      if (!mlp->supports(at::kBFloat16)) continue;
      add(mlp->name, [this, mlp] {
        moe::TEST_use_expert_mlp(mlp);
        world_.all().barrier("bench");
        layer_.step(*dispatcher_, world_.all());
      });
    }
  }

  void run_all() {
    warm_up();
    for (int round = 0; round < sizes_.rounds; ++round) {
      for (Candidate& candidate : candidates_) {
        measure_roofline();
        run(candidate);
      }
    }
    if (world_.rank() == 0) print();
  }

  // A round for each line that arrives: "NAME SECONDS" of each candidate. One rank.
  void take_turns() {
    warm_up();
    std::cout << "ready\n" << std::flush;
    for (std::string line; std::getline(std::cin, line);) {
      for (Candidate& candidate : candidates_) {
        measure_roofline();
        run(candidate);
        std::cout << fmt::format("{} {:.6f} {:.6f} {:.1f} {:.6f}\n", candidate.name, candidate.seconds.back(),
                                 candidate.cpu_seconds.back(), gflops_.back(), memory_seconds_.back())
                  << std::flush;
      }
    }
  }

 private:
  void add(std::string_view name, std::function<void()> run) {
    const std::string wanted = fmt::format(",{},", sizes_.only);
    if (sizes_.only.empty() || wanted.find(fmt::format(",{},", name)) != std::string::npos) {
      candidates_.push_back({std::string(name), std::move(run)});
    }
  }

  // Memory is touched once before it counts.
  void warm_up() {
    for (const Candidate& candidate : candidates_) candidate.run();
  }

  void measure_roofline() {
    world_.all().barrier("bench");
    gflops_.push_back(roofline_.gflops());
    memory_seconds_.push_back(2 * sizes_.weight_bytes() / roofline_.read_rate() +
                              sizes_.weight_bytes() / roofline_.write_rate());
  }

  void run(Candidate& candidate) {
    world_.all().barrier("bench");
    const auto start = Clock::now();
    const double cpu_start = cpu_now();
    candidate.run();
    world_.all().barrier("bench");
    candidate.cpu_seconds.push_back((cpu_now() - cpu_start) / sizes_.ranks);
    candidate.seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
  }

  void print() const {
    const double roof = base::median(gflops_), floor = base::median(memory_seconds_);
    fmt::print(
        "roofline of a rank: {:.1f} GFLOP/s from the first cache, {:.2f} ms for weights and gradients in memory\n",
        roof, floor * 1e3);
    for (const Candidate& candidate : candidates_) {
      const auto [best, worst] = std::minmax_element(candidate.seconds.begin(), candidate.seconds.end());
      const double median = base::median(candidate.seconds);
      const double thread_seconds = lower_quartile(candidate.cpu_seconds) / sizes_.threads;
      fmt::print(
          "{:10} median {:8.2f} ms ({:.2f} to {:.2f}) {:6.1f} GFLOP/s a rank; in CPU time {:8.2f} ms a rank, "
          "{:3.0f}% of the roofline, {:5.2f} times the memory's time\n",
          candidate.name, median * 1e3, *best * 1e3, *worst * 1e3, sizes_.gflop() / median,
          thread_seconds * sizes_.threads * 1e3, 100 * sizes_.gflop() / thread_seconds / roof, thread_seconds / floor);
    }
  }

  const Sizes& sizes_;
  comm::World& world_;
  Layer layer_;
  Products products_;
  Roofline roofline_;
  std::unique_ptr<moe::Dispatcher> dispatcher_ = moe::make_dispatcher("eager");
  std::vector<Candidate> candidates_;
  std::vector<double> gflops_, memory_seconds_;
};

void bench(const Sizes& sizes, comm::World& world) {
  ops::begin_rank_thread(sizes.threads);
  const ops::RankMemory memory;  // as in training
  Bench all(sizes, world);
  if (sizes.turns) {
    all.take_turns();
  } else {
    all.run_all();
  }
}

// Rows in expert order, as a dispatcher gives them, for tokens that choose at random.
struct Choices {
  Choices(const Sizes& sizes, const at::Generator& generator) : offsets(static_cast<size_t>(sizes.experts) + 1) {
    const at::Tensor scores = at::rand({sizes.tokens, sizes.experts}, generator, at::kFloat);
    const at::Tensor ids = scores.argsort(int64_t{1}, false).slice(1, 0, sizes.top_k);
    for (int64_t expert = 0; expert < sizes.experts; ++expert) {
      for (int64_t token = 0; token < sizes.tokens; ++token) {
        for (int64_t k = 0; k < sizes.top_k; ++k) {
          if (ids[token][k].item<int64_t>() != expert) continue;
          in_rows.push_back(token);
          out_rows.push_back(token * sizes.top_k + k);
        }
      }
      offsets[static_cast<size_t>(expert) + 1] = static_cast<int64_t>(in_rows.size());
    }
  }

  moe::ExpertRows rows() const { return {offsets, in_rows, out_rows}; }

  double bytes(const moe::ExpertWeights& weights) const {
    int64_t busy = 0;
    for (size_t e = 0; e + 1 < offsets.size(); ++e) busy += offsets[e] < offsets[e + 1] ? 1 : 0;
    const auto all = static_cast<double>(weights.gate_up_proj.nbytes() + weights.down_proj.nbytes());
    return all * static_cast<double>(busy) / static_cast<double>(weights.down_proj.size(0));
  }

  std::vector<int64_t> offsets, in_rows, out_rows;
};

void bench_decode(const Sizes& sizes) {
  constexpr double kBytes = 512e6;
  at::set_num_threads(sizes.threads);
  const at::NoGradGuard no_graph;
  const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(uint64_t{1});
  const at::ScalarType dtype = sizes.fp32 ? at::kFloat : at::kBFloat16;
  const at::Tensor x = at::randn({sizes.tokens, sizes.hidden}, generator, at::kFloat).to(dtype);
  std::vector<moe::ExpertWeights> layers;
  double bytes = 0;
  while (bytes < kBytes) {
    layers.push_back({at::randn({sizes.experts, 2 * sizes.width, sizes.hidden}).to(dtype),
                      at::randn({sizes.experts, sizes.hidden, sizes.width}).to(dtype)});
    bytes += static_cast<double>(layers.back().gate_up_proj.nbytes() + layers.back().down_proj.nbytes());
  }
  std::vector<Choices> choices;
  choices.reserve(static_cast<size_t>(sizes.rounds));
  for (int i = 0; i < sizes.rounds; ++i) choices.emplace_back(sizes, generator);
  for (const moe::ExpertMlp* mlp :
       {&moe::reference_expert_mlp(), &moe::native_expert_mlp(), &moe::packed_expert_mlp()}) {
    if (!mlp->supports(dtype)) continue;
    std::vector<double> wall, cpu, bytes_read;
    for (const Choices& choice : choices) {
      const auto start = Clock::now();
      const double cpu_start = cpu_now();
      for (const moe::ExpertWeights& weights : layers) mlp->forward(x, choice.rows(), weights);
      const double layers_count = static_cast<double>(layers.size());
      cpu.push_back((cpu_now() - cpu_start) / layers_count);
      wall.push_back(std::chrono::duration<double>(Clock::now() - start).count() / layers_count);
      bytes_read.push_back(choice.bytes(layers.front()));
    }
    const double bytes_a_layer = base::median(bytes_read);
    fmt::print("{:10} {:8.1f} us a layer, {:6.2f} GB/s; cpu {:8.1f} us, {:6.2f} GB/s\n", mlp->name,
               base::median(wall) * 1e6, bytes_a_layer * 1e-9 / base::median(wall), lower_quartile(cpu) * 1e6,
               bytes_a_layer * 1e-9 / lower_quartile(cpu));
  }
}

}  // namespace
}  // namespace expertmesh

int main(int argc, char** argv) {
  expertmesh::base::keep_freed_memory();
  mallopt(M_MMAP_THRESHOLD, std::numeric_limits<int>::max());  // gradients of more than 1 GiB too
  const expertmesh::Sizes sizes = expertmesh::parse(argc, argv);
  fmt::print("tokens {} hidden {} width {} experts {} top_k {}: {} ranks, {} threads a rank, {:.1f} GFLOP a rank\n",
             sizes.tokens, sizes.hidden, sizes.width, sizes.experts, sizes.top_k, sizes.ranks, sizes.threads,
             sizes.gflop());
  if (sizes.decode) {
    expertmesh::bench_decode(sizes);
    return 0;
  }
  expertmesh::comm::run_threads(sizes.ranks, {},
                                [&](expertmesh::comm::World& world) { expertmesh::bench(sizes, world); });
}
