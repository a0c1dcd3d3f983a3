// SPDX-License-Identifier: Apache-2.0
#include "train/kernels.h"

#include <gtest/gtest.h>

namespace expertmesh::train {
namespace {

using config::FlashAttention;
using config::Kernel;
using config::LinearAttentionOp;

config::KernelConfig named(std::vector<Kernel> names, std::vector<LinearAttentionOp> included = {}) {
  config::KernelConfig kernel;
  kernel.is_explicit = true;
  kernel.names = std::move(names);
  if (!included.empty()) kernel.include_kernels = std::move(included);
  return kernel;
}

const ops::Operators& native() { return ops::native_operators(); }
const ops::Operators& plain() { return ops::reference_operators(); }

TEST(ChooseOperators, LeftOutTakesTheFastOnes) {
  const ops::Operators chosen = choose_operators({}, FlashAttention::kFlashAttention2);
  EXPECT_EQ(chosen.rms_norm, native().rms_norm);
  EXPECT_EQ(chosen.gated_rms_norm, native().gated_rms_norm);
  EXPECT_EQ(chosen.rope, native().rope);
  EXPECT_EQ(chosen.swiglu, native().swiglu);
  EXPECT_EQ(chosen.sigmoid_gate, native().sigmoid_gate);
  EXPECT_EQ(chosen.delta_gates, native().delta_gates);
  EXPECT_EQ(chosen.attention, native().attention);
  EXPECT_EQ(chosen.gated_delta_rule, native().gated_delta_rule);
  EXPECT_EQ(chosen.gated_delta_step, native().gated_delta_step);
  EXPECT_EQ(chosen.causal_conv1d_silu, native().causal_conv1d_silu);
  EXPECT_EQ(chosen.linear_cross_entropy, native().linear_cross_entropy);
  EXPECT_EQ(chosen.linear_logprobs, native().linear_logprobs);
}

TEST(ChooseOperators, EachNameTakesItsOwnAndNoMore) {
  const ops::Operators fused = choose_operators(named({Kernel::kAuto}), FlashAttention::kSdpa);
  EXPECT_EQ(fused.rms_norm, native().rms_norm);
  EXPECT_EQ(fused.gated_delta_rule, plain().gated_delta_rule);
  EXPECT_EQ(fused.gated_delta_step, plain().gated_delta_step);

  const ops::Operators linear = choose_operators(named({Kernel::kFlashLinearAttention}), FlashAttention::kSdpa);
  EXPECT_EQ(linear.rms_norm, plain().rms_norm);
  EXPECT_EQ(linear.linear_cross_entropy, plain().linear_cross_entropy);
  EXPECT_EQ(linear.gated_delta_rule, native().gated_delta_rule);
  EXPECT_EQ(linear.gated_delta_step, native().gated_delta_step);

  const ops::Operators one = choose_operators(
      named({Kernel::kFlashLinearAttention}, {LinearAttentionOp::kChunkGatedDeltaRule}), FlashAttention::kSdpa);
  EXPECT_EQ(one.gated_delta_rule, native().gated_delta_rule);
  EXPECT_EQ(one.gated_delta_step, plain().gated_delta_step);
}

TEST(ChooseOperators, NamesApplyFromLeftToRight) {
  const ops::Operators last = choose_operators(named({Kernel::kAuto, Kernel::kReference}), FlashAttention::kSdpa);
  EXPECT_EQ(last.rms_norm, plain().rms_norm);
  const ops::Operators after =
      choose_operators(named({Kernel::kReference, Kernel::kFlashLinearAttention}), FlashAttention::kSdpa);
  EXPECT_EQ(after.rms_norm, plain().rms_norm);
  EXPECT_EQ(after.gated_delta_rule, native().gated_delta_rule);
  EXPECT_EQ(after.attention, plain().attention);
}

TEST(ChooseOperators, AttentionFollowsItsOwnKey) {
  for (const FlashAttention name : {FlashAttention::kEager, FlashAttention::kSdpa, FlashAttention::kFlashAttention2}) {
    const ops::Operators& wanted = name == FlashAttention::kEager ? plain() : native();
    EXPECT_EQ(choose_operators({}, name).cached_attention, wanted.cached_attention);
  }
  EXPECT_EQ(choose_operators({}, FlashAttention::kEager).attention, plain().attention);
  EXPECT_EQ(choose_operators({}, FlashAttention::kSdpa).attention, native().attention);
  const config::KernelConfig reference = named({Kernel::kReference});
  EXPECT_EQ(choose_operators(reference, FlashAttention::kFlashAttention2).attention, plain().attention);
}

TEST(KernelsText, SaysWhatFitsTheModel) {
  EXPECT_EQ(kernels_text({}, false), "auto");
  EXPECT_EQ(kernels_text({}, true), "auto, flash-linear-attention, gated delta rule in chunks of 64");
  EXPECT_EQ(kernels_text(named({Kernel::kAuto, Kernel::kReference}), false), "reference");
}

}  // namespace
}  // namespace expertmesh::train
