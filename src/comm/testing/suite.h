// SPDX-License-Identifier: Apache-2.0
// What every engine must do, as checks that run on each rank of a world of any size. Used by the tests of the threads
// engine and of the c10d engine; results are compared to the bit with plain loops in rank order.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "comm/world.h"

namespace expertmesh::comm::testing {

inline uint32_t scramble(uint64_t a, uint64_t b) {
  uint64_t x = a * 0x9e3779b97f4a7c15ULL + b * 0xbf58476d1ce4e5b9ULL + 0x94d049bb133111ebULL;
  x ^= x >> 31;
  x *= 0xd6e8feb86659fd93ULL;
  x ^= x >> 29;
  return static_cast<uint32_t>(x);
}

// Magnitudes from 2^-8 to 2^7, so that sums depend on their order.
inline float noise(int rank, int64_t index, int salt = 0) {
  const uint32_t bits =
      scramble(static_cast<uint64_t>(rank) * 1000 + static_cast<uint64_t>(salt) + 1, static_cast<uint64_t>(index));
  const float scale = static_cast<float>(1U << (bits % 16)) / 256.0F;
  return (static_cast<float>(bits >> 8) / 8388608.0F - 1.0F) * scale;
}

inline std::vector<float> noise_vector(int rank, int64_t count, int salt = 0) {
  std::vector<float> values(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) values[static_cast<size_t>(i)] = noise(rank, i, salt);
  return values;
}

inline std::vector<uint16_t> to_bf16(const std::vector<float>& values) {
  std::vector<uint16_t> bits;
  bits.reserve(values.size());
  for (const float value : values) bits.push_back(base::float_to_bf16(value));
  return bits;
}

inline std::vector<int64_t> uneven_lens(int size, int salt) {
  std::vector<int64_t> lens;
  for (int rank = 0; rank < size; ++rank) {
    const uint32_t bits = scramble(static_cast<uint64_t>(salt), static_cast<uint64_t>(rank));
    lens.push_back(bits % 4 == 0 ? 0 : static_cast<int64_t>(bits % 777));
  }
  return lens;
}

template <typename T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

// The full tensor [rows, sum(lens)] of which rank r holds columns of lens[r].
struct Split {
  int64_t rows;
  std::vector<int64_t> lens;
  int64_t width() const { return std::accumulate(lens.begin(), lens.end(), int64_t{0}); }
  int64_t offset(int rank) const { return std::accumulate(lens.begin(), lens.begin() + rank, int64_t{0}); }
  template <typename T>
  std::vector<T> slice(const std::vector<T>& full, int rank) const {
    std::vector<T> part;
    for (int64_t row = 0; row < rows; ++row) {
      const auto begin = full.begin() + row * width() + offset(rank);
      part.insert(part.end(), begin, begin + lens[static_cast<size_t>(rank)]);
    }
    return part;
  }
};

inline void check_gather(Group& group, const Split& split) {
  const std::vector<float> wanted = noise_vector(0, split.rows * split.width());
  const std::vector<uint16_t> wanted_bf16 = to_bf16(wanted);
  const std::vector<float> local = split.slice(wanted, group.rank());
  const std::vector<uint16_t> local_bf16 = split.slice(wanted_bf16, group.rank());
  std::vector<float> full(wanted.size(), -1.0F);
  std::vector<uint16_t> full_bf16(wanted.size(), 0xffff);
  group.all_gather({{.local = local.data(), .full = full.data(), .rows = split.rows, .lens = split.lens},
                    {.local = local_bf16.data(),
                     .full = full_bf16.data(),
                     .rows = split.rows,
                     .lens = split.lens,
                     .dtype = DType::kBF16}},
                   "gather");
  EXPECT_TRUE(same_bits(full, wanted));
  EXPECT_TRUE(same_bits(full_bf16, wanted_bf16));
}

inline void check_all_gather(World& world) {
  const int size = world.size();
  check_gather(world.all(), {1, std::vector<int64_t>(static_cast<size_t>(size), 64)});
  check_gather(world.all(), {5, std::vector<int64_t>(static_cast<size_t>(size), 33)});
  for (int salt = 0; salt < 4; ++salt) check_gather(world.all(), {1 + salt, uneven_lens(size, salt)});
  check_gather(world.all(), {3, std::vector<int64_t>(static_cast<size_t>(size), 0)});
  check_gather(world.all(), {0, std::vector<int64_t>(static_cast<size_t>(size), 4)});
  std::vector<int64_t> only_last(static_cast<size_t>(size), 0);
  only_last.back() = 10007;
  check_gather(world.all(), {2, only_last});
}

// A shard may already lie at its place in the full tensor.
inline void check_all_gather_in_place(World& world) {
  const Split split{1, std::vector<int64_t>(static_cast<size_t>(world.size()), 100)};
  const std::vector<float> wanted = noise_vector(0, split.width());
  std::vector<float> full(wanted.size(), 0.0F);
  const std::vector<float> local = split.slice(wanted, world.rank());
  float* place = full.data() + split.offset(world.rank());
  std::copy(local.begin(), local.end(), place);
  world.all().all_gather({{.local = place, .full = full.data(), .lens = split.lens}}, "in place");
  EXPECT_TRUE(same_bits(full, wanted));
}

inline std::vector<float> ordered_sum(int size, int64_t count, int salt, bool is_bf16) {
  std::vector<float> sum(static_cast<size_t>(count));
  for (int rank = 0; rank < size; ++rank) {
    const std::vector<float> values = noise_vector(rank, count, salt);
    for (size_t i = 0; i < sum.size(); ++i) {
      const float value = is_bf16 ? base::bf16_to_float(base::float_to_bf16(values[i])) : values[i];
      sum[i] = rank == 0 ? value : sum[i] + value;
    }
  }
  return sum;
}

inline void check_scatter(Group& group, const Split& split, int salt) {
  const int64_t count = split.rows * split.width();
  const std::vector<float> mine = noise_vector(group.rank(), count, salt);
  const std::vector<uint16_t> mine_bf16 = to_bf16(mine);
  const auto wanted = split.slice(ordered_sum(group.size(), count, salt, false), group.rank());
  auto wanted_bf16 = split.slice(ordered_sum(group.size(), count, salt, true), group.rank());
  std::vector<float> local(wanted.size(), -1.0F);
  std::vector<float> local_bf16(wanted.size());
  for (size_t i = 0; i < local_bf16.size(); ++i) {
    local_bf16[i] = noise(7, static_cast<int64_t>(i));
    wanted_bf16[i] = local_bf16[i] + wanted_bf16[i];
  }
  group.reduce_scatter({{.full = mine.data(), .local = local.data(), .rows = split.rows, .lens = split.lens},
                        {.full = mine_bf16.data(),
                         .local = local_bf16.data(),
                         .rows = split.rows,
                         .lens = split.lens,
                         .dtype = DType::kBF16,
                         .accumulate = true}},
                       "scatter");
  EXPECT_TRUE(same_bits(local, wanted));
  EXPECT_TRUE(same_bits(local_bf16, wanted_bf16));
}

inline void check_reduce_scatter(World& world) {
  const int size = world.size();
  check_scatter(world.all(), {1, std::vector<int64_t>(static_cast<size_t>(size), 3000)}, 1);
  check_scatter(world.all(), {7, std::vector<int64_t>(static_cast<size_t>(size), 33)}, 2);
  for (int salt = 3; salt < 7; ++salt) check_scatter(world.all(), {salt - 2, uneven_lens(size, salt)}, salt);
  check_scatter(world.all(), {2, std::vector<int64_t>(static_cast<size_t>(size), 0)}, 8);
}

template <typename T>
T reduce_two(T a, T b, ReduceOp op) {
  if (op == ReduceOp::kSum) return a + b;
  if (op == ReduceOp::kMax) return b > a ? b : a;
  return b < a ? b : a;
}

template <typename T>
void check_reduce_type(Group& group, int64_t count, ReduceOp op, DType dtype) {
  std::vector<T> mine(static_cast<size_t>(count));
  std::vector<T> wanted(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    const auto at = static_cast<size_t>(i);
    mine[at] = static_cast<T>(noise(group.rank(), i) * 1000.0F);
    wanted[at] = static_cast<T>(noise(0, i) * 1000.0F);
    for (int rank = 1; rank < group.size(); ++rank) {
      wanted[at] = reduce_two(wanted[at], static_cast<T>(noise(rank, i) * 1000.0F), op);
    }
  }
  group.all_reduce({{.data = mine.data(), .count = count, .dtype = dtype}}, op, "reduce");
  EXPECT_TRUE(same_bits(mine, wanted)) << count << " elements of " << base::dtype_name(dtype);
}

inline void check_reduce_bf16(Group& group, int64_t count) {
  std::vector<uint16_t> mine = to_bf16(noise_vector(group.rank(), count));
  const std::vector<uint16_t> wanted = group.size() == 1 ? mine : to_bf16(ordered_sum(group.size(), count, 0, true));
  group.all_reduce({{.data = mine.data(), .count = count, .dtype = DType::kBF16}}, ReduceOp::kSum, "bf16");
  EXPECT_TRUE(same_bits(mine, wanted)) << count << " elements";
}

inline void check_all_reduce(World& world) {
  Group& group = world.all();
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin}) {
    for (const int64_t count : {0, 1, 7, 500, 2048, 2049, 40001}) {
      check_reduce_type<float>(group, count, op, DType::kF32);
      check_reduce_type<double>(group, count, op, DType::kF64);
      check_reduce_type<int64_t>(group, count, op, DType::kI64);
    }
  }
  for (const int64_t count : {0, 1, 7, 4095, 4097, 50001}) check_reduce_bf16(group, count);
}

