// SPDX-License-Identifier: Apache-2.0
// The configuration as plain structs: what the YAML keys mean, with their defaults. A key named like its member lives
// in the flat top level of the file; the structs at the end are its sections (`dist_config: {...}`). schema.cc maps
// every key to its member here; docs/config.md is made from that map. Why not std::optional sections: a null section
// means its defaults, so that readers never ask whether it is there.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/choices.h"

namespace expertmesh::config {

// A router for tests and benchmarks that ignores what the model learned: `balanced`, `hot:K`, `none:RANK`,
// `rotating:K`, `burst:K/N`, each with an optional `@rank` (that rank only).
struct DebugRouter {
  enum class Kind { kOff, kBalanced, kHot, kNone, kRotating, kBurst };
  Kind kind = Kind::kOff;
  int64_t count = 0;                    // kHot, kRotating, kBurst: every choice falls on `count` experts
  int64_t avoided_rank = 0;             // kNone: no token goes to an expert that this rank owns
  std::optional<int64_t> only_on_rank;  // the rank that routes so; all ranks where it is left out
  int64_t period = 0;                   // kBurst: in every so-many-th micro-batch

  bool is_on() const { return kind != Kind::kOff; }
  bool operator==(const DebugRouter&) const = default;
};

struct ModelConfig {
  std::string path;  // key `model`: a local Hugging Face directory; required for training
  std::optional<std::string> custom_chat_template;  // Jinja text in place of the model's own
  bool trust_remote_code = false;                   // has no effect: nothing of a model directory is ever run
  FlashAttention flash_attn = FlashAttention::kSdpa;
  ModelClass model_class = ModelClass::kLlm;
  ChatMarkup chat_markup = ChatMarkup::kAuto;
  std::optional<std::vector<std::string>> trainable_modules;  // name patterns; left out: everything is trained
  double router_aux_loss_coef = 0.0;                          // weight of the balance loss; 0: off
  AuxLoss moe_aux_loss = AuxLoss::kGlobal;
  DebugRouter debug_router;
  bool operator==(const ModelConfig&) const = default;
};

struct DataConfig {
  std::optional<std::string> train_dataset;  // dataset-info YAML, or a local json or jsonl file; required for training
  std::optional<std::string> eval_dataset;
  int64_t cutoff_len = 2048;  // tokens a sample; the tail is cut
  bool shuffle = true;
  bool skip_bad_rows = false;                // true: a bad row is counted and left out instead of an error
  int64_t micro_batch_size = 1;              // samples a forward and data-parallel rank
  std::optional<int64_t> global_batch_size;  // samples a step over all ranks; left out: dp_size * micro_batch_size
  BatchingStrategy batching_strategy = BatchingStrategy::kNormal;
  int64_t batching_workers = 16;  // threads that prepare samples (never more than there are cores)
  bool operator==(const DataConfig&) const = default;
};

struct TrainConfig {
  std::string output_dir;  // empty: rank 0 draws outputs/<32 hex digits>, and all ranks use it
  double learning_rate = 1e-4;
  int64_t num_train_epochs = 3;                 // counts only where max_steps is left out
  std::optional<int64_t> max_steps;             // optimizer steps; 0 and -1 in the file mean left out
  double max_grad_norm = 1.0;                   // clipping threshold of the global 2-norm; infinity: no clipping
  bool bf16 = true;                             // parameter storage and compute in bf16; false: fp32 throughout
  bool enable_activation_checkpointing = true;  // decoder layers run again in backward
  int64_t seed = 42;
  bool full_determinism = false;  // accepted: runs are deterministic anyway
  int64_t logging_steps = 1;      // steps between log lines
  OnNonfinite on_nonfinite = OnNonfinite::kSkip;
  bool profile = false;  // writes a trace of the steps
  bool operator==(const TrainConfig&) const = default;
};

// Mesh sizes of the top level; those of the experts are in DistConfig.
struct TopologyConfig {
  std::optional<int64_t> dp_size;  // left out: world / cp_size
  int64_t cp_size = 1;             // ranks that share one sequence
  CpMode cp_mode = CpMode::kUlysses;
  int64_t mp_replicate_size = 1;         // copies of the sharded model (HSDP)
  std::optional<int64_t> mp_shard_size;  // left out: world / mp_replicate_size
  int64_t dist_timeout = 18000;          // seconds that a collective may take
  bool operator==(const TopologyConfig&) const = default;
};

struct CheckpointConfig {
  std::optional<std::string> resume_from_checkpoint;  // a directory, or `auto`
  std::optional<int64_t> save_steps;                  // steps between checkpoints
  std::optional<double> save_epochs;                  // epochs between checkpoints, in place of save_steps
  bool save_ckpt_as_hf = false;
  std::optional<int64_t> save_total_limit;  // checkpoints that are kept; left out: all
  OnSaveError on_save_error = OnSaveError::kStop;
  bool operator==(const CheckpointConfig&) const = default;
};

// DPO and reward models.
struct PreferenceConfig {
  PrefLoss pref_loss = PrefLoss::kSigmoid;
  double pref_beta = 0.1;
  double pref_ftx = 0.0;  // weight of the SFT term
  double simpo_gamma = 0.5;
  double dpo_label_smoothing = 0.0;  // 0 to 0.5
  std::optional<double> ld_alpha;    // 0 to 1; left out: plain DPO
  PrefWeighting pref_weighting = PrefWeighting::kPairs;
  bool operator==(const PreferenceConfig&) const = default;
};

struct SampleConfig {
  SampleBackend sample_backend = SampleBackend::kHf;
  int64_t max_new_tokens = 128;  // tokens
  bool operator==(const SampleConfig&) const = default;
};

// dist_config: how parameters are spread. Keys from ep_size on exist with `name: fsdpturbo` only.
struct DistConfig {
  DistBackend backend = DistBackend::kReplicated;  // key `name`; null section: parameters are replicated
  bool reshard_after_forward = true;               // free gathered parameters after forward
  bool offload_params = false;
  bool pin_memory = true;
  std::optional<std::string> dcp_path;
  int64_t ep_size = 1;                // ranks that share the experts
  std::optional<int64_t> efsdp_size;  // ranks that share one expert's weights; left out: dp_size / ep_size
  Dispatcher ep_dispatcher = Dispatcher::kEager;
  Dedup ep_dedup = Dedup::kAuto;
  std::vector<std::string> fsdp_ignored_modules;  // name patterns of modules that stay replicated
  std::vector<std::string> hook_modules;  // name patterns whose entry gathers the experts; empty: each experts module
  FsdpImplementation fsdp_implementation = FsdpImplementation::kNative;
  bool operator==(const DistConfig&) const = default;
};

// init_config: accepted in every form; all of them give the same model bit for bit.
struct InitConfig {
  InitMode mode = InitMode::kDefault;  // key `name`
  bool operator==(const InitConfig&) const = default;
};

// kernel_config: which operators are used.
struct KernelConfig {
  bool is_explicit = false;  // false: the section was left out; then what fits of `names` is taken without an error
  std::vector<Kernel> names = {Kernel::kAuto, Kernel::kFlashLinearAttention};  // key `name`, applied left to right
  std::vector<LinearAttentionOp> include_kernels = {LinearAttentionOp::kChunkGatedDeltaRule,
                                                    LinearAttentionOp::kFusedRecurrentGatedDeltaRule};
  int64_t chunk_size = 64;  // tokens a chunk of the gated delta rule: 16, 32 or 64
  bool operator==(const KernelConfig&) const = default;

