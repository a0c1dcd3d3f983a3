// SPDX-License-Identifier: Apache-2.0
// `expertmesh version`
#include <ATen/Version.h>
#include <fmt/format.h>
#include <torch/csrc/api/include/torch/version.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <thread>

#include "app/command.h"
#include "app/usage.h"
#include "base/version.h"

namespace expertmesh::app {
namespace {

std::string processor_features() {
  std::string features;
  const auto add = [&](bool has, const char* name) {
    if (has) features += std::string(features.empty() ? "" : " ") + name;
  };
  __builtin_cpu_init();
  add(__builtin_cpu_supports("avx2") != 0, "avx2");
  add(__builtin_cpu_supports("avx512f") != 0, "avx512f");
  add(__builtin_cpu_supports("avx512bf16") != 0, "avx512_bf16");
  add(__builtin_cpu_supports("amx-bf16") != 0, "amx_bf16");
  return features.empty() ? "none of avx2, avx512f, avx512_bf16, amx_bf16" : features;
}

}  // namespace

void run_version(const Arguments& arguments) {
  auto parser = make_parser("version");
  parse(*parser, arguments);
  fmt::print("expertmesh  {}\n", base::build_id());
  fmt::print("compiler    g++ {}\n", __VERSION__);
  fmt::print("libtorch    {}\n", TORCH_VERSION);
  fmt::print("processor   {} threads, {}\n", std::thread::hardware_concurrency(), processor_features());
  fmt::print("engines     single, threads, gloo\n");
}

}  // namespace expertmesh::app
