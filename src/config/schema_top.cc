// SPDX-License-Identifier: Apache-2.0
// The flat top level. Names, types and defaults of upstream's keys are fixed; ours never change the meaning of theirs.
#include "config/debug_router.h"
#include "config/fields.h"

namespace expertmesh::config {
namespace {

constexpr IntegerRange kAtLeast1{1, INT64_MAX};
constexpr int64_t kMaxMesh = 1 << 20;
constexpr IntegerRange kMeshSize{1, kMaxMesh};

Section make_group(std::string title, std::string doc) {
  Section group;
  group.title = std::move(title);
  group.doc = std::move(doc);
  return group;
}

Section model_group() {
  Section group = make_group("Model", "What is trained.");
  Rows<ModelConfig> rows(group.fields, &Config::model);
  rows.text("model", &ModelConfig::path,
            "Local Hugging Face directory with config.json and safetensors files. Required for training.");
  rows.text("custom_chat_template", &ModelConfig::custom_chat_template,
            "Jinja text in place of the model's chat template.");
  rows.flag("trust_remote_code", &ModelConfig::trust_remote_code,
            "Has no effect: nothing of a model directory is ever run. `true` gives a warning.");
  rows.choice("flash_attn", &ModelConfig::flash_attn,
              "Attention inside each document: `eager` computes the whole score matrix; `sdpa` and `flash_attention_2` "
              "both run "
              "the best kernel of this processor, which never holds it: the own one in bf16, ATen's in fp32.");
  rows.choice("model_class", &ModelConfig::model_class,
              "Head of the model: `llm` language model, `cls` score per token (reward models).");
  rows.choice("chat_markup", &ModelConfig::chat_markup,
              "How dialogues become text. `auto` recognises the model's own template.");
  rows.text_list("trainable_modules", &ModelConfig::trainable_modules, true,
                 "Patterns of parameter names that are trained (`*` and `{*}` match any text); null: all.");
  rows.number("router_aux_loss_coef", &ModelConfig::router_aux_loss_coef, {0.0, 1e300, false, false}, "",
              "Weight of the experts' balance loss; 0 switches it off. A model's own config.json is not asked.");
  rows.choice(
      "moe_aux_loss", &ModelConfig::moe_aux_loss,
      "What the balance loss evens out, over all tokens of the step: `layer`, each layer by itself; `global`, all "
      "layers together, as Hugging Face does, so that layers may crowd on different experts. With n micro-batches a "
      "step it takes n - 1 more forwards.");
  rows.special(
      "debug_router", "balanced, hot:K, none:RANK, rotating:K or burst:K/N, each with an optional @RANK", "",
      "For tests and benchmarks: tokens are spread evenly, all go to the first K experts, none goes to an expert "
      "of a rank, all go to K experts that move on with each micro-batch, or all go to the first K in every Nth "
      "micro-batch; with @RANK on that rank only.",
      true,
      [](const Node& node, const ReadContext&, ModelConfig& model) { model.debug_router = read_debug_router(node); },
      [](const ModelConfig& model) {
        return model.debug_router.is_on() ? base::Json(debug_router_text(model.debug_router)) : base::Json();
      });
  return group;
}

Section data_group() {
  Section group = make_group("Data", "What it is trained on.");
  Rows<DataConfig> rows(group.fields, &Config::data);
  rows.text("train_dataset", &DataConfig::train_dataset,
            "Dataset-info YAML, or one local .json or .jsonl file. Required for training.");
  rows.text("eval_dataset", &DataConfig::eval_dataset, "Data to evaluate on.");
  rows.integer(
      "cutoff_len", &DataConfig::cutoff_len, {1, 1 << 30}, "tokens",
      "Longest sample; the tail is cut. With batching_strategy `normal` a sample whose targets are all cut away is "
      "dropped and counted.");
  rows.flag("shuffle", &DataConfig::shuffle, "Draw a new order of the samples in each epoch, from `seed`.");
  rows.flag("skip_bad_rows", &DataConfig::skip_bad_rows,
            "Count and leave out rows that cannot be read, instead of stopping.");
  rows.integer("micro_batch_size", &DataConfig::micro_batch_size, {1, 1 << 24}, "samples",
               "Samples a forward and data-parallel rank; for the dynamic strategies a multiple of the token budget.");
  rows.integer("global_batch_size", &DataConfig::global_batch_size, {1, 1 << 30}, "samples",
               "Samples a step over all ranks, a multiple of dp_size x micro_batch_size; null: just that product.");
  rows.choice(
      "batching_strategy", &DataConfig::batching_strategy,
      "How samples become micro-batches. `normal`: micro_batch_size samples; `padding_free`: the same, packed; "
      "`dynamic_batching` and `dynamic_padding_free`: as many as fit cutoff_len x micro_batch_size tokens, padded "
      "or packed. Packed ones need flash_attention_2, dynamic ones max_steps.");
  rows.integer("batching_workers", &DataConfig::batching_workers, {0, 1024}, "threads",
               "Threads that prepare samples, at most as many as there are cores; 0: the rank's own.");
  return group;
}

Section training_group() {
  Section group = make_group("Training", "How it is trained.");
  Rows<TrainConfig> rows(group.fields, &Config::train);
  rows.text("output_dir", &TrainConfig::output_dir,
            "Directory of the log and the model, one for all ranks; null: outputs/ and a random name.");
  rows.number("learning_rate", &TrainConfig::learning_rate, {0.0, 1e300, false, false}, "",
              "Peak learning rate, the only source of it. 0 is legal.");
  rows.integer("num_train_epochs", &TrainConfig::num_train_epochs, {1, 1 << 30}, "epochs",
               "Passes over the data where max_steps is null.");
  rows.special(
      "max_steps", "integer of at least -1", "steps",
      "Optimizer steps, over as many epochs as they take; null, 0 and -1: num_train_epochs decides.", true,
      [](const Node& node, const ReadContext& context, TrainConfig& train) {
        train.max_steps.reset();
        if (node.is_null()) return;
        const int64_t steps = read_integer(node, {-1, int64_t{1} << 40}, context.quotes);
        if (steps > 0) train.max_steps = steps;
      },
      [](const TrainConfig& train) { return train.max_steps ? base::Json(*train.max_steps) : base::Json(); });
  rows.special(
      "max_grad_norm", "number above 0, or .inf", "",
      "Gradients are scaled down to this 2-norm over all parameters; `.inf` switches clipping off.", false,
      [](const Node& node, const ReadContext& context, TrainConfig& train) {
        try {
          train.max_grad_norm = read_number(node, {0.0, 1e300, true, true}, context.quotes);
        } catch (ValueError& error) {
          if (error.hint.empty()) error.hint = "Write .inf to switch clipping off.";
          throw;
        }
      },
      [](const TrainConfig& train) { return base::Json(train.max_grad_norm); });
  rows.flag("bf16", &TrainConfig::bf16,
            "Parameters are stored and used in bf16, gradients are fp32 (see optim_config.master_weights); false: fp32 "
            "throughout.");
  rows.flag("enable_activation_checkpointing", &TrainConfig::enable_activation_checkpointing,
            "Decoder layers are computed again in backward instead of keeping their activations.");
  rows.integer("seed", &TrainConfig::seed, {0, 4294967295}, "", "Seed of everything that is drawn.");
  rows.flag("full_determinism", &TrainConfig::full_determinism, "Accepted: runs are deterministic anyway.");
  rows.integer("logging_steps", &TrainConfig::logging_steps, kAtLeast1, "steps", "Steps between log lines.");
  rows.choice("on_nonfinite", &TrainConfig::on_nonfinite,
              "When loss or norm is not finite on any rank: `skip` the step on all ranks (three in a row end the run), "
              "or `stop`.");
  rows.flag("profile", &TrainConfig::profile,
            "Record the steps: a trace, and a table of where their time goes, in OUTPUT_DIR/profile "
            "(docs/profiling.md).");
  return group;
}

Section mesh_group() {
  Section group = make_group("Mesh", "How ranks are arranged; the experts' sizes stand in dist_config.");
  Rows<TopologyConfig> rows(group.fields, &Config::topology);
  rows.integer("dp_size", &TopologyConfig::dp_size, kMeshSize, "ranks",
               "Ranks with different samples; dp_size x cp_size is the number of ranks; null: follows from it.");
  rows.integer("cp_size", &TopologyConfig::cp_size, kMeshSize, "ranks", "Ranks that share each sequence.");
  rows.choice("cp_mode", &TopologyConfig::cp_mode, "How a sequence is shared.");
  rows.integer("mp_replicate_size", &TopologyConfig::mp_replicate_size, kMeshSize, "ranks",
               "Copies of the sharded model (HSDP).");
  rows.integer("mp_shard_size", &TopologyConfig::mp_shard_size, kMeshSize, "ranks",
               "Ranks that share one copy; mp_replicate_size x mp_shard_size is the number of ranks; null: follows.");
  rows.integer("dist_timeout", &TopologyConfig::dist_timeout, {1, 31536000}, "seconds",
               "How long a rank waits for the others before the run ends.");
  return group;
}

Section checkpoint_group() {
  Section group = make_group("Checkpoints", "Saving during training and going on from there.");
  Rows<CheckpointConfig> rows(group.fields, &Config::checkpoint);
  rows.text("resume_from_checkpoint", &CheckpointConfig::resume_from_checkpoint,
            "Checkpoint directory, or `auto` for the newest complete one of output_dir.");
  rows.integer("save_steps", &CheckpointConfig::save_steps, kAtLeast1, "steps", "Steps between checkpoints.");
  rows.number("save_epochs", &CheckpointConfig::save_epochs, {0.0, 1e300, true, false}, "epochs",
              "Epochs between checkpoints, in place of save_steps.");
  rows.flag("save_ckpt_as_hf", &CheckpointConfig::save_ckpt_as_hf,
            "Also write a Hugging Face model into each checkpoint.");
  rows.integer("save_total_limit", &CheckpointConfig::save_total_limit, kAtLeast1, "checkpoints",
               "Checkpoints that are kept; null: all.");
  rows.choice("on_save_error", &CheckpointConfig::on_save_error, "When a checkpoint cannot be written.");
  return group;
}

Section preference_group() {
  Section group = make_group("Preferences", "Keys of `dpo` and `rm`.");
  Rows<PreferenceConfig> rows(group.fields, &Config::preference);
  rows.choice("pref_loss", &PreferenceConfig::pref_loss, "Loss over pairs.");
  rows.number("pref_beta", &PreferenceConfig::pref_beta, {0.0, 1e300, true, false}, "", "Its temperature.");
  rows.number("pref_ftx", &PreferenceConfig::pref_ftx, {0.0, 1e300, false, false}, "",
              "Weight of the SFT loss on the chosen side.");
  rows.number("simpo_gamma", &PreferenceConfig::simpo_gamma, {0.0, 1e300, false, false}, "", "Margin of SimPO.");
  rows.number("dpo_label_smoothing", &PreferenceConfig::dpo_label_smoothing, {0.0, 0.5, false, false}, "",
              "Part of the pairs that is taken to be swapped.");
  rows.number("ld_alpha", &PreferenceConfig::ld_alpha, {0.0, 1.0, false, false}, "",
              "Weight of the tokens beyond the shorter side's length (LD-DPO); null: 1.");
  rows.choice("pref_weighting", &PreferenceConfig::pref_weighting,
              "`pairs`: each pair counts once; `tokens`: by its supervised tokens.");
  return group;
}

Section sample_group() {
  Section group = make_group("Sampling", "Keys of generation.");
  Rows<SampleConfig> rows(group.fields, &Config::sample);
  rows.choice("sample_backend", &SampleConfig::sample_backend, "Engine of generation.");
  rows.integer("max_new_tokens", &SampleConfig::max_new_tokens, {1, 1 << 30}, "tokens", "Longest answer.");
  return group;
}

}  // namespace

std::vector<Section> top_level_groups() {
  return {model_group(),      data_group(),       training_group(), mesh_group(),
          checkpoint_group(), preference_group(), sample_group()};
}

}  // namespace expertmesh::config
