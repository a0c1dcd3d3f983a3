// SPDX-License-Identifier: Apache-2.0
// What a model's weights are called: for each own parameter its shape and the tensors of a checkpoint that fill it. One
// table drives loading, saving, the report of missing and unexpected tensors, and `init`. No torch.
// A parameter may have several layouts: "fused" is one tensor, "split" is many (one per expert and projection). Which
// one a checkpoint has is found by looking.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "ckpt/slice.h"

namespace expertmesh::ckpt {

// One tensor of a checkpoint and the box of the parameter that it fills. Its shape is the box's, possibly without dims
// of size 1: "experts.3.up_proj.weight" [I, H] fills [3:4, I:2I, 0:H] of gate_up_proj [E, 2I, H].
struct SourcePiece {
  std::string name;
  Shape shape;
  Slice box;
};

// Pieces that together fill the parameter exactly once.
struct SourceLayout {
  std::string name;  // "plain", "split", "fused"
  std::vector<SourcePiece> pieces;
};

struct WeightEntry {
  std::string name;  // the model's own
  Shape shape;
  int expert_dim = -1;                // the dim that counts experts; -1: none
  bool keep_dtype = false;            // saved in the source's dtype even when trained (A_log, dt_bias)
  std::vector<SourceLayout> layouts;  // the first one is written where there is no source
};

// A tensor that a checkpoint may hold although the model has no such parameter: it must equal `same_as` (a tensor name)
// byte for byte, is not read otherwise, and is not written.
struct SourceAlias {
  std::string name;
  std::string same_as;
};

class WeightTable {
 public:
  // A parameter stored as one tensor. `source` empty: under its own name.
  WeightEntry& add(std::string name, Shape shape, std::string source = {});

  // The expert weights of one layer: own `PREFIX.gate_up_proj` [E, 2I, H] and `PREFIX.down_proj` [E, H, I], read as
  // "split" (`SOURCE.{e}.gate_proj.weight`, `.up_proj.weight`, `.down_proj.weight`) or "fused" (`SOURCE.gate_up_proj`,
  // `SOURCE.down_proj`). `source` empty: the same prefix. The first of `layouts` is the default for saving.
  void add_experts(const std::string& prefix, int64_t experts, int64_t intermediate, int64_t hidden,
                   std::string source = {}, const std::vector<std::string>& layouts = {"split", "fused"});

  // Tied embeddings, after the embedding was added: `name` ("lm_head.weight") may be there as a copy of `same_as`, or
  // alone, in its place. As transformers reads it, but for two that differ: that is an error here, not an untied model.
  void add_alias(std::string name, const std::string& same_as);

  // Tensors whose name starts so are not read, and are carried to a saved model unchanged ("model.visual.", "mtp.").
  void pass_through(std::string prefix) { pass_through_.push_back(std::move(prefix)); }

  const std::vector<WeightEntry>& entries() const { return entries_; }
  const std::vector<SourceAlias>& aliases() const { return aliases_; }
  bool is_pass_through(std::string_view source_name) const;

  // The entry of an own name. Programmer error where there is none.
  const WeightEntry& entry(std::string_view name) const { return entries_[index(name)]; }
  size_t index(std::string_view name) const;

 private:
  WeightEntry& append(WeightEntry entry);

  std::vector<WeightEntry> entries_;
  std::unordered_map<std::string, size_t> index_;
  std::vector<SourceAlias> aliases_;
  std::vector<std::string> pass_through_;
};

}  // namespace expertmesh::ckpt
