// SPDX-License-Identifier: Apache-2.0
#include "train/job.h"

#include <algorithm>
#include <thread>

#include "base/error.h"
#include "base/file.h"
#include "base/version.h"

namespace expertmesh::train {
namespace {

config::ModelSizes config_sizes(const model::Model::Sizes& sizes) {
  return {.num_experts = sizes.experts,
          .num_experts_per_tok = sizes.experts_per_token,
          .num_attention_heads = sizes.heads,
          .has_linear_attention = sizes.linear_attention_layers > 0};
}

config::Command command_of(const std::string& stage) {
  if (stage == "sft") return config::Command::kSft;
  return stage == "score" ? config::Command::kScore : config::Command::kGenerate;
}

data::DatasetOptions dataset_options(const config::Config& config, int64_t vocabulary_rows,
                                     const std::function<void(uint64_t, uint64_t)>& progress) {
  data::DatasetOptions options;
  options.train_dataset = *config.data.train_dataset;
  options.model_dir = config.model.path;
  options.chat_markup = config::choice_name(config.model.chat_markup);
  options.custom_chat_template = config.model.custom_chat_template.value_or("");
  options.vocabulary_rows = vocabulary_rows;
  options.cutoff_len = static_cast<int>(config.data.cutoff_len);
  options.drops_unsupervised = config.data.batching_strategy == config::BatchingStrategy::kNormal;
  options.seed = static_cast<uint64_t>(config.train.seed);
  options.threads =
      static_cast<int>(std::min<int64_t>(config.data.batching_workers, std::thread::hardware_concurrency()));
  options.skip_bad_rows = config.data.skip_bad_rows;
  options.cache_dir = data::default_token_cache_dir();
  options.progress = progress;
  return options;
}

}  // namespace

base::Json read_config_json(const std::string& path) {
  const auto fs = base::make_posix_file_system(base::Code::kModel);
  try {
    base::Json config = base::parse_json(fs->read_all(path), {.max_depth = 32});
    if (config.is_object()) return config;
  } catch (const base::JsonError& e) {
    throw base::make_error(base::Code::kModel, "model/config", "{}", e.message)
        .at(fmt::format("{}:{}:{}", path, e.line, e.column));
  }
  throw base::make_error(base::Code::kModel, "model/config", "the file is no JSON object").at(path);
}

base::Json read_model_config(const std::string& model_dir) {
  const auto fs = base::make_posix_file_system(base::Code::kModel);
  const std::string path = base::join_path(model_dir, "config.json");
  if (!fs->stat(model_dir).is_directory) {
    throw base::make_error(base::Code::kModel, "model", "there is no model directory {}", model_dir)
        .at(model_dir)
        .hint("`model` is a local Hugging Face directory; a hub id has to be downloaded first.");
  }
  if (!fs->stat(path).is_regular) {
    throw base::make_error(base::Code::kModel, "model/config", "the model directory holds no config.json")
        .at(model_dir);
  }
  return read_config_json(path);
}

Job prepare_model(const std::string& stage, config::Loaded loaded, int world) {
  Job job;
  job.stage = stage;
  job.build_id = base::build_id();
  job.loaded = std::move(loaded);
  const config::Config& config = job.loaded.config;

  job.model_config = read_model_config(config.model.path);
  const std::string where = base::join_path(config.model.path, "config.json");
  job.spec = &model::find_model_spec(job.model_config, where);
  job.blueprint = job.spec->build(job.model_config, where);
  const model::Model::Sizes sizes = job.blueprint->sizes();
  job.sizes = config::validate_for_world(job.loaded, world, config_sizes(sizes));
  config::validate_kernels(job.loaded, config_sizes(sizes));
  if (config.model.router_aux_loss_coef > 0 && sizes.moe_layers == 0) {
    throw base::make_error(base::Code::kConfig, "config/router_aux_loss_coef",
                           "router_aux_loss_coef is {}, but the model has no layer with experts",
                           config.model.router_aux_loss_coef)
        .at(job.loaded.positions.of("router_aux_loss_coef"))
        .hint("Leave it out.");
  }
  // Last: a value that could never work is a fault of its own, also where its feature is not built yet.
  config::refuse_unbuilt(job.loaded, command_of(stage));

  const auto fs = base::make_posix_file_system(base::Code::kModel);
  job.weights = std::make_shared<ckpt::LoadPlan>(std::make_shared<ckpt::ModelFiles>(*fs, config.model.path),
                                                 job.blueprint->weight_table());
  return job;
}

data::InputOptions input_options(const Job& job) {
  const config::ModelConfig& model = job.loaded.config.model;
  return {.model_dir = model.path,
          .chat_markup = std::string(config::choice_name(model.chat_markup)),
          .custom_chat_template = model.custom_chat_template.value_or(""),
          .vocabulary_rows = job.blueprint->sizes().vocab};
}

Job prepare_job(const std::string& stage, config::Loaded loaded, int world,
                const std::function<void(uint64_t, uint64_t)>& progress) {
  Job job = prepare_model(stage, std::move(loaded), world);
  const auto fs = base::make_posix_file_system(base::Code::kData);
  job.dataset = data::Dataset::build(*fs, dataset_options(job.loaded.config, job.blueprint->sizes().vocab, progress));
  return job;
}

}  // namespace expertmesh::train
