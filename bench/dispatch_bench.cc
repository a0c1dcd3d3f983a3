// SPDX-License-Identifier: Apache-2.0
// Every dispatcher on rank threads: one MoE layer, forward and backward, under three kinds of routing, interleaved in
// one run. Ratios are medians over rounds, each to eager in the same round.
//   dispatch_bench [--tokens N] [--hidden N] [--width N] [--experts N] [--top-k N] [--ranks N] [--threads N]
//                  [--rounds N] [--apart] [--mb-per-second N]
// --mb-per-second: apart, with links of that speed, whose time passes beside the products. --apart: the group says that
// ranks do not share memory, as with processes. Routing: balanced (all experts equally likely), hot-rank (half of the
// tokens take their experts from those of rank 0), rotating (the same with another rank in each step).
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <numeric>
#include <span>
#include <string_view>
#include <vector>

#include "base/freed_memory.h"
#include "base/median.h"
#include "comm/decorators.h"
#include "comm/world.h"
#include "moe/dispatcher.h"
#include "moe/sample_layer.h"

namespace expertmesh {
namespace {

using Clock = std::chrono::steady_clock;

// The word behind `name` on the command line as a number.
int64_t option(std::span<char* const> words, std::string_view name, int64_t otherwise) {
  const auto found = std::find(words.begin(), words.end(), name);
  return found == words.end() || found + 1 == words.end() ? otherwise : std::atoll(*(found + 1));
}

struct Sizes {  // tokens: of a rank; the rest: of qwen3-moe-bench where nothing else is said
  explicit Sizes(std::span<char* const> words)
      : tokens(option(words, "--tokens", 2048)),
        hidden(option(words, "--hidden", 512)),
        width(option(words, "--width", 192)),
        experts(option(words, "--experts", 64)),
        top_k(option(words, "--top-k", 8)),
        ranks(static_cast<int>(option(words, "--ranks", 2))),
        threads(static_cast<int>(option(words, "--threads", 1))),
        rounds(static_cast<int>(option(words, "--rounds", 9))),
        mb_per_second(option(words, "--mb-per-second", 0)),
        apart(mb_per_second > 0 || std::find(words.begin(), words.end(), std::string_view("--apart")) != words.end()) {}

  int64_t tokens, hidden, width, experts, top_k;
  int ranks, threads, rounds;
  int64_t mb_per_second;
  bool apart;
};

enum class Traffic { kBalanced, kHotRank, kRotating };

at::Tensor choices(const Sizes& sizes, Traffic traffic, int round, moe::SampleLayer& layer) {
  at::Tensor scores_TE = layer.next_scores_TE();
  if (traffic != Traffic::kBalanced) {
    const int64_t local = sizes.experts / sizes.ranks;
    const int64_t hot = traffic == Traffic::kRotating ? round % sizes.ranks : 0;
    scores_TE.slice(0, 0, sizes.tokens / 2).slice(1, hot * local, (hot + 1) * local) += 1;
  }
  return layer.choices(scores_TE);
}

struct Candidate {
  std::string_view name;
  std::unique_ptr<moe::Dispatcher> dispatcher;
  std::vector<double> seconds{};
};

std::vector<double> ratios(const Candidate& candidate, const Candidate& to) {
  std::vector<double> result;
  for (size_t i = 0; i < candidate.seconds.size(); ++i) result.push_back(candidate.seconds[i] / to.seconds[i]);
  return result;
}

void bench(const Sizes& sizes, Traffic traffic, std::string_view name, moe::SampleLayer& layer, comm::Group& ep,
           bool prints) {
  std::vector<Candidate> candidates;
  for (const moe::DispatcherInfo& row : moe::dispatchers()) candidates.push_back({row.name, row.make()});
  for (int round = -1; round < sizes.rounds; ++round) {
    const at::Tensor ids_TK = choices(sizes, traffic, round + 1, layer);
    // Who comes after whom changes, so that nobody always finds the caches that the same one left.
    for (size_t i = 0; i < candidates.size(); ++i) {
      Candidate& candidate = candidates[(i + static_cast<size_t>(round + 1)) % candidates.size()];
      ep.barrier("bench");
      const auto start = Clock::now();
      layer.step(*candidate.dispatcher, ep, ids_TK);
      ep.barrier("bench");
      if (round >= 0) candidate.seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
    }
  }
  if (!prints) return;
  for (const Candidate& candidate : candidates) {
    const std::vector<double> to_eager = ratios(candidate, candidates[0]);
    fmt::print("{:9} {:7} median {:8.2f} ms  best {:8.2f} ms  to eager {:.3f} ({:.3f} - {:.3f})\n", name,
               candidate.name, base::median(candidate.seconds) * 1e3,
               *std::min_element(candidate.seconds.begin(), candidate.seconds.end()) * 1e3, base::median(to_eager),
               *std::min_element(to_eager.begin(), to_eager.end()),
               *std::max_element(to_eager.begin(), to_eager.end()));
  }
}

void bench_rank(const Sizes& sizes, comm::World& world) {
  at::set_num_threads(sizes.threads);
  std::vector<int> everyone(static_cast<size_t>(world.size()));
  std::iota(everyone.begin(), everyone.end(), 0);
  std::shared_ptr<comm::Group> ep = world.make_group("ep", {everyone});
  if (sizes.apart) {
    ep = comm::make_faulty_group(std::move(ep), {.bytes_per_second = 1e6 * static_cast<double>(sizes.mb_per_second)});
  }
  moe::SampleLayer layer({.tokens = sizes.tokens,
                          .hidden = sizes.hidden,
                          .width = sizes.width,
                          .experts = sizes.experts,
                          .top_k = sizes.top_k},
                         *ep);
  bench(sizes, Traffic::kBalanced, "balanced", layer, *ep, world.rank() == 0);
  bench(sizes, Traffic::kHotRank, "hot-rank", layer, *ep, world.rank() == 0);
  bench(sizes, Traffic::kRotating, "rotating", layer, *ep, world.rank() == 0);
}

}  // namespace
}  // namespace expertmesh

int main(int argc, char** argv) {
  expertmesh::base::keep_freed_memory();  // as the trainer does
  const expertmesh::Sizes sizes({argv, static_cast<size_t>(argc)});
  fmt::print("tokens {} hidden {} width {} experts {} top_k {}: {} ranks, {} threads a rank{}\n", sizes.tokens,
             sizes.hidden, sizes.width, sizes.experts, sizes.top_k, sizes.ranks, sizes.threads,
             sizes.apart ? ", apart" : "");
  expertmesh::comm::run_threads(sizes.ranks, {},
                                [&](expertmesh::comm::World& world) { expertmesh::bench_rank(sizes, world); });
}
