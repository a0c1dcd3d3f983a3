// SPDX-License-Identifier: Apache-2.0
// `expertmesh bench moe --workload NAME|all [--ranks 2,4,8] [--dispatcher all|LIST] ...`
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <optional>

#include "app/bench_table.h"
#include "app/command.h"
#include "app/launch.h"
#include "app/output_file.h"
#include "app/preset.h"
#include "app/usage.h"
#include "base/error.h"
#include "base/version.h"
#include "comm/decorators.h"
#include "comm/launcher.h"
#include "config/suggest.h"

namespace expertmesh::app {
namespace {

constexpr std::string_view kDefaultPreset = "qwen3-moe-bench";

// As they were typed.
struct BenchArguments {
  std::string what, workload, ranks, dispatchers = "all", dtype = "bf16", json;
  std::optional<std::string> preset;
  std::optional<int64_t> hidden, width, experts, top_k, ep_size;
  std::optional<int> threads_per_rank;
  int64_t tokens = 1024, rounds = 5, seed = 1;
  std::optional<double> mb_per_second;
  bool apart = false;
};

// What is measured, checked.
struct Bench {
  std::vector<moe::WorkloadInfo> workloads;
  std::vector<int> ranks;  // empty: those of the launcher
  std::vector<moe::Contender> contenders;
  bool asks_auto = false;
  moe::LayerShape layer;
  LaunchOptions launch;
  std::optional<int64_t> ep_size;  // of each group; left out: all ranks
  int rounds = 0;
  uint64_t seed = 0;
  double bytes_per_second = 0;  // 0: no limit
  bool apart = false;
  std::string json;  // where to; empty: nowhere

