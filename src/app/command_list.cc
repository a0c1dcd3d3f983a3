// SPDX-License-Identifier: Apache-2.0
// `expertmesh list models|dispatchers|kernels|presets|converters`
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>

#include "app/command.h"
#include "app/usage.h"
#include "base/error.h"
#include "config/suggest.h"
#include "data/convert/converter.h"
#include "model/registry.h"
#include "moe/dispatcher.h"
#include "ops/cpu/amx.h"
#include "ops/cpu/expert_kernels.h"
#include "ops/cpu/pair_product.h"
#include "ops/operators.h"

namespace expertmesh::app {
namespace {

using Rows = std::vector<std::vector<std::string>>;

// Columns as wide as their widest entry, two spaces apart.
void print_rows(const Rows& rows) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i)
      line += i + 1 < row.size() ? fmt::format("{:<{}}  ", row[i], widths[i]) : row[i];
    std::puts(line.c_str());
  }
}

void list_models() {
  Rows rows{{"MODEL_TYPE", "EXPERT MODULES"}};
  for (const auto& spec : model::model_specs())
    rows.push_back({std::string(spec.model_type), std::string(spec.expert_modules)});
  print_rows(rows);
}

void list_dispatchers() {
  Rows rows{{"DISPATCHER", "STATUS", "NEEDS"}};
  for (const auto& row : moe::dispatchers())
    rows.push_back({std::string(row.name), std::string(row.status), std::string(row.needs)});
  print_rows(rows);
}

// What runs here where kernel_config is left out, and on what.
std::string chosen_here(const ops::OperatorInfo& row) {
  return row.is_native ? fmt::format("chosen ({})", ops::native_isa()) : "on request";
}

// Why the bf16 products of experts run on one instruction set and not on another.
std::string products_here(const ops::cpu::ExpertKernels& kernels, bool is_chosen) {
  if (kernels.runs_here()) return is_chosen ? "chosen" : "slower";
  if (&kernels == &ops::cpu::kExpertKernelsAmx) return std::string(ops::cpu::amx_state_text(ops::cpu::amx_state()));
  return "not in this processor";
}

void list_expert_products() {
  Rows rows{{"EXPERTS IN BF16", "HERE"}};
  const auto* const best = ops::cpu::best_expert_kernels();
  for (const auto* kernels : ops::cpu::kExpertKernels) {
    rows.push_back({std::string(kernels->name), products_here(*kernels, kernels == best)});
  }
  rows.push_back({"library", best ? "for fp32" : "chosen"});
  print_rows(rows);
  if (ops::cpu::has_pair_products()) {
    fmt::print("\nAttention and the head with its loss multiply bf16 on {}.\n", ops::cpu::pair_products_name());
  }
}

void list_kernels() {
  Rows rows{{"OPERATOR", "KERNEL", "HERE", "DEVICE", "DTYPES", "TAKES", "WHAT"}};
  for (const auto& row : ops::operator_table()) {
    rows.push_back({std::string(row.op), std::string(row.kernel), chosen_here(row), std::string(row.device),
                    std::string(row.dtypes), std::string(row.takes), std::string(row.summary)});
  }
  print_rows(rows);
  fmt::print(
      "\nNative kernels are compiled for avx512, avx2 and any x86-64; this processor runs {}. They are chosen where "
      "kernel_config is left out;\n`kernel_config.name: reference` takes plain ATen instead, `flash_attn: eager` does "
      "so "
      "for attention alone.\n",
      ops::native_isa());
  std::puts("");
  list_expert_products();
}

void list_presets() {
  Rows rows{{"PRESET", "MODEL_TYPE", "WHAT"}};
  for (const auto& spec : model::model_specs()) {
    for (const auto& preset : spec.presets()) {
      rows.push_back({std::string(preset.name), std::string(spec.model_type), std::string(preset.description)});
    }
  }
  print_rows(rows);
}

void list_converters() {
  Rows rows{{"CONVERTER", "ROWS"}};
  for (const auto& row : data::converters()) {
    rows.push_back({row.name.empty() ? "(left out)" : std::string(row.name), std::string(row.about)});
  }
  print_rows(rows);
}

struct Listing {
  std::string_view what;
  void (*print)();
};
constexpr Listing kListings[] = {{"models", &list_models},
                                 {"dispatchers", &list_dispatchers},
                                 {"kernels", &list_kernels},
                                 {"presets", &list_presets},
                                 {"converters", &list_converters}};

}  // namespace

void run_list(const Arguments& arguments) {
  std::string what;
  auto parser = make_parser("list");
  parser->add_option("WHAT", what, "models, dispatchers, kernels, presets or converters");
  parse(*parser, arguments);
  std::vector<std::string> names;
  for (const Listing& listing : kListings) {
    if (listing.what == what) return listing.print();
    names.emplace_back(listing.what);
  }
  if (what.empty()) {
    throw base::Error(base::Code::kUsage, "app/list", "it is not said what to list")
        .hint(fmt::format("Use one of {}: `expertmesh list {}`.", config::join_names(names), names.front()));
  }
  const auto near = config::try_nearest(what, names);
  throw base::make_error(base::Code::kUsage, "app/list", "there is no list of \"{}\"", what)
      .hint(near ? fmt::format("Did you mean {}?", *near) : fmt::format("Use one of {}.", config::join_names(names)));
}

}  // namespace expertmesh::app
