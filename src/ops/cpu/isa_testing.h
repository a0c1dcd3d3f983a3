// SPDX-License-Identifier: Apache-2.0
// For tests: the instruction sets that kernels are compiled for, each in turn, as far as this processor has them.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "ops/cpu/amx.h"
#include "ops/cpu/vec.h"

namespace expertmesh::ops::cpu {

struct IsaLevel {
  const char* name = "";
  InstructionSets sets;
  bool operator==(const IsaLevel&) const = default;
};

constexpr IsaLevel kIsaLevels[] = {{"X86", {Isa::kBaseline}},
                                   {"Avx2", {Isa::kAvx2}},
                                   {"Avx512", {Isa::kAvx512}},
                                   {"Avx512Bf16", {Isa::kAvx512, true, true}},
                                   {"Amx", {Isa::kAvx512, true, true, true}}};

inline bool processor_has(const IsaLevel& level) {
  const InstructionSets own = processor_sets();
  return level.sets.isa <= own.isa && (!level.sets.has_bf16 || own.has_bf16) &&
         (!level.sets.may_use_tiles || has_amx());
}

// As long as it lives.
class UseIsa {
 public:
  explicit UseIsa(const IsaLevel& level) : before_(instruction_sets()) { TEST_use_instruction_sets(level.sets); }
  ~UseIsa() { TEST_use_instruction_sets(before_); }
  UseIsa(const UseIsa&) = delete;
  UseIsa& operator=(const UseIsa&) = delete;

 private:
  InstructionSets before_;
};

template <typename Body>
void for_each_isa(const Body& body) {
  for (const IsaLevel& level : kIsaLevels) {
    if (!processor_has(level)) continue;
    SCOPED_TRACE(level.name);
    const UseIsa use(level);
    body();
  }
}

}  // namespace expertmesh::ops::cpu