  bool has(Kernel kernel) const {
    for (const Kernel name : names) {
      if (name == kernel) return true;
    }
    return false;
  }
};

// optim_config. A null section is AdamW with its defaults. `weight_decay` and `momentum` have other defaults by name.
struct OptimConfig {
  Optimizer optimizer = Optimizer::kAdamW;  // key `name`
  double beta1 = 0.9, beta2 = 0.999;        // key `betas`, adamw
  double eps = 1e-8;                        // adamw
  double weight_decay = 0.01;               // adamw 0.01, sgd 0; on every trained tensor, norms and biases too
  MasterWeights master_weights = MasterWeights::kFp32;
  double momentum = 0.0;     // sgd 0, muon 0.95
  double muon_wd = 0.1;      // key `wd`, muon
  bool nesterov = true;      // muon
  int64_t ns_steps = 5;      // muon
  double adamw_beta1 = 0.9;  // key `adamw_betas`, muon
  double adamw_beta2 = 0.95;
  double adamw_eps = 1e-8;  // muon
  bool operator==(const OptimConfig&) const = default;
};

// lr_scheduler_config. A null section is the constant rate.
struct ScheduleConfig {
  Schedule schedule = Schedule::kConstant;  // key `name`
  int64_t warmup_steps = 0;                 // steps in which the rate rises from 0
  std::optional<double> warmup_ratio;       // 0 to 1, of all steps; in place of warmup_steps
  double min_lr_ratio = 0.0;                // 0 to 1: where linear and cosine end, as a part of learning_rate
  bool operator==(const ScheduleConfig&) const = default;
};

// peft_config: keys of `lora` first, then those of `freeze`.
struct PeftConfig {
  PeftKind kind = PeftKind::kNone;  // key `name`; null section: full tuning
  int64_t r = 8;
  int64_t lora_alpha = 16;
  double lora_dropout = 0.05;
  std::vector<std::string> target_modules = {"all"};
  bool use_rslora = false;
  bool use_dora = false;
  std::vector<std::string> modules_to_save;
  std::vector<std::string> adapter_name_or_path;
  std::optional<std::string> export_dir;
  int64_t export_size = 5;  // GB a shard
  std::optional<std::string> export_hub_model_id;
  InferDType infer_dtype = InferDType::kAuto;
  bool export_legacy_format = false;
  int64_t freeze_trainable_layers = 2;
  std::vector<std::string> freeze_trainable_modules = {"all"};
  std::vector<std::string> freeze_extra_modules;
  bool cast_trainable_params_to_fp32 = true;
  bool operator==(const PeftConfig&) const = default;
};

struct Config {
  ModelConfig model;
  DataConfig data;
  TrainConfig train;
  TopologyConfig topology;
  CheckpointConfig checkpoint;
  PreferenceConfig preference;
  SampleConfig sample;

  DistConfig dist;          // dist_config
  InitConfig init;          // init_config
  KernelConfig kernel;      // kernel_config
  OptimConfig optim;        // optim_config
  ScheduleConfig schedule;  // lr_scheduler_config
  PeftConfig peft;          // peft_config
  bool operator==(const Config&) const = default;
};

}  // namespace expertmesh::config
