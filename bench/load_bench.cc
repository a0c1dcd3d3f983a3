// SPDX-License-Identifier: Apache-2.0
// Speed of loading weights: load_bench DIRECTORY [--mib N] [--repeat N]
// Writes a model of about N MiB (per-expert tensors, bf16) into DIRECTORY, then loads it in turns with a plain read of
// the same bytes into the same memory. Rows: whole parameters, the slices of 4 ranks (ep 2, efsdp 2), and both to fp32.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/median.h"
#include "ckpt/load_plan.h"
#include "ckpt/safetensors_writer.h"

namespace {

namespace base = expertmesh::base;
using namespace expertmesh::ckpt;

constexpr int64_t kHidden = 1024, kIntermediate = 512, kExperts = 16;

WeightTable make_table(int64_t layers) {
  WeightTable table;
  table.add("model.embed_tokens.weight", {16'384, kHidden});
  for (int64_t layer = 0; layer < layers; ++layer) {
    const std::string prefix = fmt::format("model.layers.{}.", layer);
    table.add(prefix + "self_attn.q_proj.weight", {kHidden, kHidden});
    table.add_experts(prefix + "mlp.experts", kExperts, kIntermediate, kHidden);
  }
  return table;
}

void write_model(base::FileSystem& fs, const std::string& directory, const WeightTable& table) {
  std::vector<TensorSpec> specs;
  for (const WeightEntry& entry : table.entries()) {
    for (const SourcePiece& piece : entry.layouts.front().pieces)
      specs.push_back({piece.name, DType::kBF16, piece.shape});
  }
  SafetensorsWriter writer(fs, base::join_path(directory, "model.safetensors"), plan_safetensors(specs));
  std::vector<std::byte> bytes;
  for (size_t i = 0; i < writer.plan().tensors.size(); ++i) {
    bytes.assign(writer.plan().tensors[i].bytes(), std::byte{0x3c});
    writer.write(i, 0, bytes);
  }
  writer.finish();
}

// What one rank of ep 2 x efsdp 2 keeps: half the experts and half of dim 1, a quarter of everything else.
Slice slice_of(const WeightEntry& entry, int rank, int ranks) {
  Slice slice = Slice::whole(entry.shape);
  const auto cut = [&](size_t dim, int64_t part, int64_t parts) {
    const int64_t size = slice.end[dim];
    slice.begin[dim] = size * part / parts;
    slice.end[dim] = size * (part + 1) / parts;
  };
  if (ranks == 1) return slice;
  if (entry.expert_dim < 0) {
    cut(0, rank, 4);
  } else {
    cut(0, rank / 2, 2);
    cut(1, rank % 2, 2);
  }
  return slice;
}

double seconds_of(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void load(const LoadPlan& plan, int ranks, DType dtype, std::vector<std::byte>& memory) {
  size_t at = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    for (const WeightEntry& entry : plan.table().entries()) {
      const Slice slice = slice_of(entry, rank, ranks);
      plan.load_slice(entry.name, slice, memory.data() + at, dtype);
      at += static_cast<size_t>(slice.numel()) * dtype_bytes(dtype);
    }
  }
}

void plain_read(const base::ReadableFile& file, std::vector<std::byte>& memory) {
  constexpr uint64_t kChunk = 1 << 20;
  for (uint64_t at = 0; at < file.size(); at += kChunk) {
    const uint64_t count = std::min(kChunk, file.size() - at);
    file.pread(std::span(memory).subspan(at, count), at);
  }
}

int run(const std::string& directory, int64_t mib, int repeat) {
  const auto fs = base::make_posix_file_system(base::Code::kModel);
  fs->make_directories(directory);
  const WeightTable table = make_table(std::max<int64_t>(1, mib / 50));
  write_model(*fs, directory, table);
  const auto files = std::make_shared<const ModelFiles>(*fs, directory);
  const LoadPlan plan(files, table);
  const auto file = fs->open_read(base::join_path(directory, "model.safetensors"));
  std::vector<std::byte> memory(2 * file->size());
  const auto gib = static_cast<double>(file->size()) / (1 << 30);
  fmt::print("{:.2f} GiB in {} tensors\n", gib, files->tensors().size());
  struct Row {
    const char* name;
    int ranks;
    DType dtype;
  };
  for (const Row& row : {Row{"whole, bf16", 1, DType::kBF16}, Row{"slices of 4 ranks, bf16", 4, DType::kBF16},
                         Row{"whole, to fp32", 1, DType::kF32}, Row{"slices of 4 ranks, to fp32", 4, DType::kF32}}) {
    std::vector<double> ratios, loads;
    for (int i = 0; i < repeat; ++i) {
      const double plain = seconds_of([&] { plain_read(*file, memory); });
      loads.push_back(seconds_of([&] { load(plan, row.ranks, row.dtype, memory); }));
      ratios.push_back(plain / loads.back());
    }
    fmt::print("{:28} {:6.2f} GiB/s, {:4.0f}% of a plain read\n", row.name, gib / base::median(loads),
               100 * base::median(ratios));
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    fmt::print(stderr, "load_bench DIRECTORY [--mib N] [--repeat N]\n");
    return 2;
  }
  int64_t mib = 1000;
  int repeat = 5;
  for (int i = 2; i + 1 < argc; i += 2) {
    const std::string_view flag = argv[i];
    const int64_t value = std::strtoll(argv[i + 1], nullptr, 10);
    if (flag == "--mib") mib = value;
    if (flag == "--repeat") repeat = static_cast<int>(value);
  }
  try {
    return run(argv[1], mib, repeat);
  } catch (const base::Error& error) {
    fmt::print(stderr, "{}\n", error.text());
    return static_cast<int>(error.code());
  }
}
