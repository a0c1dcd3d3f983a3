// SPDX-License-Identifier: Apache-2.0
// What this machine can do at most with the caller's intra-op threads: bf16 products whose operands come from the first
// cache (on AMX where it has that), and reading and writing memory past the caches. Each takes some milliseconds, and
// is told by the threads' own clocks, so that other programs of a busy machine count little.
#pragma once

#include <ATen/Parallel.h>

#include <cstdint>
#include <cstring>
#include <ctime>
#include <numeric>
#include <vector>

#include "amx_probe.h"
#include "ops/cpu/bf16_vec.h"

namespace expertmesh {

class Roofline {
 public:
  Roofline() : memory_(kBytes / sizeof(uint64_t) + kLine) {
    at::parallel_for(0, at::get_num_threads(), 1, [&](int64_t begin, int64_t end) {
      for (int64_t part = begin; part < end; ++part) std::memset(part_of_memory(part), 1, part_bytes());
    });
  }

  // Sums of products of bf16 pairs by the instructions that are the fastest here, in GFLOP/s of all threads.
  double gflops() const {
    if (ops::cpu::has_amx()) {
      const double seconds = on_all_threads([](int64_t /*part*/) { amx_from_first_cache(kAmxSteps); });
      return 1e-9 * 4 * kDotFlop * static_cast<double>(kAmxSteps) * threads() / seconds;
    }
    const double seconds = on_all_threads([](int64_t /*part*/) {
      const ops::cpu::InstructionSets sets = ops::cpu::processor_sets();
      if (sets.prefers_dots) {
        products_avx512<true>();
      } else if (sets.isa == ops::cpu::Isa::kAvx512) {
        products_avx512<false>();
      } else if (sets.isa == ops::cpu::Isa::kAvx2) {
        fmas_avx2();
      }
    });
    return 1e-9 * static_cast<double>(kDots) * 64 * threads() / seconds;
  }

  double read_rate() const {  // bytes a second
    return bytes_a_second([&](int64_t part) {
      const uint64_t* p = part_of_memory(part);
      uint64_t sums[kLine] = {};
      for (int64_t i = 0, words = part_words(); i < words; i += kLine) {
        for (int64_t lane = 0; lane < kLine; ++lane) sums[lane] ^= p[i + lane];
      }
      for (const uint64_t sum : sums) keep(sum);
    });
  }

  // Around the caches, as gradients are written.
  double write_rate() const {
    return bytes_a_second([&](int64_t part) {
      auto* p = reinterpret_cast<__m128i*>(part_of_memory(part));
      const __m128i value = _mm_set1_epi8(2);
      for (int64_t i = 0, count = part_words() / 2; i < count; ++i) _mm_stream_si128(p + i, value);
      _mm_sfence();
    });
  }

 private:
  static constexpr size_t kBytes = size_t{256} << 20;
  static constexpr int64_t kLine = 8;           // words
  static constexpr int64_t kDots = 24000000;    // of 16 pairs, a thread
  static constexpr int64_t kAmxSteps = 400000;  // of four products of tiles, a thread

  static int threads() { return at::get_num_threads(); }
  static size_t part_bytes() { return kBytes / static_cast<size_t>(threads()) / 64 * 64; }
  static int64_t part_words() { return static_cast<int64_t>(part_bytes() / sizeof(uint64_t)); }
  uint64_t* part_of_memory(int64_t part) const {
    const auto address = reinterpret_cast<uintptr_t>(memory_.data());
    return const_cast<uint64_t*>(memory_.data()) + (64 - address % 64) % 64 / sizeof(uint64_t) + part * part_words();
  }
  template <typename T>
  static void keep(T value) {
    asm volatile("" ::"r"(value) : "memory");
  }

  static double thread_now() {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
  }

