// SPDX-License-Identifier: Apache-2.0
// A rank thread that meets the library half set up is one in some hundred, so the test watches the set-up itself: this
// program's function of that name stands before the library's.
#include "ops/rank_thread.h"

#include <ATen/ops/cos.h>
#include <ATen/ops/zeros.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <thread>

namespace {

std::atomic<int> g_calls{0};
std::atomic<int> g_inside{0};
std::atomic<bool> g_is_shared{false};  // two threads were inside before the first one had left

}  // namespace

extern "C" int mkl_vml_serv_cpu_detect() {
  static const auto real = reinterpret_cast<int (*)()>(dlsym(RTLD_NEXT, "mkl_vml_serv_cpu_detect"));
  if (g_calls == 0 && ++g_inside > 1) g_is_shared = true;
  const int found = real();
  ++g_calls;
  return found;
}

namespace expertmesh::ops {
namespace {

// In a process of its own: the library is set up once.
void use_vector_functions_in_threads() {
  std::array<std::thread, 4> threads;
  std::atomic<int> num_begun{0}, num_late{0};
  for (std::thread& thread : threads) {
    thread = std::thread([&] {
      ++num_begun;
      while (num_begun < 4) std::this_thread::yield();
      begin_rank_thread(1);
      if (g_calls == 0) ++num_late;
      at::cos(at::zeros({64}, at::kFloat));
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (g_calls == 0) std::_Exit(3);  // cos of this library does not come this way
  std::_Exit(num_late > 0 || g_is_shared ? 1 : 0);
}

TEST(RankThreadDeathTest, VectorFunctionsAreSetUpBeforeTwoThreadsCallThem) {
  if (dlsym(RTLD_NEXT, "mkl_vml_serv_cpu_detect") == nullptr) GTEST_SKIP() << "the library is built without MKL";
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_EXIT(use_vector_functions_in_threads(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace expertmesh::ops