inline void check_all_reduce_parts(World& world) {
  const int size = world.size();
  for (const int64_t count : {5, 30011}) {
    std::vector<float> a = noise_vector(world.rank(), count, 1);
    std::vector<uint16_t> b = to_bf16(noise_vector(world.rank(), 3, 2));
    std::vector<int64_t> c = {world.rank(), 1};
    world.all().all_reduce({{.data = a.data(), .count = count},
                            {.data = b.data(), .count = 3, .dtype = DType::kBF16},
                            {.data = c.data(), .count = 2, .dtype = DType::kI64}},
                           ReduceOp::kSum, "parts");
    EXPECT_TRUE(same_bits(a, ordered_sum(size, count, 1, false)));
    EXPECT_TRUE(same_bits(b, to_bf16(ordered_sum(size, 3, 2, true))));
    EXPECT_EQ(c, (std::vector<int64_t>{size * (size - 1) / 2, size}));
  }
}

// A value that is not a number on one rank reaches all, also through max and min.
inline void check_nan(World& world) {
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin}) {
    float value = world.rank() == world.size() - 1 ? std::numeric_limits<float>::quiet_NaN() : 1.0F;
    world.all().all_reduce({{.data = &value, .count = 1}}, op, "nan");
    EXPECT_NE(value, value);
  }
}

