// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/amx.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace expertmesh::ops::cpu {
namespace {

constexpr uint32_t kOsSavesState = 1U << 27;              // leaf 1, ecx
constexpr uint32_t kBf16Tiles = (1U << 22) | (1U << 24);  // leaf 7, edx: AMX-BF16 and AMX-TILE
constexpr uint32_t kTileState = (1U << 17) | (1U << 18);  // XCR0: configuration and data

bool processor_has_amx() {
  const bool has_vectors = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                           __builtin_cpu_supports("avx512bf16");
  if (!has_vectors) return false;
  uint32_t a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & kOsSavesState) == 0) return false;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & kBf16Tiles) != kBf16Tiles) return false;
  uint32_t low = 0, high = 0;
  asm("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (low & kTileState) == kTileState;
}

// Linux gives a process the registers' 8 KiB of state only on request.
bool ask_permission() {
  constexpr int kRequestState = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, of asm/prctl.h
  return syscall(SYS_arch_prctl, kRequestState, kTileData) == 0;
}

}  // namespace

AmxState find_amx_state(bool processor_has_it, bool (*ask_permission)()) {
  if (!processor_has_it) return AmxState::kAbsent;
  return ask_permission() ? AmxState::kUsable : AmxState::kRefused;
}

AmxState amx_state() {
  static const AmxState state = find_amx_state(processor_has_amx(), ask_permission);
  return state;
}

std::string_view amx_state_text(AmxState state) {
  switch (state) {
    case AmxState::kUsable:
      return "usable";
    case AmxState::kAbsent:
      return "not in this processor";
    case AmxState::kRefused:
      return "refused by the operating system";
  }
  return "";
}

}  // namespace expertmesh::ops::cpu
