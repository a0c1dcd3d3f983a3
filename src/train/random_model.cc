// SPDX-License-Identifier: Apache-2.0
#include "train/random_model.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/rng.h"
#include "ckpt/hf_save.h"
#include "comm/world.h"
#include "data/tokenizer.h"
#include "model/registry.h"

namespace expertmesh::train {
namespace {

constexpr int64_t kChunkElements = 1 << 20;

double initializer_range(const base::Json& config) {
  const base::Json* range = config.find("initializer_range");
  return range != nullptr ? range->try_double().value_or(0.02) : 0.02;
}

void check_tokenizer(const RandomModelOptions& options, int64_t vocabulary_rows) {
  if (options.tokenizer_dir.empty()) return;
  const auto fs = base::make_posix_file_system(base::Code::kModel);
  const auto tokenizer = data::Tokenizer::load(*fs, options.tokenizer_dir);
  if (static_cast<int64_t>(tokenizer.vocab_size()) <= vocabulary_rows) return;
  throw base::make_error(base::Code::kModel, "model/vocab_size",
                         "the tokenizer has {} ids, the model's vocab_size is {}", tokenizer.vocab_size(),
                         vocabulary_rows)
      .at(options.where)
      .hint("Raise vocab_size to at least the number of ids.");
}

// Rows of dim 0 that make up about a chunk.
int64_t rows_per_chunk(const std::vector<int64_t>& shape) {
  int64_t row = 1;
  for (size_t i = 1; i < shape.size(); ++i) row *= shape[i];
  return std::max<int64_t>(1, kChunkElements / std::max<int64_t>(1, row));
}

// The log of a number spread evenly over 0.01 to 16, from a standard normal one.
float log_uniform(float normal) {
  const double part = 0.5 * std::erfc(-static_cast<double>(normal) / std::numbers::sqrt2);
  return static_cast<float>(std::log(0.01 + (16.0 - 0.01) * part));
}

void fill(const shard::Parameter& parameter, const base::RandomField& field, int64_t begin, std::span<float> out,
          float stddev) {
  switch (parameter.init()) {
    case shard::Init::kOnes:
      std::fill(out.begin(), out.end(), 1.0F);
      break;
    case shard::Init::kZeros:
      std::fill(out.begin(), out.end(), 0.0F);
      break;
    case shard::Init::kNormal:
      field.fill_normal(static_cast<uint64_t>(begin), out, 0.0F, stddev);
      break;
    case shard::Init::kLogUniform:
      field.fill_normal(static_cast<uint64_t>(begin), out, 0.0F, 1.0F);
      for (float& x : out) x = log_uniform(x);
      break;
  }
}

class Writer {
 public:
  Writer(const RandomModelOptions& options, uint64_t total) : options_(options), total_(total) {}

  void write(ckpt::ModelSaver& saver, const shard::Parameter& parameter) {
    const std::vector<int64_t>& shape = parameter.global_shape();
    const base::RandomField field(options_.seed, parameter.name());
    const auto stddev = static_cast<float>(initializer_range(options_.config));
    const int64_t rows = rows_per_chunk(shape), row = parameter.global_numel() / std::max<int64_t>(1, shape[0]);
    for (int64_t begin = 0; begin < shape[0]; begin += rows) {
      ckpt::Slice slice = ckpt::Slice::whole(shape);
      slice.begin[0] = begin;
      slice.end[0] = std::min(begin + rows, shape[0]);
      buffer_.resize(static_cast<size_t>(slice.numel()));
      fill(parameter, field, begin * row, buffer_, stddev);
      saver.write(parameter.name(), slice, buffer_.data(), base::DType::kF32);
      done_ += buffer_.size() * base::dtype_bytes(options_.dtype);
      if (options_.progress) options_.progress(done_, total_);
    }
  }

 private:
  const RandomModelOptions& options_;
  uint64_t total_, done_ = 0;
  std::vector<float> buffer_;
};

// A description that says in which dtype the weights are; the value follows when it is saved.
base::Json with_dtype(base::Json config) {
  if (config.find("dtype") == nullptr && config.find("torch_dtype") == nullptr) config.set("dtype", "float32");
  return config;
}

}  // namespace

void write_random_model(const RandomModelOptions& options) {
  const auto fs = base::make_posix_file_system(base::Code::kCheckpoint);
  if (fs->stat(base::join_path(options.out, "config.json")).exists) {
    throw base::make_error(base::Code::kCheckpoint, "init/out", "the directory holds a model already")
        .at(options.out)
        .hint("Choose another --out, or remove it first.");
  }
  const model::ModelSpec& spec = model::find_model_spec(options.config, options.where);
  const auto model = spec.build(options.config, options.where);
  check_tokenizer(options, model->sizes().vocab);
  const ckpt::SavePlan plan(model->weight_table(), nullptr, {.dtype = options.dtype, .is_trained = {}});
  Writer writer(options, plan.total_bytes());
  const std::vector<std::string> companions =
      options.tokenizer_dir.empty() ? std::vector<std::string>{} : ckpt::companion_files(*fs, options.tokenizer_dir);
  const auto world = comm::make_single_world();
  fs->make_directories(options.out);
  const std::string config = base::dump_json(with_dtype(options.config), base::JsonStyle::kPretty) + "\n";
  ckpt::save_model(world->all(), *fs, plan, options.out, ckpt::config_for_save(config, options.dtype), companions,
                   [&](ckpt::ModelSaver& saver) {
                     for (const shard::Parameter* parameter : model->parameters()) writer.write(saver, *parameter);
                   });
}

}  // namespace expertmesh::train