inline uint64_t pair_key(int from, int to) { return static_cast<uint64_t>(from) * 64 + static_cast<uint64_t>(to); }

inline int64_t rows_between(int from, int to, int salt) {
  const uint32_t bits = scramble(pair_key(from, to), static_cast<uint64_t>(salt));
  return bits % 3 == 0 ? 0 : static_cast<int64_t>(bits % 50);
}

inline void check_exchange(Group& group, int64_t row_bytes, int salt) {
  const int me = group.rank();
  std::vector<int64_t> send_counts;
  std::vector<int64_t> recv_counts;
  std::vector<uint8_t> send;
  std::vector<uint8_t> wanted;
  const auto put = [row_bytes](std::vector<uint8_t>& bytes, int from, int to, int64_t rows) {
    for (int64_t i = 0; i < rows * row_bytes; ++i) {
      bytes.push_back(static_cast<uint8_t>(scramble(pair_key(from, to), static_cast<uint64_t>(i))));
    }
  };
  for (int peer = 0; peer < group.size(); ++peer) {
    send_counts.push_back(rows_between(me, peer, salt));
    recv_counts.push_back(rows_between(peer, me, salt));
    put(send, me, peer, send_counts.back());
    put(wanted, peer, me, recv_counts.back());
  }
  EXPECT_EQ(group.exchange_counts(send_counts, "counts"), recv_counts);
  std::vector<uint8_t> recv(wanted.size(), 0xee);
  group.all_to_all({.send = send.data(),
                    .send_counts = send_counts,
                    .recv = recv.data(),
                    .recv_counts = recv_counts,
                    .row_bytes = row_bytes},
                   "exchange");
  EXPECT_TRUE(same_bits(recv, wanted));
}

