// SPDX-License-Identifier: Apache-2.0
// The values of keys that offer a choice, with their spelling in the file. A new choice is one enumerator and one row
// of its table in choices.cc. Names that upstream knows and this product refuses for good stand in a table beside it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace expertmesh::config {

enum class FlashAttention { kEager, kSdpa, kFlashAttention2 };
enum class ModelClass { kLlm, kCls, kOther };
enum class ChatMarkup { kAuto, kChatMl, kQwen3, kQwen3_2507, kQwen3_5 };
enum class AuxLoss { kGlobal, kLayer };
enum class BatchingStrategy { kNormal, kPaddingFree, kDynamicBatching, kDynamicPaddingFree };
enum class OnNonfinite { kSkip, kStop };
enum class CpMode { kUlysses };
enum class OnSaveError { kStop, kContinue };
enum class PrefLoss { kSigmoid, kOrpo, kSimpo };
enum class PrefWeighting { kPairs, kTokens };
enum class SampleBackend { kHf };
enum class DistBackend { kReplicated, kFsdp2, kFsdpTurbo };  // kReplicated is the null section
enum class Dispatcher { kEager, kFused, kMc2, kDomino, kAuto };
enum class Dedup { kAuto, kTrue, kFalse };
enum class FsdpImplementation { kNative, kCustom };
enum class InitMode { kDefault, kRank0, kMeta };
enum class Kernel { kAuto, kFlashLinearAttention, kReference };
enum class LinearAttentionOp { kChunkGatedDeltaRule, kFusedRecurrentGatedDeltaRule };
enum class Optimizer { kAdamW, kSgd, kMuon };
enum class MasterWeights { kFp32, kNone };
enum class Schedule { kConstant, kLinear, kCosine };
enum class PeftKind { kNone, kLora, kFreeze };  // kNone is the null section
enum class InferDType { kAuto, kFloat16, kFloat32, kBFloat16 };

// One spelling of a choice. The enumerators of null sections have none.
template <typename E>
struct ChoiceName {
  E value;
  std::string_view name;
};

// A name that is known and never accepted, with what to do instead.
struct RefusedName {
  std::string_view name;
  std::string_view instead;  // a full sentence
};

// All spellings, in the order in which messages list them.
template <typename E>
std::span<const ChoiceName<E>> choices();

template <typename E>
std::span<const RefusedName> refused_names() {
  return {};
}
template <>
std::span<const RefusedName> refused_names<DistBackend>();
template <>
std::span<const RefusedName> refused_names<SampleBackend>();
template <>
std::span<const RefusedName> refused_names<Kernel>();

// NOLINTBEGIN(bugprone-macro-parentheses): a template argument takes none
#define EXPERTMESH_CHOICES(Enum) \
  template <>                    \
  std::span<const ChoiceName<Enum>> choices<Enum>()
// NOLINTEND(bugprone-macro-parentheses)
EXPERTMESH_CHOICES(FlashAttention);
EXPERTMESH_CHOICES(ModelClass);
EXPERTMESH_CHOICES(ChatMarkup);
EXPERTMESH_CHOICES(AuxLoss);
EXPERTMESH_CHOICES(BatchingStrategy);
EXPERTMESH_CHOICES(OnNonfinite);
EXPERTMESH_CHOICES(CpMode);
EXPERTMESH_CHOICES(OnSaveError);
EXPERTMESH_CHOICES(PrefLoss);
EXPERTMESH_CHOICES(PrefWeighting);
EXPERTMESH_CHOICES(SampleBackend);
EXPERTMESH_CHOICES(DistBackend);
EXPERTMESH_CHOICES(Dispatcher);
EXPERTMESH_CHOICES(Dedup);
EXPERTMESH_CHOICES(FsdpImplementation);
EXPERTMESH_CHOICES(InitMode);
EXPERTMESH_CHOICES(Kernel);
EXPERTMESH_CHOICES(LinearAttentionOp);
EXPERTMESH_CHOICES(Optimizer);
EXPERTMESH_CHOICES(MasterWeights);
EXPERTMESH_CHOICES(Schedule);
EXPERTMESH_CHOICES(PeftKind);
EXPERTMESH_CHOICES(InferDType);
#undef EXPERTMESH_CHOICES

// "fused"; empty for the enumerator of a null section.
template <typename E>
std::string_view choice_name(E value) {
  for (const ChoiceName<E>& row : choices<E>()) {
    if (row.value == value) return row.name;
  }
  return {};
}

template <typename E>
std::optional<E> try_choice(std::string_view name) {
  for (const ChoiceName<E>& row : choices<E>()) {
    if (row.name == name) return row.value;
  }
  return std::nullopt;
}

// Micro batches filled by a budget of tokens; samples laid end to end instead of padded.
constexpr bool is_dynamic(BatchingStrategy strategy) {
  return strategy == BatchingStrategy::kDynamicBatching || strategy == BatchingStrategy::kDynamicPaddingFree;
}
constexpr bool is_packed(BatchingStrategy strategy) {
  return strategy == BatchingStrategy::kPaddingFree || strategy == BatchingStrategy::kDynamicPaddingFree;
}

}  // namespace expertmesh::config