  bool shares_memory() const { return !apart && !ranks.empty(); }
};

template <typename... Args>
base::Error mistake(std::string_view flag, fmt::format_string<Args...> format, Args&&... args) {
  return base::make_error(base::Code::kUsage, fmt::format("bench/{}", flag), format, std::forward<Args>(args)...);
}

std::vector<std::string> split(std::string_view text) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    parts.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

base::Error unknown_name(std::string_view flag, const std::string& name, std::vector<std::string> known) {
  known.emplace_back("all");
  const auto near = config::try_nearest(name, known);
  return mistake(flag, "there is no {} \"{}\"", flag, name)
      .hint(near ? fmt::format("Did you mean {}?", *near) : fmt::format("Use one of {}.", config::join_names(known)));
}

std::vector<moe::WorkloadInfo> workloads_of(const std::string& text) {
  std::vector<moe::WorkloadInfo> chosen;
  std::vector<std::string> known;
  for (const moe::WorkloadInfo& row : moe::workloads()) known.emplace_back(row.name);
  for (const std::string& name : split(text)) {
    const size_t before = chosen.size();
    for (const moe::WorkloadInfo& row : moe::workloads()) {
      if (name == "all" || name == row.name) chosen.push_back(row);
    }
    if (chosen.size() == before) throw unknown_name("workload", name, known);
  }
  return chosen;
}

std::string workload_help() {
  std::vector<std::string> names{"all"};
  for (const moe::WorkloadInfo& row : moe::workloads()) names.emplace_back(row.name);
  return config::join_names(names);
}

void choose_dispatchers(const std::string& text, Bench& bench) {
  std::vector<moe::Contender> known = moe::contenders({}, bench.shares_memory());
  for (const char* name : {"mc2", "domino"}) {
    if (moe::has_dedup(name, bench.shares_memory())) known.push_back({name, {.dedup = false}});
  }
  std::vector<std::string> labels{"auto"};
  for (const moe::Contender& contender : known) labels.push_back(contender.label());
  for (const std::string& name : split(text)) {
    if (name == "all") {
      bench.contenders = moe::contenders({}, bench.shares_memory());
      continue;
    }
    if (name == "auto") {
      bench.asks_auto = true;
      continue;
    }
    const auto found = std::find_if(known.begin(), known.end(), [&](const auto& row) { return row.label() == name; });
    if (found == known.end()) throw unknown_name("dispatcher", name, labels);
    bench.contenders.push_back(*found);
  }
  // What the ratios are to.
  const moe::Contender eager{"eager"};
  std::erase(bench.contenders, eager);
  bench.contenders.insert(bench.contenders.begin(), eager);
}

std::vector<int> ranks_of(const BenchArguments& arguments) {
  const auto launch = comm::find_launch([](const char* name) -> const char* { return std::getenv(name); });
  if (arguments.ranks.empty()) return launch && launch->size > 1 ? std::vector<int>{} : std::vector<int>{2, 4, 8};
  std::vector<int> ranks;
  for (const std::string& text : split(arguments.ranks)) {
    int value = 0;
    const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (status != std::errc() || end != text.data() + text.size() || value < 1) {
      throw mistake("ranks", "--ranks {} has \"{}\", which is no number of ranks", arguments.ranks, text)
          .hint("Use numbers with commas between them, for example --ranks 2,4,8.");
    }
    ranks.push_back(value);
  }
  return ranks;
}

int64_t positive(std::string_view flag, int64_t value) {
  if (value < 1) throw mistake(flag, "--{} {} is below 1", flag, value).hint("Use 1 or more.");
  return value;
}

moe::LayerShape shape_of(const BenchArguments& arguments) {
  const std::pair<std::string_view, std::optional<int64_t>> sizes[] = {{"hidden", arguments.hidden},
                                                                       {"width", arguments.width},
                                                                       {"experts", arguments.experts},
                                                                       {"top-k", arguments.top_k}};
  const bool has_size =
      std::any_of(std::begin(sizes), std::end(sizes), [](const auto& row) { return row.second.has_value(); });
  const std::string name = arguments.preset.value_or(std::string(kDefaultPreset));
  const FoundPreset preset = find_preset(name);
  const model::Model::Sizes model = preset.spec.build(preset.preset.config(), "preset " + name)->sizes();
  if (has_size && arguments.preset) {
    for (const auto& [flag, value] : sizes) {
      if (value)
        throw mistake(flag, "--{} {} was given together with --preset {}", flag, *value, name)
            .hint("Keep one of them.");
    }
  }
  moe::LayerShape shape{.tokens = positive("tokens", arguments.tokens),
                        .hidden = positive("hidden", arguments.hidden.value_or(model.hidden)),
                        .width = positive("width", arguments.width.value_or(model.moe_intermediate)),
                        .experts = positive("experts", arguments.experts.value_or(model.experts)),
                        .top_k = positive("top-k", arguments.top_k.value_or(model.experts_per_token))};
  if (shape.top_k > shape.experts) {
    throw mistake("top-k", "--top-k {} is more than --experts {}", shape.top_k, shape.experts)
        .hint(fmt::format("Use 1 to {}.", shape.experts));
  }
  return shape;
}

at::ScalarType dtype_of(const std::string& name) {
  if (name == "bf16") return at::kBFloat16;
  if (name == "fp32") return at::kFloat;
  throw mistake("dtype", "--dtype {} is not known", name).hint("Use bf16 or fp32.");
}

BenchArguments parse_arguments(const Arguments& words) {
  BenchArguments arguments;
  auto parser = make_parser("bench");
  parser->add_option("WHAT", arguments.what, "moe");
  parser->add_option("--workload", arguments.workload, workload_help())->required();
  parser->add_option("--ranks", arguments.ranks,
                     "rank threads, one run for each number (default 2,4,8, or those of a launcher)");
  parser->add_option("--ep-size", arguments.ep_size, "ranks that share the experts (default: all)");
  parser->add_option("--dispatcher", arguments.dispatchers,
                     "all (default), or names with commas between them; -no-dedup behind a name: tokens travel once a "
                     "choice; auto: what a run would take");
  parser->add_option("--preset", arguments.preset, fmt::format("the layer of this model (default {})", kDefaultPreset));
  parser->add_option("--hidden", arguments.hidden, "of the layer, in place of a preset");
  parser->add_option("--width", arguments.width, "of an expert");
  parser->add_option("--experts", arguments.experts, "of the layer");
  parser->add_option("--top-k", arguments.top_k, "experts a token");
  parser->add_option("--tokens", arguments.tokens, "of a rank, on average (default 1024)");
  parser->add_option("--dtype", arguments.dtype, "bf16 or fp32 (default bf16)");
  parser->add_option("--rounds", arguments.rounds, "steps of each dispatcher, behind one to warm up (default 5)");
  parser->add_option("--seed", arguments.seed, "of the routing (default 1)");
  parser->add_option("--threads-per-rank", arguments.threads_per_rank, "intra-op threads of each rank");
  parser->add_flag("--apart", arguments.apart, "ranks do not see each other's memory, as with processes");
  parser->add_option("--mb-per-second", arguments.mb_per_second,
                     "of each rank's link; work goes on meanwhile. Implies --apart");
  parser->add_option("--json", arguments.json, "file for all figures");
  parse(*parser, words);
  if (arguments.what == "moe") return arguments;
  if (arguments.what.empty()) {
    throw mistake("what", "it is not said what to time").hint("Use moe: `expertmesh bench moe --workload balanced`.");
  }
  throw mistake("what", "there is no bench \"{}\"", arguments.what).hint("Use moe.");
}

// Each number of ranks against the sizes, before any of them runs.
void check_ranks(const Bench& bench, int ranks) {
  const int64_t ep = bench.ep_size.value_or(ranks);
  if (ranks % ep != 0) {
    throw mistake("ep-size", "--ep-size {} does not divide {} ranks", ep, ranks)
        .hint("Use a size that divides --ranks.");
  }
  if (bench.layer.experts % ep != 0) {
    throw mistake("experts", "{} ranks do not divide {} experts", ep, bench.layer.experts)
        .hint(bench.ep_size ? "Use another --ep-size or --experts." : "Use other --ranks or --experts, or --ep-size.");
  }
}

Bench check(const BenchArguments& arguments) {
  Bench bench{.workloads = workloads_of(arguments.workload),
              .ranks = ranks_of(arguments),
              .contenders = {},
              .layer = shape_of(arguments),
              .launch = {.ranks = {}, .threads_per_rank = arguments.threads_per_rank},
              .ep_size = arguments.ep_size,
              .rounds = static_cast<int>(positive("rounds", arguments.rounds)),
              .seed = static_cast<uint64_t>(positive("seed", arguments.seed)),
              .bytes_per_second = arguments.mb_per_second.value_or(0) * 1e6,
              .apart = arguments.apart || arguments.mb_per_second.has_value(),
              .json = arguments.json};
  choose_dispatchers(arguments.dispatchers, bench);
  bench.layer.dtype = dtype_of(arguments.dtype);
  if (arguments.mb_per_second && !(*arguments.mb_per_second > 0)) {
    throw mistake("mb-per-second", "--mb-per-second {} is not above 0", *arguments.mb_per_second)
        .hint("Leave it out for links that take no time.");
  }
  if (bench.ep_size) positive("ep-size", *bench.ep_size);
  for (const int ranks : bench.ranks) check_ranks(bench, ranks);
  return bench;
}

std::string links_text(const Bench& bench) {
  if (bench.bytes_per_second > 0) return fmt::format("{} MB/s", bench.bytes_per_second / 1e6);
  return bench.apart ? "free, apart" : "free";
}

std::shared_ptr<comm::Group> make_ep(const Bench& bench, comm::World& world, double bytes_per_second) {
  const int size = static_cast<int>(bench.ep_size.value_or(world.size()));
  std::vector<std::vector<int>> groups;
  for (int first = 0; first < world.size(); first += size) {
    groups.emplace_back(static_cast<size_t>(size));
    std::iota(groups.back().begin(), groups.back().end(), first);
  }
  std::shared_ptr<comm::Group> ep = world.make_group("ep", groups);
  return bench.apart ? comm::make_faulty_group(std::move(ep), {.bytes_per_second = bytes_per_second}) : ep;
}

// All workloads on one world; on its first rank `take` gets each.
void run_world(const Bench& bench, comm::World& world, const std::function<void(const BenchRun&)>& take) {
  if (bench.ranks.empty()) check_ranks(bench, world.size());
  const std::shared_ptr<comm::Group> ep = make_ep(bench, world, bench.bytes_per_second);
  const std::shared_ptr<comm::Group> free_ep = bench.bytes_per_second > 0 ? make_ep(bench, world, 0) : nullptr;
  std::vector<moe::ContenderTime> auto_times;
  if (bench.asks_auto) {
    auto_times =
        moe::measure_dispatchers(bench.layer, moe::distinct(bench.contenders, bench.layer, bench.shares_memory()), *ep,
                                 world.all(), moe::kAutoSeconds);
  }
  for (const moe::WorkloadInfo& workload : bench.workloads) {
    const moe::WorkloadShape shape{.workload = workload.workload,
                                   .ranks = ep->size(),
                                   .tokens = bench.layer.tokens,
                                   .experts = bench.layer.experts,
                                   .top_k = bench.layer.top_k,
                                   .seed = bench.seed};
    moe::WorkloadTimes times =
        moe::time_workload(shape, bench.layer, bench.contenders, bench.rounds, *ep, world.all(), free_ep.get());
    if (world.rank() != 0) continue;
    take({.workload = workload,
          .layer = bench.layer,
          .ranks = world.size(),
          .ep_size = ep->size(),
          .threads = at::get_num_threads(),
          .engine = std::string(world.engine()),
          .links = links_text(bench),
          .bytes_per_second = bench.bytes_per_second,
          .contenders = bench.contenders,
          .times = std::move(times),
          .auto_times = auto_times});
  }
}

}  // namespace

void run_bench(const Arguments& words) {
  const Bench bench = check(parse_arguments(words));
  std::optional<OutputFile> file;
  base::Json::Array runs;
  const auto take = [&](const BenchRun& run) {
    fmt::print("{}\n", bench_table(run));
    std::fflush(stdout);
    runs.emplace_back(bench_json(run));
  };
  const auto run = [&](comm::World& world) {
    if (world.rank() == 0 && !bench.json.empty() && !file)
      file.emplace(bench.json);  // fails before anything is measured
    run_world(bench, world, take);
  };
  std::vector<std::optional<int>> starts(bench.ranks.begin(), bench.ranks.end());
  if (starts.empty()) starts.emplace_back();
  for (const std::optional<int> ranks : starts) {
    LaunchOptions options = bench.launch;
    options.ranks = ranks;
    launch(options, [](int /*world_size*/) {}, run);
  }
  if (!file || runs.empty()) return;
  file->append(base::dump_json(base::Json::Object{{"build", base::build_id()}, {"runs", std::move(runs)}},
                               base::JsonStyle::kPython) +
               "\n");
  file->finish();
}

}  // namespace expertmesh::app
