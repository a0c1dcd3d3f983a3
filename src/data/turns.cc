// SPDX-License-Identifier: Apache-2.0
#include "data/turns.h"

#include <algorithm>

#include "base/error.h"

namespace expertmesh::data {
namespace {

using base::Code;
using base::make_error;

const std::string kTopic = "data/turns";

bool is_empty(const Message& message) {
  return std::ranges::all_of(message.content, [](const Block& block) { return block.value.empty(); });
}

bool is_supervised(const Message& message) {
  return message.role == Role::kAssistant && message.loss_weight > kLossWeightEpsilon;
}

// Markups show reasoning and tool calls of the assistant only; elsewhere they would vanish.
void check_blocks(const std::vector<Message>& messages) {
  for (size_t i = 0; i < messages.size(); ++i) {
    if (messages[i].role == Role::kAssistant) continue;
    for (const Block& block : messages[i].content) {
      if (block.type == BlockType::kText) continue;
      throw make_error(Code::kData, kTopic, "message {} has role {} and a {} block", i + 1, role_name(messages[i].role),
                       block_type_name(block.type))
          .hint("Only an assistant turn can have one; give the text as a text block.");
    }
  }
}

std::vector<int> conversation_cuts(const std::vector<Message>& messages) {
  if (messages.empty()) throw make_error(Code::kData, kTopic, "messages is empty");
  check_blocks(messages);
  std::vector<int> cuts;
  bool has_assistant = false;
  for (size_t i = 0; i < messages.size(); ++i) {
    has_assistant |= messages[i].role == Role::kAssistant;
    if (!is_supervised(messages[i])) continue;
    if (is_empty(messages[i])) {
      throw make_error(Code::kData, kTopic, "the assistant turn to train on (message {}) is empty", i + 1)
          .hint("Give it an answer, or leave the row out.");
    }
    cuts.push_back(static_cast<int>(i) + 1);
  }
  if (!has_assistant) throw make_error(Code::kData, kTopic, "no assistant turn: there is nothing to train on");
  if (cuts.empty()) {
    throw make_error(Code::kData, kTopic, "every assistant turn has loss_weight 0: there is nothing to train on");
  }
  return cuts;
}

void check_side(const std::vector<Message>& side, std::string_view name) {
  if (side.empty()) throw make_error(Code::kData, kTopic, "{} is empty", name);
  check_blocks(side);
  const Message& answer = side.back();
  if (answer.role != Role::kAssistant) {
    throw make_error(Code::kData, kTopic, "{} ends with a {} turn, not with the assistant's answer", name,
                     role_name(answer.role));
  }
  if (is_empty(answer)) throw make_error(Code::kData, kTopic, "the answer of {} is empty", name);
  if (!is_supervised(answer)) throw make_error(Code::kData, kTopic, "the answer of {} has loss_weight 0", name);
}

void check_pair(const Row& row) {
  check_side(row.messages, "chosen");
  check_side(row.rejected, "rejected");
  if (row.messages == row.rejected) {
    throw make_error(Code::kData, kTopic, "chosen and rejected are identical: such a pair teaches nothing");
  }
}

}  // namespace

std::vector<int> row_cuts(const Row& row, Use use) {
  if (use == Use::kPreference) {
    if (row.kind != RowKind::kPair) {
      throw make_error(Code::kData, kTopic, "dpo and rm need chosen_messages and rejected_messages in each row")
          .hint("Rows with chosen and rejected lists are read with converter: pair.");
    }
    check_pair(row);
    return {0};
  }
  if (row.kind == RowKind::kPair) {
    throw make_error(Code::kData, kTopic, "a preference pair, where sft needs messages")
        .hint("Pairs are for dpo and rm.");
  }
  if (row.kind == RowKind::kTokenized) return {0};
  return conversation_cuts(row.messages);
}

}  // namespace expertmesh::data