inline void check_all_to_all(World& world) {
  for (int salt = 0; salt < 6; ++salt) check_exchange(world.all(), salt == 5 ? 0 : 1 + salt * 129, salt);
  // All rows to one rank, and no rows at all.
  const auto n = static_cast<size_t>(world.size());
  std::vector<int64_t> none(n, 0);
  world.all().all_to_all({.send_counts = none, .recv_counts = none, .row_bytes = 8}, "no rows");
  std::vector<int64_t> to_first(n, 0);
  to_first[0] = 3;
  const std::vector<int64_t> from_all(n, world.rank() == 0 ? 3 : 0);
  const std::vector<int32_t> send(3, world.rank());
  std::vector<int32_t> recv(world.rank() == 0 ? 3 * n : 0, -1);
  world.all().all_to_all({.send = send.data(),
                          .send_counts = to_first,
                          .recv = recv.data(),
                          .recv_counts = from_all,
                          .row_bytes = sizeof(int32_t)},
                         "to the first");
  for (size_t i = 0; i < recv.size(); ++i) EXPECT_EQ(recv[i], static_cast<int32_t>(i / 3));
}

inline void check_broadcast(World& world) {
  for (int root = 0; root < world.size(); ++root) {
    for (const size_t count : {0, 1, 5000}) {
      std::vector<uint8_t> data(count, static_cast<uint8_t>(world.rank()));
      world.all().broadcast(std::as_writable_bytes(std::span(data)), root, "broadcast");
      EXPECT_EQ(data, std::vector<uint8_t>(count, static_cast<uint8_t>(root)));
    }
  }
}

inline void check_conveniences(World& world) {
  Group& group = world.all();
  const int size = group.size();
  EXPECT_EQ(group.all_reduce_int(group.rank() + 1, ReduceOp::kSum, "ints"), size * (size + 1) / 2);
  EXPECT_EQ(group.all_reduce_int(-group.rank(), ReduceOp::kMin, "ints"), 1 - size);
  EXPECT_EQ(group.all_reduce_int(INT64_MAX - size + group.rank(), ReduceOp::kMax, "ints"), INT64_MAX - 1);
  EXPECT_EQ(group.all_reduce_double(0.5 * group.rank(), ReduceOp::kMax, "doubles"), 0.5 * (size - 1));
  const std::string text(static_cast<size_t>(group.rank()) * 3, static_cast<char>('a' + group.rank()));
  const std::vector<std::string> texts = group.all_gather_text(text, "texts");
  ASSERT_EQ(static_cast<int>(texts.size()), size);
  for (int rank = 0; rank < size; ++rank) {
    EXPECT_EQ(texts[static_cast<size_t>(rank)],
              std::string(static_cast<size_t>(rank) * 3, static_cast<char>('a' + rank)));
  }
  group.barrier("end");
}

