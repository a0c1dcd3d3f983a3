// SPDX-License-Identifier: Apache-2.0
#include "config/choices.h"

namespace expertmesh::config {

#define EXPERTMESH_CHOICES(Enum, ...)                          \
  template <>                                                  \
  std::span<const ChoiceName<Enum>> choices<Enum>() {          \
    using enum Enum;                                           \
    static constexpr ChoiceName<Enum> kRows[] = {__VA_ARGS__}; \
    return kRows;                                              \
  }                                                            \
  static_assert(true)

EXPERTMESH_CHOICES(FlashAttention, {kEager, "eager"}, {kSdpa, "sdpa"}, {kFlashAttention2, "flash_attention_2"});
EXPERTMESH_CHOICES(ModelClass, {kLlm, "llm"}, {kCls, "cls"}, {kOther, "other"});
EXPERTMESH_CHOICES(ChatMarkup, {kAuto, "auto"}, {kChatMl, "chatml"}, {kQwen3, "qwen3"}, {kQwen3_2507, "qwen3_2507"},
                   {kQwen3_5, "qwen3_5"});
EXPERTMESH_CHOICES(AuxLoss, {kGlobal, "global"}, {kLayer, "layer"});
EXPERTMESH_CHOICES(BatchingStrategy, {kNormal, "normal"}, {kPaddingFree, "padding_free"},
                   {kDynamicBatching, "dynamic_batching"}, {kDynamicPaddingFree, "dynamic_padding_free"});
EXPERTMESH_CHOICES(OnNonfinite, {kSkip, "skip"}, {kStop, "stop"});
EXPERTMESH_CHOICES(CpMode, {kUlysses, "ulysses"});
EXPERTMESH_CHOICES(OnSaveError, {kStop, "stop"}, {kContinue, "continue"});
EXPERTMESH_CHOICES(PrefLoss, {kSigmoid, "sigmoid"}, {kOrpo, "orpo"}, {kSimpo, "simpo"});
EXPERTMESH_CHOICES(PrefWeighting, {kPairs, "pairs"}, {kTokens, "tokens"});
EXPERTMESH_CHOICES(SampleBackend, {kHf, "hf"});
EXPERTMESH_CHOICES(DistBackend, {kFsdp2, "fsdp2"}, {kFsdpTurbo, "fsdpturbo"});
EXPERTMESH_CHOICES(Dispatcher, {kEager, "eager"}, {kFused, "fused"}, {kMc2, "mc2"}, {kDomino, "domino"},
                   {kAuto, "auto"});
EXPERTMESH_CHOICES(Dedup, {kAuto, "auto"}, {kTrue, "true"}, {kFalse, "false"});
EXPERTMESH_CHOICES(FsdpImplementation, {kNative, "native"}, {kCustom, "custom"});
EXPERTMESH_CHOICES(InitMode, {kDefault, "init_on_default"}, {kRank0, "init_on_rank0"}, {kMeta, "init_on_meta"});
EXPERTMESH_CHOICES(Kernel, {kAuto, "auto"}, {kFlashLinearAttention, "flash-linear-attention"},
                   {kReference, "reference"});
EXPERTMESH_CHOICES(LinearAttentionOp, {kChunkGatedDeltaRule, "chunk_gated_delta_rule"},
                   {kFusedRecurrentGatedDeltaRule, "fused_recurrent_gated_delta_rule"});
EXPERTMESH_CHOICES(Optimizer, {kAdamW, "adamw"}, {kSgd, "sgd"}, {kMuon, "muon"});
EXPERTMESH_CHOICES(MasterWeights, {kFp32, "fp32"}, {kNone, "none"});
EXPERTMESH_CHOICES(Schedule, {kConstant, "constant"}, {kLinear, "linear"}, {kCosine, "cosine"});
EXPERTMESH_CHOICES(PeftKind, {kLora, "lora"}, {kFreeze, "freeze"});
EXPERTMESH_CHOICES(InferDType, {kAuto, "auto"}, {kFloat16, "float16"}, {kFloat32, "float32"}, {kBFloat16, "bfloat16"});
#undef EXPERTMESH_CHOICES

#define EXPERTMESH_REFUSED(Enum, ...)                     \
  template <>                                             \
  std::span<const RefusedName> refused_names<Enum>() {    \
    static constexpr RefusedName kRows[] = {__VA_ARGS__}; \
    return kRows;                                         \
  }                                                       \
  static_assert(true)

EXPERTMESH_REFUSED(DistBackend, {"deepspeed", "Use fsdp2 or fsdpturbo."}, {"ddp", "Leave dist_config out."});
EXPERTMESH_REFUSED(SampleBackend, {"vllm", "Use hf."});
EXPERTMESH_REFUSED(Kernel, {"liger_kernel", "The built-in loss already works without full logits; use auto."},
                   {"cuda_fused_moe", "The experts' path is chosen by dist_config.ep_dispatcher."},
                   {"npu_fused_moe", "There is no NPU backend; use auto."},
                   {"npu_fused_rmsnorm", "There is no NPU backend; use auto."},
                   {"npu_fused_rope", "There is no NPU backend; use auto."},
                   {"npu_fused_swiglu", "There is no NPU backend; use auto."});
#undef EXPERTMESH_REFUSED

}  // namespace expertmesh::config
