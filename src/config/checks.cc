// SPDX-License-Identifier: Apache-2.0
#include "config/checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>
#include <string_view>

namespace expertmesh::config {
namespace {

void check_batching(const Loaded& loaded, Problems& problems) {
  const Config& config = loaded.config;
  const BatchingStrategy strategy = config.data.batching_strategy;
  const std::string place = loaded.positions.of("batching_strategy");
  const std::string_view name = choice_name(strategy);
  if (is_packed(strategy) && config.model.flash_attn != FlashAttention::kFlashAttention2) {
    problems.add("batching_strategy", place,
                 fmt::format("batching_strategy {} with flash_attn {}", name, choice_name(config.model.flash_attn)),
                 "Packed samples need flash_attn: flash_attention_2, which keeps them apart.");
  }
  if (!is_dynamic(strategy)) return;
  if (!config.train.max_steps) {
    problems.add("batching_strategy", place, fmt::format("batching_strategy {} without max_steps", name),
                 "The steps of an epoch are not known beforehand: set max_steps.");
  }
  if (config.checkpoint.save_epochs) {
    problems.add("save_epochs", loaded.positions.of("save_epochs"),
                 fmt::format("save_epochs with batching_strategy {}", name),
                 "The steps of an epoch are not known beforehand: use save_steps.");
  }
}

void check_pairs(const Loaded& loaded, Problems& problems) {
  const Config& config = loaded.config;
  const Positions& positions = loaded.positions;
  if (config.checkpoint.save_steps && config.checkpoint.save_epochs) {
    problems.add("save_epochs", positions.of("save_epochs"), "both save_steps and save_epochs are given",
                 "Keep one of them.");
  }
  if (config.schedule.warmup_steps > 0 && config.schedule.warmup_ratio) {
    problems.add("warmup_ratio", positions.of("lr_scheduler_config.warmup_ratio"),
                 "both warmup_steps and warmup_ratio are given", "Keep one of them.");
  }
  if (config.model.trainable_modules && config.model.trainable_modules->empty()) {
    problems.add("trainable_modules", positions.of("trainable_modules"),
                 "trainable_modules is empty: nothing would be trained", "Leave it out to train everything.");
  }
  if (config.model.moe_aux_loss == AuxLoss::kLayer && config.model.router_aux_loss_coef == 0) {
    problems.add("moe_aux_loss", positions.of("moe_aux_loss"), "moe_aux_loss layer without router_aux_loss_coef",
                 "Without a weight there is no balance loss: set router_aux_loss_coef, for example 0.01.");
  }
  if (config.peft.kind == PeftKind::kLora && config.init.mode == InitMode::kMeta) {
    problems.add("init_config", positions.of("init_config.name"), "init_on_meta with peft_config name lora",
                 "Use init_on_default.");
  }
}

// What a command reads that does not train: the model, the mesh, and how to compute.
constexpr std::array<std::string_view, 19> kInferenceKeys = {
    "model",       "model_class",  "trust_remote_code", "flash_attn",          "bf16",
    "chat_markup", "init_config",  "quant_config",      "peft_config",         "cp_size",
    "cp_mode",     "dist_config",  "kernel_config",     "mp_replicate_size",   "mp_shard_size",
    "dp_size",     "debug_router", "dist_timeout",      "custom_chat_template"};
constexpr std::array<std::string_view, 3> kGenerationKeys = {"max_new_tokens", "sample_backend", "seed"};

bool has_override(const Node& node) {
  return node.is_override || std::any_of(node.entries.begin(), node.entries.end(),
                                         [](const Node::Entry& entry) { return has_override(entry.value); });
}

bool is_among(std::span<const std::string_view> keys, std::string_view key) {
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}

}  // namespace

void check_used_keys(const Node& root, Command command, Problems& problems) {
  if (command != Command::kScore && command != Command::kGenerate) return;
  const bool generates = command == Command::kGenerate;
  for (const Node::Entry& entry : root.entries) {
    if (!has_override(entry.value)) continue;
    if (is_among(kInferenceKeys, entry.key) || (generates && is_among(kGenerationKeys, entry.key))) continue;
    problems.add(
        entry.key, entry.place,
        fmt::format("{} has no effect: nothing is {}", entry.key, generates ? "trained" : "trained or generated"),
        "Leave it out.");
  }
}

bool is_training(Command command) {
  return command == Command::kSft || command == Command::kDpo || command == Command::kRm;
}

void check_required_keys(const Loaded& loaded, Command command, Problems& problems) {
  const bool needs_model = is_training(command) || command == Command::kGenerate;
  if (needs_model && loaded.config.model.path.empty()) {
    problems.add("model", loaded.positions.of("model"), "model is missing",
                 "Give a local Hugging Face directory: model: path/to/model.");
  }
  if (is_training(command) && !loaded.config.data.train_dataset) {
    problems.add("train_dataset", loaded.positions.of("train_dataset"), "train_dataset is missing",
                 "Give a dataset-info YAML or a local .json or .jsonl file.");
  }
}

void check_combinations(const Loaded& loaded, Problems& problems) {
  check_batching(loaded, problems);
  check_pairs(loaded, problems);
}

std::vector<std::string> combination_warnings(const Loaded& loaded) {
  const Config& config = loaded.config;
  std::vector<std::string> warnings;
  if (config.model.trust_remote_code) {
    warnings.push_back(fmt::format("{}: trust_remote_code has no effect: nothing of a model directory is ever run",
                                   loaded.positions.of("trust_remote_code")));
  }
  if (config.schedule.schedule == Schedule::kConstant && config.schedule.min_lr_ratio > 0) {
    warnings.push_back(fmt::format("{}: lr_scheduler_config.min_lr_ratio has no effect with constant",
                                   loaded.positions.of("lr_scheduler_config.min_lr_ratio")));
  }
  return warnings;
}

}  // namespace expertmesh::config