// Several calls in flight; waited for in order, in reverse order, or never.
inline void check_async(World& world) {
  constexpr int kCalls = 20;
  enum class How { kInOrder, kReverse, kDropped };
  for (const How how : {How::kInOrder, How::kReverse, How::kDropped}) {
    const std::vector<int64_t> lens(static_cast<size_t>(world.size()), 11);
    std::vector<std::vector<float>> locals;
    std::vector<std::vector<float>> fulls;
    std::vector<std::vector<float>> sums;
    std::vector<std::unique_ptr<Work>> works;
    for (int call = 0; call < kCalls; ++call) {
      locals.push_back(noise_vector(world.rank(), 11, call));
      fulls.emplace_back(static_cast<size_t>(11 * world.size()), 0.0F);
      sums.push_back(noise_vector(world.rank(), 100, call));
    }
    for (int call = 0; call < kCalls; ++call) {
      const auto at = static_cast<size_t>(call);
      if (call % 2 == 0) {
        works.push_back(world.all().all_gather_async(
            {{.local = locals[at].data(), .full = fulls[at].data(), .lens = lens}}, "async gather"));
      } else {
        works.push_back(
            world.all().all_reduce_async({{.data = sums[at].data(), .count = 100}}, ReduceOp::kSum, "async reduce"));
      }
    }
    if (how == How::kInOrder) {
      for (const auto& work : works) work->wait();
    } else if (how == How::kReverse) {
      for (auto work = works.rbegin(); work != works.rend(); ++work) (*work)->wait();
    }
    works.clear();
    for (int call = 0; call < kCalls; ++call) {
      const auto at = static_cast<size_t>(call);
      if (call % 2 == 1) {
        EXPECT_TRUE(same_bits(sums[at], ordered_sum(world.size(), 100, call, false)));
        continue;
      }
      for (int rank = 0; rank < world.size(); ++rank) {
        const std::vector<float> wanted = noise_vector(rank, 11, call);
        EXPECT_TRUE(std::equal(wanted.begin(), wanted.end(), fulls[at].begin() + 11L * rank));
      }
    }
  }
}

// Every rank reads all peers' numbers and leaves its own with each of them, again and again and with calls in flight.
inline void check_window(World& world) {
  Group& group = world.all();
  if (!group.shares_memory()) return;
  const int size = world.size();
  for (int round = 0; round < 40; ++round) {
    std::vector<int64_t> mine(1000, world.rank() + 100 * round);
    std::vector<int64_t> visits(static_cast<size_t>(size), -1);
    std::vector<float> ones{1.0F};
    const auto pending = group.all_reduce_async({{.data = ones.data(), .count = 1}}, ReduceOp::kSum, "before");
    void* const buffers[] = {mine.data(), round % 2 == 0 ? visits.data() : nullptr};
    const auto window = group.open_window(buffers, "visit");
    for (int peer = 0; peer < size; ++peer) {
      const auto* theirs = static_cast<const int64_t*>(window->buffer(peer, 0));
      EXPECT_EQ(theirs[0], peer + 100 * round);
      EXPECT_EQ(theirs[999], peer + 100 * round);
      auto* target = static_cast<int64_t*>(window->buffer(peer, 1));
      EXPECT_EQ(target == nullptr, round % 2 == 1);
      if (target != nullptr) target[world.rank()] = theirs[0] * world.rank();
    }
    window->close();
    std::fill(mine.begin(), mine.end(), -7);
    pending->wait();
    EXPECT_EQ(ones[0], static_cast<float>(size));
    for (int peer = 0; round % 2 == 0 && peer < size; ++peer) {
      EXPECT_EQ(visits[static_cast<size_t>(peer)], (world.rank() + 100 * round) * peer);
    }
  }
}

inline void check_wait_twice(World& world) {
  int64_t value = 1;
  const auto work =
      world.all().all_reduce_async({{.data = &value, .count = 1, .dtype = DType::kI64}}, ReduceOp::kSum, "twice");
  work->wait();
  work->wait();
  EXPECT_EQ(value, world.size());
}

