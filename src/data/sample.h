// SPDX-License-Identifier: Apache-2.0
// What a training row is between the file and the batch: messages of blocks (the internal format, spec 4.3), then
// tokens.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace expertmesh::data {

enum class Role : uint8_t { kSystem, kUser, kAssistant, kTool };
enum class BlockType : uint8_t { kText, kReasoning, kToolCall };

std::string_view role_name(Role role);                // "system", ...
std::optional<Role> try_role(std::string_view name);  // the reverse
std::string_view block_type_name(BlockType type);     // "text", "reasoning", "tool_call"
std::optional<BlockType> try_block_type(std::string_view name);

// A piece of a message. The value of a tool call is JSON text: {"name": ..., "arguments": {...}}.
struct Block {
  BlockType type = BlockType::kText;
  std::string value;
  bool operator==(const Block&) const = default;
};

struct Message {
  Role role = Role::kUser;
  std::vector<Block> content;
  float loss_weight = 1.0F;  // only meaningful for the assistant
  bool operator==(const Message&) const = default;
};

// Weights up to here count as zero: the turn is context only.
constexpr float kLossWeightEpsilon = 1e-6F;
// A label that is not supervised.
constexpr int32_t kIgnoredLabel = -100;

enum class RowKind : uint8_t { kMessages, kPair, kTokenized };

// One row of a data set after conversion. Which fields are filled depends on `kind`.
struct Row {
  RowKind kind = RowKind::kMessages;
  std::vector<Message> messages;     // kMessages; the chosen side of kPair
  std::vector<Message> rejected;     // kPair
  std::optional<std::string> tools;  // JSON text of a list of tools
  std::string extra_info;
  std::vector<int32_t> input_ids, labels;  // kTokenized, of equal length
};

// One training sample, already cut at cutoff_len. All three have the same length; labels[t] is predicted from t - 1.
struct Sample {
  std::vector<int32_t> input_ids;
  std::vector<int32_t> labels;  // kIgnoredLabel where not supervised
  std::vector<float> loss_weights;
};

}  // namespace expertmesh::data
