// SPDX-License-Identifier: Apache-2.0
// Keys, sections, overrides and combinations: the exact words a user sees.
#include "config/load.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "config/test_util.h"

namespace expertmesh::config {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

TEST(Load, DefaultsAreUpstreams) {
  const Config config = parse_ok("").config;
  EXPECT_EQ(config.data.cutoff_len, 2048);
  EXPECT_EQ(config.train.seed, 42);
  EXPECT_EQ(config.train.num_train_epochs, 3);
  EXPECT_EQ(config.data.batching_workers, 16);
  EXPECT_EQ(config.dist.backend, DistBackend::kReplicated);
  EXPECT_EQ(config.optim.optimizer, Optimizer::kAdamW);
  EXPECT_DOUBLE_EQ(config.optim.weight_decay, 0.01);
  EXPECT_FALSE(config.kernel.is_explicit);
  EXPECT_TRUE(config.train.output_dir.empty());
  EXPECT_EQ(config.train.on_nonfinite, OnNonfinite::kSkip);
}

TEST(Load, RequiredKeysDependOnTheCommand) {
  const auto missing = [](Command command) {
    return error_of([&] { parse_config("max_steps: 1\n", "c.yaml", {}, command); });
  };
  EXPECT_EQ(missing(Command::kSft),
            "error[config/model] c.yaml: model is missing. Give a local Hugging Face directory: model: path/to/model.\n"
            "  c.yaml: train_dataset is missing. Give a dataset-info YAML or a local .json or .jsonl file.\n"
            "  2 faults in all");
  EXPECT_THAT(missing(Command::kRm), HasSubstr("train_dataset"));
  EXPECT_NO_THROW(parse_config("max_steps: 1\n", "c.yaml", {}, Command::kScore));
  EXPECT_NO_THROW(load_config("", {"bf16=false"}, Command::kScore));
  EXPECT_NO_THROW(load_config("", {"model=m"}, Command::kGenerate));
  EXPECT_THAT(error_of([] { load_config("", {}, Command::kGenerate); }), HasSubstr("model is missing"));
  EXPECT_THAT(error_of([] { load_config("", {}, Command::kSft); }), HasSubstr("command line: model is missing"));
}

TEST(Load, OverridesWithoutEffectAreRefused) {
  const auto refusal = [](const std::string& override, Command command) {
    return error_of([&] { load_config("", {"model=m", override}, command); });
  };
  EXPECT_THAT(refusal("learning_rate=1e-4", Command::kScore),
              HasSubstr("learning_rate has no effect: nothing is trained"));
  EXPECT_THAT(refusal("batching_strategy=padding_free", Command::kScore), HasSubstr("batching_strategy has no effect"));
  EXPECT_THAT(refusal("max_new_tokens=3", Command::kScore), HasSubstr("max_new_tokens has no effect"));
  EXPECT_THAT(refusal("optim_config.name=sgd", Command::kGenerate), HasSubstr("optim_config has no effect"));
  EXPECT_NO_THROW(load_config("", {"model=m", "max_new_tokens=3"}, Command::kGenerate));
  EXPECT_NO_THROW(load_config("", {"model=m", "learning_rate=1e-4"}, Command::kOther));
  EXPECT_NO_THROW(parse_config("model: m\nlearning_rate: 1.0e-4\n", "c.yaml", {}, Command::kGenerate));
  EXPECT_THAT(error_of([] { parse_config("model: m\n", "c.yaml", {"optim_config.name=sgd"}, Command::kGenerate); }),
              HasSubstr("optim_config has no effect"));
}

TEST(Load, AllFaultsAtOnceInTheOrderOfTheFile) {
  EXPECT_EQ(bad("cutof_len: 64\nbf16: maybe\ndist_config:\n  name: fsdpturbo\n  ep_sise: 2\n  ep_size: 0\n"),
            "error[config/cutof_len] c.yaml:3:1: unknown key cutof_len. Did you mean cutoff_len?\n"
            "  c.yaml:4:7: bf16 is maybe, expected true or false\n"
            "  c.yaml:7:3: unknown key dist_config.ep_sise. Did you mean ep_size?\n"
            "  c.yaml:8:12: dist_config.ep_size is 0, expected an integer of at least 1\n"
            "  4 faults in all");
}

TEST(Load, ManyFaultsAreCounted) {
  std::string text;
  for (int i = 0; i < 50; ++i) text += "zzzzzz" + std::to_string(i) + ": 1\n";
  const std::string message = bad(text);
  EXPECT_THAT(message, HasSubstr("50 faults in all"));
  EXPECT_THAT(message, Not(HasSubstr("zzzzzz30")));
}

TEST(Load, KeysInTheWrongPlace) {
  EXPECT_EQ(bad("ep_size: 2\n"),
            "error[config/ep_size] c.yaml:3:1: ep_size is no top-level key, it belongs in dist_config. Write it "
            "indented under dist_config.");
  EXPECT_EQ(
      bad("weight_decay: 0.1\n"),
      "error[config/weight_decay] c.yaml:3:1: weight_decay is no top-level key, it belongs in optim_config. Write "
      "it indented under optim_config.");
  for (const char* key : {"cp_size", "dp_size", "mp_shard_size", "mp_replicate_size", "dist_timeout", "bf16"}) {
    EXPECT_THAT(bad(std::string("dist_config: {name: fsdp2, ") + key + ": 2}\n"),
                HasSubstr(std::string(key) + " is a top-level key, not one of dist_config. Move it to the top level."));
  }
  EXPECT_THAT(bad("dist_config: {name: fsdp2, chunk_size: 32}\n"),
              HasSubstr("chunk_size is no key of dist_config, it belongs in kernel_config"));
  EXPECT_THAT(bad("optim_config: {name: adamw, lr_scheduler_config: null}\n"), HasSubstr("top-level key"));
  EXPECT_THAT(bad("name: fsdp2\n"), HasSubstr("it belongs in dist_config, init_config"));
}

TEST(Load, ExpertModulesAreRefusedAnywhere) {
  for (const char* key : {"ep_modules", "ep_fsdp_modules"}) {
    const std::string where[] = {std::string(key) + ": [a]\n",
                                 std::string("dist_config: {name: fsdpturbo, ") + key + ": []}\n",
                                 std::string("dist_config: {name: fsdp2, ") + key + ": null}\n",
                                 std::string("kernel_config: {name: auto, ") + key + ": a}\n",
                                 std::string("optim_config: {name: sgd, ") + key + ": a}\n"};
    for (const std::string& text : where) {
      EXPECT_THAT(bad(text), HasSubstr(std::string(key) + " is not supported. Which modules are experts is part of"))
          << text;
    }
  }
}

TEST(Load, NamesOfOtherTrainers) {
  EXPECT_THAT(bad("model_name_or_path: a\n"), HasSubstr("Use model."));
  EXPECT_THAT(bad("gradient_accumulation_steps: 4\n"), HasSubstr("Set global_batch_size"));
  EXPECT_THAT(bad("deepspeed: a.json\n"), HasSubstr("fsdpturbo"));
}

TEST(Load, SectionForms) {
  EXPECT_EQ(parse_ok("dist_config: null\n").config.dist, DistConfig());
  EXPECT_EQ(parse_ok("dist_config:\n").config.dist, DistConfig());
  const Config text = parse_ok("dist_config: ' {\"name\": \"fsdpturbo\", \"ep_size\": \"4\"}'\n").config;
  EXPECT_EQ(text.dist.backend, DistBackend::kFsdpTurbo);
  EXPECT_EQ(text.dist.ep_size, 4);
  EXPECT_THAT(bad("dist_config: '{\"name\": fsdp2}'\n"), HasSubstr("c.yaml:3:14: this is not JSON"));
  EXPECT_THAT(bad("dist_config: '{\"name\": \"fsdp2\", \"name\": \"fsdp2\"}'\n"), HasSubstr("c.yaml:3:14"));
  EXPECT_THAT(bad("dist_config: '{\"name\": \"fsdpturbo\", \"ep_sise\": 1}'\n"),
              HasSubstr("ep_sise. Did you mean ep_size?"));
  EXPECT_THAT(bad("dist_config: fsdp2\n"),
              HasSubstr("c.yaml:3:14: dist_config is fsdp2, expected a mapping with name:"));
  EXPECT_THAT(bad("dist_config: []\n"), HasSubstr("c.yaml:3:1: dist_config is a list"));
  EXPECT_THAT(bad("dist_config: {}\n"), HasSubstr("dist_config has no name, expected name: one of fsdp2, fsdpturbo"));
  EXPECT_THAT(bad("dist_config: {name: null}\n"), HasSubstr("has no name"));
  EXPECT_THAT(bad("dist_config: {name: [fsdp2]}\n"), HasSubstr("dist_config.name is a list, expected one of"));
  EXPECT_EQ(
      bad("dist_config: {name: fsdpturb, ep_size: 0, foo: 1}\n"),
      "error[config/dist_config] c.yaml:3:21: dist_config.name is fsdpturb, expected one of fsdp2, fsdpturbo. Did "
      "you mean fsdpturbo?\n"
      "  c.yaml:3:43: unknown key dist_config.foo. Its keys are name, reshard_after_forward, offload_params, "
      "pin_memory, dcp_path, ep_size, efsdp_size, ep_dispatcher, ep_dedup, fsdp_ignored_modules, "
      "hook_modules, fsdp_implementation.\n"
      "  2 faults in all");
}

TEST(Load, KeysOfOtherNames) {
  EXPECT_EQ(bad("dist_config: {name: fsdp2, ep_size: 2}\n"),
            "error[config/ep_size] c.yaml:3:28: dist_config.ep_size does not exist with name: fsdp2. It needs name: "
            "fsdpturbo.");
  EXPECT_THAT(bad("optim_config: {name: sgd, betas: [0.9, 0.99]}\n"), HasSubstr("It needs name: adamw."));
  EXPECT_THAT(bad("optim_config: {name: adamw, momentum: 0.9}\n"), HasSubstr("It needs name: sgd, muon."));
  EXPECT_THAT(bad("kernel_config: {name: auto, chunk_size: 32}\n"),
              HasSubstr("It needs name: flash-linear-attention."));
  EXPECT_THAT(bad("peft_config: {name: lora, freeze_trainable_layers: 2}\n"), HasSubstr("It needs name: freeze."));
  // The name may stand after the keys that depend on it.
  EXPECT_EQ(parse_ok("dist_config: {ep_size: 2, name: fsdpturbo}\n").config.dist.ep_size, 2);
}

TEST(Load, RefusedNamesSayWhatToUse) {
  EXPECT_THAT(bad("dist_config: {name: deepspeed, config_file: a}\n"), HasSubstr("Use fsdp2 or fsdpturbo."));
  EXPECT_THAT(bad("kernel_config: {name: 'auto, liger_kernel'}\n"), HasSubstr("liger_kernel, which is not supported"));
  EXPECT_THAT(bad("kernel_config: {name: cuda_fused_moe}\n"), HasSubstr("ep_dispatcher"));
  EXPECT_THAT(bad("kernel_config: {name: auto, require_logits: true}\n"), HasSubstr("require_logits is not supported"));
  EXPECT_THAT(bad("sample_backend: vllm\n"), HasSubstr("sample_backend is vllm, which is not supported"));
  EXPECT_THAT(bad("quant_config: {name: bnb, quantization_bit: 4}\n"), HasSubstr("Quantization is not supported"));
  EXPECT_THAT(bad("dist_config: {name: fsdp2, dcp_path: a}\n"), HasSubstr("pickles"));
  EXPECT_NO_THROW(parse_ok("quant_config: null\ndist_config: {name: fsdp2, dcp_path: null}\n"));
}

TEST(Load, Optimizers) {
  EXPECT_DOUBLE_EQ(parse_ok("optim_config: {name: sgd}\n").config.optim.weight_decay, 0.0);
  EXPECT_DOUBLE_EQ(parse_ok("optim_config: {name: sgd}\n").config.optim.momentum, 0.0);
  EXPECT_DOUBLE_EQ(parse_ok("optim_config: {name: sgd, momentum: 0.9, weight_decay: 0.1}\n").config.optim.momentum,
                   0.9);
  const OptimConfig adamw =
      parse_ok("optim_config: {name: adamw, betas: [0.8, 0.95], master_weights: none}\n").config.optim;
  EXPECT_DOUBLE_EQ(adamw.beta1, 0.8);
  EXPECT_DOUBLE_EQ(adamw.beta2, 0.95);
  EXPECT_EQ(adamw.master_weights, MasterWeights::kNone);
  const OptimConfig muon = parse_ok("optim_config: {name: muon, wd: 0.2, ns_steps: 6}\n").config.optim;
  EXPECT_DOUBLE_EQ(muon.momentum, 0.95);
  EXPECT_DOUBLE_EQ(muon.muon_wd, 0.2);
  EXPECT_THAT(bad("optim_config: {name: adamw, betas: [0.9]}\n"), HasSubstr("expected a list of two numbers"));
  EXPECT_THAT(bad("optim_config: {name: adamw, betas: [0.9, 1.0]}\n"), HasSubstr("betas is 1.0"));
  EXPECT_THAT(bad("optim_config: {name: adamw, eps: 0}\n"), HasSubstr("expected a number above 0"));
  const Loaded with_lr = parse_ok("optim_config: {name: adamw, lr: 0.1}\n");
  EXPECT_THAT(with_lr.warnings, ElementsAre("c.yaml:3:33: optim_config.lr has no effect: learning_rate is used"));
  EXPECT_THAT(bad("optim_config: {name: adamw, lr: fast}\n"), HasSubstr("optim_config.lr is fast"));
}

TEST(Load, Kernels) {
  const KernelConfig kernel =
      parse_ok(
          "kernel_config: {name: ' auto ,, flash-linear-attention,auto', include_kernels: chunk_gated_delta_rule}\n")
          .config.kernel;
  EXPECT_TRUE(kernel.is_explicit);
  EXPECT_THAT(kernel.names, ElementsAre(Kernel::kAuto, Kernel::kFlashLinearAttention));
  EXPECT_THAT(kernel.include_kernels, ElementsAre(LinearAttentionOp::kChunkGatedDeltaRule));
  EXPECT_EQ(parse_ok("kernel_config: {name: flash-linear-attention, include_kernels: true}\n")
                .config.kernel.include_kernels.size(),
            2U);
  EXPECT_THAT(bad("kernel_config: {name: [auto]}\n"), HasSubstr("comma-separated list"));
  EXPECT_THAT(bad("kernel_config: {name: flash-linear-attention, include_kernels: ','}\n"),
              HasSubstr("include_kernels"));
  EXPECT_THAT(bad("kernel_config: {name: flash-linear-attention, include_kernels: false}\n"), HasSubstr("false"));
  EXPECT_THAT(bad("kernel_config: {name: flash-linear-attention, chunk_size: 16.0}\n"), HasSubstr("16, 32, 64"));
}

TEST(Load, ValuesWithTheirOwnRules) {
  EXPECT_FALSE(parse_ok("max_steps: 0\n").config.train.max_steps.has_value());
  EXPECT_FALSE(parse_ok("max_steps: -1\n").config.train.max_steps.has_value());
  EXPECT_THAT(bad("max_steps: -2\n"), HasSubstr("expected an integer of at least -1"));
  EXPECT_TRUE(std::isinf(parse_ok("max_grad_norm: .inf\n").config.train.max_grad_norm));
  EXPECT_THAT(bad("max_grad_norm: 0\n"), HasSubstr("Write .inf to switch clipping off."));
  EXPECT_DOUBLE_EQ(parse_ok("learning_rate: 0\n").config.train.learning_rate, 0.0);
  EXPECT_THAT(bad("learning_rate: .inf\n"), HasSubstr("learning_rate is .inf"));
  EXPECT_THAT(bad("seed: -1\n"), HasSubstr("seed is -1"));
  EXPECT_THAT(bad("seed: 4294967296\n"), HasSubstr("from 0 to 4294967295"));
  EXPECT_THAT(*parse_ok("trainable_modules: 'a.*, b'\n").config.model.trainable_modules, ElementsAre("a.*", "b"));
  EXPECT_THAT(*parse_ok("trainable_modules: [a, b]\n").config.model.trainable_modules, ElementsAre("a", "b"));
  EXPECT_THAT(bad("trainable_modules: []\n"), HasSubstr("nothing would be trained"));
  EXPECT_THAT(bad("trainable_modules: [a, 1]\n"), HasSubstr("trainable_modules is 1, expected text"));
  EXPECT_THAT(bad("dist_config: {name: fsdpturbo, hook_modules: a}\n"), HasSubstr("expected a list of text"));
  EXPECT_THAT(bad("output_dir: ''\n"), HasSubstr("output_dir is empty"));
  EXPECT_THAT(bad("output_dir: 2024\n"), HasSubstr("Put it in quotes: \"2024\"."));
  EXPECT_THAT(bad("micro_batch_size: null\n"), HasSubstr("micro_batch_size is null, expected an integer of at least 1. "
                                                         "Leave the key out for its default."));
  EXPECT_THAT(bad("learning_rate:\n"), HasSubstr("learning_rate is null, expected a number of at least 0. "));
  EXPECT_THAT(bad("shuffle: null\n"), HasSubstr("shuffle is null, expected true or false. "));
  EXPECT_THAT(bad("flash_attn: null\n"), HasSubstr("flash_attn is null, expected one of eager, sdpa"));
  EXPECT_THAT(bad("optim_config: {name: adamw, betas: null}\n"), HasSubstr("betas is null, expected a list of two"));
  EXPECT_THAT(bad("flash_attn: SDPA\n"), HasSubstr("Did you mean sdpa?"));
}

TEST(Load, DebugRouter) {
  using Kind = DebugRouter::Kind;
  EXPECT_FALSE(parse_ok("debug_router: null\n").config.model.debug_router.is_on());
  EXPECT_EQ(parse_ok("debug_router: balanced\n").config.model.debug_router,
            (DebugRouter{Kind::kBalanced, 0, 0, {}, 0}));
  EXPECT_EQ(parse_ok("debug_router: hot:2@0\n").config.model.debug_router, (DebugRouter{Kind::kHot, 2, 0, 0, 0}));
  EXPECT_EQ(parse_ok("debug_router: none:1\n").config.model.debug_router, (DebugRouter{Kind::kNone, 0, 1, {}, 0}));
  EXPECT_EQ(parse_ok("debug_router: balanced@3\n").config.model.debug_router,
            (DebugRouter{Kind::kBalanced, 0, 0, 3, 0}));
  EXPECT_EQ(parse_ok("debug_router: rotating:4\n").config.model.debug_router,
            (DebugRouter{Kind::kRotating, 4, 0, {}, 0}));
  EXPECT_EQ(parse_ok("debug_router: burst:2/8@1\n").config.model.debug_router, (DebugRouter{Kind::kBurst, 2, 0, 1, 8}));
  for (const char* text : {"hot",     "hot:",       "hot:0",     "hot:-1",    "hot:x",    "none",
                           "none:1@", "balanced:2", "warm:2",    "@1",        "hot:2@x",  "hot:99999999999999999999",
                           "true",    "",           "balanced@", "hot:2@1@1", "rotating", "rotating:0",
                           "burst:2", "burst:2/0",  "burst:0/4", "burst:2/",  "hot:2/4"}) {
    EXPECT_THAT(bad(std::string("debug_router: '") + text + "'\n"), HasSubstr("expected balanced, hot:K, none:RANK"))
        << text;
  }
}

TEST(Load, Combinations) {
  const std::string attention = "flash_attn: flash_attention_2\n";
  EXPECT_THAT(bad("batching_strategy: padding_free\n"), HasSubstr("need flash_attn: flash_attention_2"));
  EXPECT_THAT(bad("batching_strategy: dynamic_padding_free\nmax_steps: 2\n"), HasSubstr("flash_attention_2"));
  EXPECT_THAT(bad(attention + "batching_strategy: dynamic_padding_free\n"), HasSubstr("set max_steps"));
  EXPECT_THAT(bad("batching_strategy: dynamic_batching\nmax_steps: 0\n"), HasSubstr("set max_steps"));
  EXPECT_THAT(bad(attention + "batching_strategy: dynamic_padding_free\nmax_steps: 2\nsave_epochs: 1\n"),
              HasSubstr("use save_steps"));
  EXPECT_NO_THROW(parse_ok(attention + "batching_strategy: padding_free\n"));
  EXPECT_NO_THROW(parse_ok(attention + "batching_strategy: dynamic_padding_free\nmax_steps: 2\nsave_steps: 1\n"));
  EXPECT_THAT(bad("save_steps: 1\nsave_epochs: 1\n"), HasSubstr("both save_steps and save_epochs"));
  EXPECT_THAT(bad("lr_scheduler_config: {name: linear, warmup_steps: 1, warmup_ratio: 0.1}\n"),
              HasSubstr("both warmup_steps and warmup_ratio"));
  EXPECT_THAT(bad("moe_aux_loss: layer\n"), HasSubstr("moe_aux_loss layer without router_aux_loss_coef"));
  EXPECT_NO_THROW(parse_ok("moe_aux_loss: layer\nrouter_aux_loss_coef: 0.01\n"));
  EXPECT_NO_THROW(parse_ok("moe_aux_loss: global\n"));
  EXPECT_THAT(bad("peft_config: {name: lora}\ninit_config: {name: init_on_meta}\n"), HasSubstr("init_on_meta"));
  EXPECT_NO_THROW(parse_ok("peft_config: {name: freeze}\ninit_config: {name: init_on_meta}\n"));
}

TEST(Load, Warnings) {
  EXPECT_TRUE(parse_ok("").warnings.empty());
  EXPECT_THAT(parse_ok("trust_remote_code: true\n").warnings,
              ElementsAre("c.yaml:3:20: trust_remote_code has no effect: nothing of a model directory is ever run"));
  EXPECT_THAT(parse_ok("lr_scheduler_config: {name: constant, min_lr_ratio: 0.1}\n").warnings,
              ElementsAre(HasSubstr("min_lr_ratio has no effect with constant")));
}

// The fields of upstream's example files (spec section 9): valid as they stand, or refused by name.
TEST(Load, UpstreamsExamples) {
  const std::string common =
      "model_class: llm\nmicro_batch_size: 1\ncutoff_len: 2048\nlearning_rate: 1.0e-4\nmax_steps: 10\n"
      "sample_backend: hf\nmax_new_tokens: 128\nquant_config: null\n";
  const std::string examples[] = {
      "dist_config:\n  name: fsdp2\n  dcp_path: null\nkernel_config:\n  name: auto\noutput_dir: outputs/test_fsdp2\n",
      // NOLINTNEXTLINE(bugprone-suspicious-missing-comma): a file each, long ones in two lines
      "dist_config: {name: fsdp2}\noptim_config: {name: muon, wd: 0.1, momentum: 0.95, nesterov: true, ns_steps: 5, "
      "adamw_betas: [0.9, 0.95], adamw_eps: 1.0e-8}\n",
      "dist_config: {name: fsdp2, dcp_path: null}\ntrust_remote_code: true\nflash_attn: flash_attention_2\n"
      "cp_mode: ulysses\ncp_size: 2\nbf16: false\n",
      "dist_config: {name: fsdpturbo, ep_size: 16, ep_dispatcher: eager}\ncp_size: 1\nbf16: true\n"
      "init_config: {name: init_on_meta}\nkernel_config:\n  name: 'auto, flash-linear-attention'\n"
      "  include_kernels: chunk_gated_delta_rule, fused_recurrent_gated_delta_rule\n  chunk_size: 64\n",
      "batching_strategy: dynamic_batching\n", "batching_strategy: padding_free\nflash_attn: flash_attention_2\n",
      "batching_strategy: dynamic_padding_free\nflash_attn: flash_attention_2\n",
      "peft_config: {name: lora, r: 16, lora_alpha: 32, lora_dropout: 0.05, target_modules: all}\n"
      "init_config: {name: init_on_rank0}\n",
      "peft_config: {name: freeze, freeze_trainable_layers: 2, freeze_trainable_modules: all, freeze_extra_modules: "
      "null}\n"};
  for (const std::string& example : examples) EXPECT_NO_THROW(parse_ok(common + example)) << example;
}

TEST(Overrides, WinAndMerge) {
  const Loaded loaded = parse_ok(
      "learning_rate: 1e-4\ndist_config:\n  name: fsdpturbo\n  ep_size: 2\n",
      {"learning_rate=5e-6", "dist_config.ep_size=4", "bf16=off", "max_steps=", "dist_config.hook_modules=[a, b]"});
  EXPECT_DOUBLE_EQ(loaded.config.train.learning_rate, 5e-6);
  EXPECT_EQ(loaded.config.dist.ep_size, 4);
  EXPECT_EQ(loaded.config.dist.backend, DistBackend::kFsdpTurbo);
  EXPECT_FALSE(loaded.config.train.bf16);
  EXPECT_FALSE(loaded.config.train.max_steps.has_value());
  EXPECT_THAT(loaded.config.dist.hook_modules, ElementsAre("a", "b"));
  EXPECT_EQ(loaded.positions.of("dist_config.ep_size"), "override #2 dist_config.ep_size=4");
  EXPECT_EQ(loaded.positions.of("dist_config.name"), "c.yaml:5:9");
  EXPECT_EQ(loaded.positions.of("dist_config.efsdp_size"), "c.yaml:4:1");
  EXPECT_EQ(loaded.positions.of("seed"), "c.yaml");
}

TEST(Overrides, OfWholeSections) {
  const std::string file = "dist_config: '{\"name\": \"fsdpturbo\", \"ep_size\": 2}'\n";
  EXPECT_EQ(parse_ok(file, {"dist_config=null"}).config.dist, DistConfig());
  EXPECT_EQ(parse_ok(file, {"dist_config.ep_size=8"}).config.dist.ep_size, 8);
  EXPECT_EQ(parse_ok(file, {"dist_config={efsdp_size: 2}"}).config.dist.ep_size, 2);  // merged
  EXPECT_EQ(parse_ok("", {"dist_config={name: fsdpturbo, ep_size: 2}"}).config.dist.ep_size, 2);
  EXPECT_EQ(parse_ok("", {"dist_config.name=fsdpturbo", "dist_config.ep_size=2"}).config.dist.ep_size, 2);
  EXPECT_EQ(parse_ok("", {"dist_config='{\"name\": \"fsdpturbo\", \"ep_size\": 3}'"}).config.dist.ep_size, 3);
  EXPECT_THAT(bad("", {"dist_config.ep_size=2"}), HasSubstr("dist_config has no name"));
}

TEST(Overrides, TextMayLookLikeANumber) {
  EXPECT_EQ(parse_ok("", {"output_dir=2024"}).config.train.output_dir, "2024");
  EXPECT_EQ(parse_ok("", {"output_dir=a=b"}).config.train.output_dir, "a=b");
  EXPECT_EQ(parse_ok("", {"train_dataset=data/x.yaml"}).config.data.train_dataset, "data/x.yaml");
}

TEST(Overrides, Errors) {
  EXPECT_EQ(bad("", {"max_steps=3", "dist_config.ep_dispacher=fused"}),
            "error[config/dist_config] override #2 dist_config.ep_dispacher=fused: dist_config has no name, expected "
            "name: one of fsdp2, fsdpturbo\n"
            "  override #2 dist_config.ep_dispacher=fused: unknown key dist_config.ep_dispacher. Did you mean "
            "ep_dispatcher?\n"
            "  2 faults in all");
  EXPECT_THAT(bad("", {"learning_rat=1"}), HasSubstr("override #1 learning_rat=1: unknown key learning_rat"));
  EXPECT_THAT(bad("", {"max_steps=1.5"}),
              HasSubstr("override #1 max_steps=1.5: max_steps is 1.5, expected an integer"));
  EXPECT_THAT(bad("", {"max_steps"}), HasSubstr("expected key=value"));
  EXPECT_THAT(bad("", {"=3"}), HasSubstr("expected key=value"));
  EXPECT_THAT(bad("", {".a=3"}), HasSubstr("a key is a name, or section.name"));
  EXPECT_THAT(bad("", {"dist_config.=3"}), HasSubstr("a key is a name, or section.name"));
  EXPECT_THAT(bad("", {"max_steps.a=3"}), HasSubstr("max_steps is a mapping, expected an integer"));
  EXPECT_THAT(bad("", {"dist_confg.ep_size=3"}), HasSubstr("unknown key dist_confg. Did you mean dist_config?"));
  EXPECT_THAT(bad("", {"max_steps=[1"}), HasSubstr("override #1 max_steps=[1: a bracket that is not closed"));
  EXPECT_THAT(bad("", {"max_steps=&a 1"}), HasSubstr("an anchor"));
  EXPECT_THAT(bad("", {"output_dir=caf\xE9"}), HasSubstr("not UTF-8"));
  EXPECT_THAT(bad("", {"a.b.c.d.e.f=1"}), HasSubstr("a key is a name, or section.name"));
  EXPECT_THAT(bad("", {"output_dir=\"a"}), HasSubstr("not closed"));
}

}  // namespace
}  // namespace expertmesh::config
