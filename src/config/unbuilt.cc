// SPDX-License-Identifier: Apache-2.0
// What the schema knows and this version does not do yet, in one list: a line goes when its feature comes. The value
// counts, not its presence, so that a resolved configuration, which spells every default, can be run again.
#include <fmt/format.h>

#include "config/checks.h"
#include "config/problems.h"
#include "config/validate.h"

namespace expertmesh::config {
namespace {

class Refusals {
 public:
  explicit Refusals(const Loaded& loaded) : loaded_(loaded) {}

  // `what` as the user wrote it: "cp_size 2".
  void refuse_if(bool is_used, std::string_view key_path, std::string what, std::string instead) {
    if (!is_used) return;
    const std::string key(key_path.substr(key_path.rfind('.') + 1));
    problems_.add(key, loaded_.positions.of(key_path), fmt::format("{} is not built yet", what), std::move(instead));
  }

  void throw_if_any() const { problems_.throw_if_any(); }

 private:
  const Loaded& loaded_;
  Problems problems_;
};

void refuse_preferences(const PreferenceConfig& given, Refusals& refusals) {
  const PreferenceConfig plain;
  const auto refuse = [&](bool is_used, std::string_view key) {
    refusals.refuse_if(is_used, key, std::string(key), "It belongs to dpo and rm.");
  };
  refuse(given.pref_loss != plain.pref_loss, "pref_loss");
  refuse(given.pref_beta != plain.pref_beta, "pref_beta");
  refuse(given.pref_ftx != plain.pref_ftx, "pref_ftx");
  refuse(given.simpo_gamma != plain.simpo_gamma, "simpo_gamma");
  refuse(given.dpo_label_smoothing != plain.dpo_label_smoothing, "dpo_label_smoothing");
  refuse(given.ld_alpha != plain.ld_alpha, "ld_alpha");
  refuse(given.pref_weighting != plain.pref_weighting, "pref_weighting");
}

void refuse_checkpoints(const CheckpointConfig& given, Refusals& refusals) {
  const auto refuse = [&](bool is_used, std::string_view key) {
    refusals.refuse_if(is_used, key, std::string(key), "The model is saved once, at the end: leave it out.");
  };
  refuse(given.resume_from_checkpoint.has_value(), "resume_from_checkpoint");
  refuse(given.save_steps.has_value(), "save_steps");
  refuse(given.save_epochs.has_value(), "save_epochs");
  refuse(given.save_ckpt_as_hf, "save_ckpt_as_hf");
  refuse(given.save_total_limit.has_value(), "save_total_limit");
  refuse(given.on_save_error != OnSaveError::kStop, "on_save_error");
}

void refuse_model(const ModelConfig& model, Refusals& refusals) {
  refusals.refuse_if(model.model_class != ModelClass::kLlm, "model_class",
                     fmt::format("model_class {}", choice_name(model.model_class)), "Use llm.");
  refusals.refuse_if(model.custom_chat_template.has_value(), "custom_chat_template", "custom_chat_template",
                     "Choose one of the built-in forms with chat_markup.");
}

}  // namespace

void refuse_unbuilt(const Loaded& loaded, Command command) {
  const Config& config = loaded.config;
  Refusals refusals(loaded);
  refusals.refuse_if(command == Command::kDpo, "", "the command dpo", "Use sft.");
  refusals.refuse_if(command == Command::kRm, "", "the command rm", "Use sft.");
  if (command == Command::kSft) refuse_preferences(config.preference, refusals);
  refuse_model(config.model, refusals);
  refusals.refuse_if(config.topology.cp_size > 1, "cp_size", fmt::format("cp_size {}", config.topology.cp_size),
                     "Use 1.");
  // Packed, all pairs of a micro batch would be scored as one.
  const bool has_pairs = command == Command::kDpo || command == Command::kRm;
  refusals.refuse_if(has_pairs && is_packed(config.data.batching_strategy), "batching_strategy",
                     fmt::format("batching_strategy {} for pairs", choice_name(config.data.batching_strategy)),
                     "Use normal or dynamic_batching.");
  refusals.refuse_if(config.data.eval_dataset.has_value(), "eval_dataset", "eval_dataset",
                     "Score held-out rows with expertmesh score.");
  refuse_checkpoints(config.checkpoint, refusals);
  refusals.refuse_if(config.dist.offload_params, "dist_config.offload_params", "offload_params", "Leave it out.");
  refusals.refuse_if(config.optim.optimizer == Optimizer::kMuon, "optim_config.name", "the optimizer muon",
                     "Use adamw or sgd.");
  refusals.refuse_if(config.peft.kind != PeftKind::kNone, "peft_config.name",
                     fmt::format("peft_config name {}", choice_name(config.peft.kind)),
                     "Leave it out; trainable_modules trains a part of the weights.");
  refusals.throw_if_any();
}

}  // namespace expertmesh::config
