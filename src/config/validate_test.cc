// SPDX-License-Identifier: Apache-2.0
#include "config/validate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "config/print.h"
#include "config/test_util.h"

namespace expertmesh::config {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr ModelSizes kModel{
    .num_experts = 8, .num_experts_per_tok = 2, .num_attention_heads = 4, .has_linear_attention = false};

std::string world_error(const std::string& text, int64_t world, const ModelSizes& model = {}) {
  const Loaded loaded = parse_ok(text);
  return error_of([&] { validate_for_world(loaded, world, model); });
}

std::string unbuilt_error(const std::string& text, Command command = Command::kSft) {
  const Loaded loaded = parse_ok(text);
  return error_of([&] { refuse_unbuilt(loaded, command); });
}

TEST(World, SizesFollow) {
  const Loaded loaded = parse_ok(
      "dist_config: {name: fsdpturbo, ep_size: 2, efsdp_size: 2}\nmicro_batch_size: 2\nglobal_batch_size: 64\n");
  const WorldSizes sizes = validate_for_world(loaded, 16, kModel);
  EXPECT_EQ(sizes.dp_size, 16);
  EXPECT_EQ(sizes.ep_size, 2);
  EXPECT_EQ(sizes.efsdp_size, 2);
  EXPECT_EQ(sizes.edp_size, 4);
  EXPECT_EQ(sizes.mp_shard_size, 16);
  EXPECT_EQ(sizes.num_micro_batch, 2);
}

TEST(World, EveryAcceptedMeshMultipliesToTheWorld) {
  int accepted = 0;
  for (int64_t world : {1, 2, 3, 4, 6, 8, 12, 16}) {
    for (int64_t cp : {1, 2, 3, 4}) {
      for (int64_t ep : {1, 2, 3, 4, 8}) {
        for (int64_t efsdp : {0, 1, 2, 3, 4}) {
          Loaded loaded;
          loaded.config.topology.cp_size = cp;
          loaded.config.dist.backend = DistBackend::kFsdpTurbo;
          loaded.config.dist.ep_size = ep;
          if (efsdp > 0) loaded.config.dist.efsdp_size = efsdp;
          const bool fits = world % cp == 0 && (world / cp) % ep == 0 && (efsdp == 0 || (world / cp / ep) % efsdp == 0);
          if (!fits) {
            EXPECT_THROW(validate_for_world(loaded, world), base::Error);
            continue;
          }
          ++accepted;
          const WorldSizes sizes = validate_for_world(loaded, world);
          EXPECT_EQ(sizes.edp_size * sizes.efsdp_size * sizes.ep_size * sizes.cp_size, world);
          EXPECT_EQ(sizes.dp_size * sizes.cp_size, world);
          EXPECT_EQ(sizes.mp_replicate_size * sizes.mp_shard_size, world);
        }
      }
    }
  }
  EXPECT_GT(accepted, 100);
}

TEST(World, MessagesNameBothValuesAndWhatWorks) {
  EXPECT_EQ(world_error("dist_config:\n  name: fsdpturbo\n  ep_size: 3\n", 8),
            "error[config/ep_size] c.yaml:5:12: ep_size 3 does not divide dp_size 8. Sizes that work: 1, 2, 4, 8.");
  EXPECT_EQ(
      world_error("dist_config: {name: fsdpturbo, ep_size: 16}\n", 16, kModel),
      "error[config/ep_size] c.yaml:3:41: ep_size 16 does not divide num_experts 8 of the model. Sizes that work: "
      "1, 2, 4, 8.");
  EXPECT_EQ(world_error("mp_replicate_size: 3\n", 8),
            "error[config/mp_replicate_size] c.yaml:3:20: mp_replicate_size 3 does not divide the 8 ranks. Sizes that "
            "work: 1, 2, 4, 8.");
  EXPECT_EQ(world_error("mp_replicate_size: 2\nmp_shard_size: 2\n", 8),
            "error[config/mp_shard_size] c.yaml:4:16: mp_replicate_size 2 x mp_shard_size 2 is 4, not the 8 ranks. Use "
            "mp_shard_size 4, or leave it out.");
  EXPECT_EQ(
      world_error("dp_size: 3\ncp_size: 2\n", 8),
      "error[config/dp_size] c.yaml:3:10: dp_size 3 x cp_size 2 is 6, not the 8 ranks. Use dp_size 4, or leave it "
      "out.");
  EXPECT_THAT(world_error("cp_size: 8\n", 8, kModel),
              HasSubstr("num_attention_heads 4 of the model. Sizes that work: 1, 2, 4."));
  EXPECT_THAT(world_error("micro_batch_size: 2\nglobal_batch_size: 20\n", 4), HasSubstr("Use 16 or 24."));
  EXPECT_THAT(world_error("global_batch_size: 2\n", 4), HasSubstr("Use 4."));
  EXPECT_THAT(world_error("dist_config: {name: fsdpturbo, efsdp_size: 3}\n", 8), HasSubstr("1, 2, 4, 8"));
  EXPECT_THAT(world_error("debug_router: balanced@4\n", 4), HasSubstr("names rank 4, there are 4 ranks"));
  EXPECT_THAT(world_error("debug_router: none:9\n", 4), HasSubstr("names rank 9"));
  EXPECT_THAT(world_error("debug_router: hot:1\n", 4, kModel), HasSubstr("Use 2 to 8."));
  EXPECT_THAT(world_error("debug_router: hot:9\n", 4, kModel), HasSubstr("hot:9 in a model with 8 experts"));
  EXPECT_THAT(world_error("debug_router: rotating:1\n", 4, kModel), HasSubstr("rotating:1 in a model with 8 experts"));
  EXPECT_THAT(world_error("debug_router: burst:9/2\n", 4, kModel), HasSubstr("burst:9/2 in a model with 8 experts"));
}

TEST(World, DedupOnlyWhereItHasAnEffect) {
  const auto error = [](const std::string& rest) {
    return world_error("dist_config: {name: fsdpturbo, " + rest + "}\n", 4);
  };
  EXPECT_THAT(error("ep_size: 2, ep_dedup: false"), HasSubstr("ep_dedup false has no effect with ep_dispatcher eager"));
  EXPECT_THAT(error("ep_dispatcher: fused, ep_dedup: true"), HasSubstr("ep_dedup true has no effect with ep_size 1"));
  for (const char* rest : {"ep_size: 2, ep_dedup: auto", "ep_size: 2, ep_dispatcher: fused, ep_dedup: false",
                           "ep_size: 2, ep_dispatcher: auto, ep_dedup: true", "ep_dedup: auto"}) {
    const Loaded loaded = parse_ok(std::string("dist_config: {name: fsdpturbo, ") + rest + "}\n");
    EXPECT_NO_THROW(validate_for_world(loaded, 4)) << rest;
  }
}

TEST(World, WithoutExpertMeshAllRanksAreReplicasOfExperts) {
  const WorldSizes sizes = validate_for_world(parse_ok("dist_config: {name: fsdp2}\n"), 4);
  EXPECT_EQ(sizes.ep_size * sizes.efsdp_size, 1);
  EXPECT_EQ(sizes.edp_size, 4);
}

TEST(Kernels, NamedOperatorsMustFit) {
  const auto check = [](const std::string& text, bool has_layers) {
    ModelSizes model;
    model.has_linear_attention = has_layers;
    validate_kernels(parse_ok(text), model);
  };
  const std::string named = "kernel_config: {name: 'auto, flash-linear-attention'}\n";
  EXPECT_THAT(error_of([&] { check(named, false); }), HasSubstr("flash-linear-attention (chunk_gated_delta_rule"));
  EXPECT_NO_THROW(check(named, true));
  EXPECT_NO_THROW(check("", false));  // left out: takes what fits
  EXPECT_NO_THROW(check("kernel_config: {name: auto}\n", false));
}

TEST(Unbuilt, IsRefusedByNameAllAtOnce) {
  const std::string refused[] = {"cp_size: 2\n",
                                 "resume_from_checkpoint: auto\n",
                                 "save_steps: 10\n",
                                 "save_epochs: 0.5\n",
                                 "save_ckpt_as_hf: true\n",
                                 "save_total_limit: 2\n",
                                 "on_save_error: continue\n",
                                 "peft_config: {name: lora}\n",
                                 "peft_config: {name: freeze}\n",
                                 "model_class: cls\n",
                                 "model_class: other\n",
                                 "dist_config: {name: fsdp2, offload_params: true}\n",
                                 "eval_dataset: a\n",
                                 "optim_config: {name: muon}\n",
                                 "custom_chat_template: a\n",
                                 "pref_loss: orpo\n",
                                 "pref_beta: 0.2\n",
                                 "pref_ftx: 0.2\n",
                                 "simpo_gamma: 0.2\n",
                                 "dpo_label_smoothing: 0.2\n",
                                 "ld_alpha: 0.2\n",
                                 "pref_weighting: tokens\n"};
  for (const std::string& text : refused) {
    const std::string message = unbuilt_error(text);
    EXPECT_THAT(message, HasSubstr("is not built yet")) << text;
    EXPECT_THAT(message, HasSubstr("c.yaml:")) << text;
  }
  EXPECT_THAT(unbuilt_error("cp_size: 2\nsave_steps: 5\n"), HasSubstr("2 faults in all"));
  EXPECT_THAT(unbuilt_error("", Command::kDpo), HasSubstr("the command dpo is not built yet"));
  EXPECT_THAT(unbuilt_error("", Command::kRm), HasSubstr("the command rm is not built yet"));
  for (const Command command : {Command::kDpo, Command::kRm}) {
    const std::string packed = "flash_attn: flash_attention_2\nbatching_strategy: padding_free\n";
    EXPECT_THAT(unbuilt_error(packed, command), HasSubstr("batching_strategy padding_free for pairs is not built yet"));
    EXPECT_THAT(unbuilt_error("max_steps: 1\nbatching_strategy: dynamic_batching\n", command),
                Not(HasSubstr("for pairs")));
  }
}

TEST(Unbuilt, WhatIsBuiltPasses) {
  const std::string built[] = {
      "",
      "flash_attn: flash_attention_2\n",
      "flash_attn: eager\n",
      "flash_attn: flash_attention_2\nbatching_strategy: padding_free\n",
      "max_steps: 1\nbatching_strategy: dynamic_batching\n",
      "flash_attn: flash_attention_2\nmax_steps: 1\nbatching_strategy: dynamic_padding_free\n",
      "init_config: {name: init_on_rank0}\n",
      "init_config: {name: init_on_meta}\n",
      "dist_config: {name: fsdp2}\n",
      "dist_config: {name: fsdpturbo, ep_size: 2, fsdp_implementation: custom, reshard_after_forward: false}\n",
      "optim_config: {name: sgd}\n",
      "lr_scheduler_config: {name: cosine, warmup_ratio: 0.1, min_lr_ratio: 0.1}\n",
      "debug_router: hot:2@0\n",
      "debug_router: burst:2/8\n",
      "router_aux_loss_coef: 0.01\n",
      "router_aux_loss_coef: 0.01\nmoe_aux_loss: layer\n",
      "full_determinism: true\n",
      "kernel_config: {name: reference}\n",
      "pref_loss: sigmoid\nsave_ckpt_as_hf: false\ncp_size: 1\n"};
  for (const std::string& text : built) EXPECT_NO_THROW(refuse_unbuilt(parse_ok(text), Command::kSft)) << text;
  // A resolved configuration spells every default and must not be refused for it.
  EXPECT_NO_THROW(
      refuse_unbuilt(parse_config(print_yaml(parse_ok("").config), "r.yaml", {}, Command::kSft), Command::kSft));
}

}  // namespace
}  // namespace expertmesh::config