  // Seconds that a thread takes in the mean.
  template <typename Body>
  static double on_all_threads(const Body& body) {
    std::vector<double> seconds(static_cast<size_t>(threads()));
    at::parallel_for(0, threads(), 1, [&](int64_t begin, int64_t end) {
      for (int64_t part = begin; part < end; ++part) {
        const double start = thread_now();
        body(part);
        seconds[static_cast<size_t>(part)] = thread_now() - start;
      }
    });
    return std::accumulate(seconds.begin(), seconds.end(), 0.0) / static_cast<double>(threads());
  }

  template <typename Body>
  static double bytes_a_second(const Body& body) {
    return static_cast<double>(part_bytes()) * threads() / on_all_threads(body);
  }

  // 6 rows, broadcast 32 bits at a time, by 4 blocks of 16 columns: 10 loads for 24 products, which are dot products of
  // pairs, or FMAs in fp32, of which a pair needs two.
  template <bool kIsDots>
  EXPERTMESH_AVX512_TARGET static void products_avx512() {
    constexpr int kRows = 6, kBlocks = 4, kSteps = 64;
    alignas(64) static float a[kRows * kSteps] = {}, b[kBlocks * kSteps * 16] = {};
    __m512 sums[kRows][kBlocks];
    for (auto& row : sums) {
      for (__m512& sum : row) sum = _mm512_setzero_ps();
    }
    for (int64_t done = 0; done < kDots; done += kRows * kBlocks * kSteps / (kIsDots ? 1 : 2)) {
      asm volatile("" ::"r"(a), "r"(b) : "memory");  // the zeros are not known
      for (int step = 0; step < kSteps; ++step) {
        __m512 columns[kBlocks];
#pragma GCC unroll 4
        for (int j = 0; j < kBlocks; ++j) columns[j] = _mm512_load_ps(b + int64_t{16} * (j * kSteps + step));
#pragma GCC unroll 6
        for (int i = 0; i < kRows; ++i) {
          const __m512 row = _mm512_set1_ps(a[i * kSteps + step]);
#pragma GCC unroll 4
          for (int j = 0; j < kBlocks; ++j) {
            if constexpr (kIsDots) {
              ops::cpu::add_dots(sums[i][j], _mm512_castps_si512(row), _mm512_castps_si512(columns[j]));
            } else {
              sums[i][j] = _mm512_fmadd_ps(row, columns[j], sums[i][j]);
            }
          }
        }
      }
    }
    for (const auto& row : sums) {
      for (const __m512& sum : row) keep(_mm_cvtsi128_si32(_mm_castps_si128(_mm512_castps512_ps128(sum))));
    }
  }

  // 6 rows by 2 registers of 8 columns in fp32, twice for a pair: what bf16 without its own instruction comes to.
  [[gnu::target("avx2,fma")]] static void fmas_avx2() {
    constexpr int kRows = 6, kDepth = 128;
    alignas(64) static float a[kRows * kDepth] = {}, b[2 * kDepth * 8] = {};
    __m256 sums[kRows][2];
    for (auto& row : sums) row[0] = row[1] = _mm256_setzero_ps();
    // A product of 16 pairs is 32 multiplications: 4 of these instructions.
    for (int64_t done = 0; done < kDots; done += kRows * 2 * kDepth / 4) {
      asm volatile("" ::"r"(a), "r"(b) : "memory");  // the zeros are not known
      for (int k = 0; k < kDepth; ++k) {
        const __m256 low = _mm256_load_ps(b + int64_t{8} * k), high = _mm256_load_ps(b + int64_t{8} * (kDepth + k));
#pragma GCC unroll 6
        for (int i = 0; i < kRows; ++i) {
          const __m256 row = _mm256_broadcast_ss(a + int64_t{i} * kDepth + k);
          sums[i][0] = _mm256_fmadd_ps(row, low, sums[i][0]);
          sums[i][1] = _mm256_fmadd_ps(row, high, sums[i][1]);
        }
      }
    }
    for (const auto& row : sums) {
      for (const __m256& sum : row) keep(_mm_cvtsi128_si32(_mm_castps_si128(_mm256_castps256_ps128(sum))));
    }
  }

  std::vector<uint64_t> memory_;
};

}  // namespace expertmesh
