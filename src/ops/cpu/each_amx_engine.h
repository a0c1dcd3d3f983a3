// SPDX-License-Identifier: Apache-2.0
// A test that runs twice: its kernel's template on emulated tiles, and the code that ships on the processor's own, or
// trapped.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "ops/cpu/amx_trapped.h"

namespace expertmesh::ops::cpu {

class EachAmxEngine : public testing::TestWithParam<bool> {
 public:
  static std::string name(const testing::TestParamInfo<bool>& tested) {
    return tested.param ? "AsItShips" : "Emulated";
  }

 protected:
  bool ships() const { return GetParam(); }
  void SetUp() override {
    if (!ships()) return;
    if (!__builtin_cpu_supports("avx512bf16")) GTEST_SKIP() << "this CPU has no AVX-512 BF16";
    if (!has_amx()) trapped_.emplace();
  }

 private:
  std::optional<TrappedTiles> trapped_;
};

}  // namespace expertmesh::ops::cpu
