// SPDX-License-Identifier: Apache-2.0
// The commands of the program: one row of the table and one file each.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace expertmesh::app {

using Arguments = std::vector<std::string>;

struct Command {
  std::string_view name;
  std::string_view alias;  // another name for the same; empty: none
  std::string_view summary;
  std::string_view example;
  void (*run)(const Arguments& arguments);  // throws base::Error
};

std::span<const Command> commands();

// Process-wide settings that must be made before anything else: allocator, signals. Once, from main.
void prepare_process();

// Runs one command line and returns the exit code; the only place that catches errors and prints them.
int run(const Arguments& arguments);

void run_sft(const Arguments& arguments);
void run_score(const Arguments& arguments);
void run_generate(const Arguments& arguments);
void run_chat(const Arguments& arguments);
void run_init(const Arguments& arguments);
void run_list(const Arguments& arguments);
void run_bench(const Arguments& arguments);
void run_version(const Arguments& arguments);

}  // namespace expertmesh::app