// Neighbours, odds and evens, each alone: names, members and sums of the groups.
inline void check_groups(World& world) {
  std::vector<std::vector<int>> pairs;
  std::vector<std::vector<int>> parity(world.size() > 1 ? 2 : 1);
  std::vector<std::vector<int>> alone;
  std::vector<int> reversed;
  for (int rank = 0; rank < world.size(); ++rank) {
    if (rank % 2 == 0) pairs.emplace_back();
    pairs.back().push_back(rank);
    parity[static_cast<size_t>(rank % 2)].push_back(rank);
    alone.push_back({rank});
    reversed.insert(reversed.begin(), rank);
  }
  for (const auto& partition : {pairs, parity, alone, std::vector<std::vector<int>>{reversed}}) {
    const auto group = world.make_group("axis", partition);
    EXPECT_EQ(group->name(), "axis");
    EXPECT_EQ(group->members()[static_cast<size_t>(group->rank())], world.rank());
    int64_t wanted = 0;
    for (const int member : group->members()) wanted += member + 1;
    EXPECT_EQ(group->all_reduce_int(world.rank() + 1, ReduceOp::kSum, "sum of group"), wanted);
    check_exchange(*group, 24, 1);
    check_gather(*group, {2, uneven_lens(group->size(), 3)});
    check_scatter(*group, {2, uneven_lens(group->size(), 4)}, 4);
  }
}

inline uint64_t add_to_hash(uint64_t hash, const void* data, size_t bytes) {
  const auto* at = static_cast<const uint8_t*>(data);
  for (size_t i = 0; i < bytes; ++i) hash = (hash ^ at[i]) * 0x100000001b3ULL;
  return hash;
}

// Of the results of many reductions: equal on every engine.
inline uint64_t digest(World& world) {
  uint64_t hash = 0xcbf29ce484222325ULL;
  for (int round = 0; round < 6; ++round) {
    std::vector<float> a = noise_vector(world.rank(), 7777L * round, round);
    std::vector<uint16_t> b = to_bf16(noise_vector(world.rank(), 3333, round + 50));
    world.all().all_reduce({{.data = a.data(), .count = static_cast<int64_t>(a.size())},
                            {.data = b.data(), .count = static_cast<int64_t>(b.size()), .dtype = DType::kBF16}},
                           ReduceOp::kSum, "digest");
    hash = add_to_hash(hash, a.data(), a.size() * sizeof(float));
    hash = add_to_hash(hash, b.data(), b.size() * sizeof(uint16_t));
    const Split split{3, uneven_lens(world.size(), round)};
    const std::vector<float> full = noise_vector(world.rank(), split.rows * split.width(), round + 100);
    std::vector<float> local(static_cast<size_t>(split.rows * split.lens[static_cast<size_t>(world.rank())]));
    world.all().reduce_scatter({{.full = full.data(), .local = local.data(), .rows = 3, .lens = split.lens}}, "digest");
    hash = add_to_hash(hash, local.data(), local.size() * sizeof(float));
  }
  return static_cast<uint64_t>(world.all().all_reduce_int(static_cast<int64_t>(hash), ReduceOp::kSum, "digest"));
}

struct Check {
  const char* name;
  void (*run)(World&);
};

inline const std::vector<Check>& all_checks() {
  static const std::vector<Check> list = {
      {"AllGather", check_all_gather},
      {"AllGatherInPlace", check_all_gather_in_place},
      {"ReduceScatter", check_reduce_scatter},
      {"AllReduce", check_all_reduce},
      {"AllReduceParts", check_all_reduce_parts},
      {"Nan", check_nan},
      {"AllToAll", check_all_to_all},
      {"Broadcast", check_broadcast},
      {"Conveniences", check_conveniences},
      {"Async", check_async},
      {"WaitTwice", check_wait_twice},
      {"Window", check_window},
      {"Groups", check_groups},
  };
  return list;
}

}  // namespace expertmesh::comm::testing
