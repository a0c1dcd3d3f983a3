// SPDX-License-Identifier: Apache-2.0
#include "data/render.h"

#include <algorithm>

#include "base/error.h"
#include "data/tokenizer.h"

namespace expertmesh::data {
namespace {

using base::Code;
using base::Json;
using base::make_error;

const std::string kTopic = "data/render";
constexpr std::string_view kZeroWidthSpace = "\xe2\x80\x8b";
constexpr std::string_view kOpener = "<|im_start|>";

// Bytes of the UTF-8 character that starts with this byte.
size_t character_bytes(char first) {
  const auto byte = static_cast<unsigned char>(first);
  if (byte < 0xc0) return 1;
  return byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
}

ToolCall parse_call(const std::string& value) {
  Json json;
  try {
    json = base::parse_json(value);
  } catch (const base::JsonError& error) {
    throw make_error(Code::kData, kTopic, "the value of a tool_call block is not valid JSON: {}", error.message);
  }
  const Json* name = json.find("name");
  const Json* arguments = json.find("arguments");
  if (name == nullptr || arguments == nullptr || !name->is_string()) {
    throw make_error(Code::kData, kTopic, "a tool_call must be a JSON object with name (a string) and arguments");
  }
  return {*name->try_string(), *arguments};
}

std::vector<Json> parse_tools(const std::string& text) {
  Json json;
  try {
    json = base::parse_json(text);
  } catch (const base::JsonError& error) {
    throw make_error(Code::kData, kTopic, "tools is not valid JSON: {}", error.message);
  }
  if (Json::Array* list = json.try_array()) return std::move(*list);
  return {json};
}

// Why the prompt is no prefix, as far as the messages tell.
std::string prefix_hint(std::span<const Message> messages) {
  const auto context = messages.first(messages.size() - 1);
  const auto is_user = [](const Message& message) { return message.role == Role::kUser; };
  if (std::ranges::none_of(context, is_user)) {
    return "No user message comes before this assistant turn: check the order of the turns.";
  }
  if (context.back().role == Role::kAssistant) {
    return "Two assistant turns follow each other: join them, or put a user turn between them.";
  }
  for (const Block& block : messages.back().content) {
    if (block.type == BlockType::kText && block.value.find("</think>") != std::string::npos) {
      return "The answer holds think tags as text: give the reasoning as a block of type reasoning.";
    }
  }
  return "The answer begins with white space that joins the end of the prompt: remove it.";
}

base::Error prefix_error(std::string_view markup, std::span<const Message> messages) {
  return make_error(Code::kData, kTopic, "message {}: the prompt is not a prefix of the whole text with markup {}",
                    messages.size(), markup)
      .hint(prefix_hint(messages));
}

bool starts_with(std::span<const int32_t> ids, std::span<const int32_t> prefix) {
  return ids.size() >= prefix.size() && std::ranges::equal(ids.first(prefix.size()), prefix);
}

}  // namespace

Renderer::Renderer(const Tokenizer& tokenizer, const Markup& markup) : tokenizer_(tokenizer), markup_(markup) {
  for (const std::string& token : tokenizer.special_tokens()) {
    opener_is_special_ |= token == kOpener;
    if (token.size() > character_bytes(token.front())) specials_.push_back(token);
  }
  for (const std::string& token : specials_) is_first_byte_[static_cast<unsigned char>(token.front())] = true;
}

// A literal special token in a row's text would be read as markup: U+200B after its first character breaks it.
std::string Renderer::escape(std::string_view text) const {
  std::string out;
  size_t copied = 0;
  for (size_t at = 0; at < text.size(); ++at) {
    if (!is_first_byte_[static_cast<unsigned char>(text[at])]) continue;
    const std::string_view rest = text.substr(at);
    const auto matches = [&](const std::string& token) { return rest.starts_with(token); };
    if (std::ranges::none_of(specials_, matches)) continue;
    const size_t end = at + character_bytes(text[at]);
    out.append(text, copied, end - copied);
    out += kZeroWidthSpace;
    copied = end;
  }
  if (copied == 0) return std::string(text);
  out.append(text, copied);
  for (const int32_t id : tokenizer_.encode(out)) {
    if (!tokenizer_.is_special(id)) continue;
    throw make_error(Code::kData, kTopic, "the text still becomes the special token {} after it was broken up",
                     tokenizer_.id_to_token(id).value_or("?"))
        .hint("Remove the token from the text.");
  }
  return out;
}

std::vector<Turn> Renderer::turns(std::span<const Message> messages) const {
  std::vector<Turn> turns;
  turns.reserve(messages.size());
  for (const Message& message : messages) {
    Turn& turn = turns.emplace_back();
    turn.role = message.role;
    for (const Block& block : message.content) {
      if (block.type == BlockType::kText) {
        turn.text += escape(block.value);
      } else if (block.type == BlockType::kReasoning) {
        turn.reasoning += escape(block.value);
      } else {
        ToolCall call = parse_call(block.value);
        if (Json::Object* arguments = call.arguments.try_object()) {
          for (auto& [name, value] : *arguments) {
            if (const std::string* text = value.try_string()) value = Json(escape(*text));
          }
        }
        turn.calls.push_back(std::move(call));
      }
    }
  }
  return turns;
}

std::vector<Json> Renderer::tools(const std::optional<std::string>& text) const {
  if (!text || text->empty()) return {};
  return parse_tools(escape(*text));
}

Rendered Renderer::render_text(std::span<const Message> messages, const std::optional<std::string>& tools_text) const {
  if (messages.empty() || messages.back().role != Role::kAssistant) {
    throw make_error(Code::kData, kTopic, "the last message must be an assistant turn");
  }
  const std::vector<Json> tool_list = tools(tools_text);
  const std::vector<Turn> all = turns(messages);
  const std::span<const Turn> span(all);
  const bool thinking = !all.back().reasoning.empty();

  Rendered rendered;
  rendered.text = markup_.render({.turns = span, .tools = tool_list, .open_answer = false, .thinking = thinking});
  const std::string prompt = markup_.render(
      {.turns = span.first(all.size() - 1), .tools = tool_list, .open_answer = true, .thinking = thinking});
  if (!rendered.text.starts_with(prompt)) throw prefix_error(markup_.name, messages);
  rendered.prompt_bytes = prompt.size();
  rendered.weight = messages.back().loss_weight;
  return rendered;
}

Rendered Renderer::render(const Row& row, int cut) const {
  const auto messages = std::span(row.messages).first(static_cast<size_t>(cut));
  Rendered rendered = render_text(messages, row.tools);
  const std::string_view text = rendered.text;
  const std::string_view prompt = text.substr(0, rendered.prompt_bytes);

  // Both texts are equal up to the last opener, and a special token splits the text for the tokenizer: what stands
  // before it is tokenised once.
  size_t split = opener_is_special_ ? prompt.rfind(kOpener) : std::string_view::npos;
  split = split == std::string_view::npos ? 0 : split + kOpener.size();
  rendered.ids = tokenizer_.encode(text.substr(0, split));
  const std::vector<int32_t> tail = tokenizer_.encode(text.substr(split));
  const std::vector<int32_t> prompt_tail = tokenizer_.encode(prompt.substr(split));
  if (!starts_with(tail, prompt_tail)) throw prefix_error(markup_.name, messages);
  rendered.prompt_tokens = static_cast<uint32_t>(rendered.ids.size() + prompt_tail.size());
  rendered.ids.insert(rendered.ids.end(), tail.begin(), tail.end());
  return rendered;
}

std::vector<int32_t> Renderer::encode_conversation(const Row& row) const {
  const std::vector<Json> tool_list = tools(row.tools);
  const std::vector<Turn> all = turns(row.messages);
  std::optional<bool> thinking;
  if (!all.empty() && all.back().role == Role::kAssistant) thinking = !all.back().reasoning.empty();
  return tokenizer_.encode(
      markup_.render({.turns = all, .tools = tool_list, .open_answer = false, .thinking = thinking}));
}

Renderer::Question Renderer::encode_question(const Row& row, std::optional<bool> thinking) const {
  if (row.messages.back().role == Role::kAssistant) {
    throw make_error(Code::kData, kTopic, "the last message is the assistant's, so nothing waits for an answer")
        .hint("End with a user or tool message.");
  }
  if (thinking && !markup_.knows_thinking) {
    throw make_error(Code::kConfig, kTopic, "thinking {} was asked for, but the markup {} has no thinking", *thinking,
                     markup_.name)
        .hint("Leave it out, or choose another chat_markup.");
  }
  const std::vector<Json> tool_list = tools(row.tools);
  const std::vector<Turn> all = turns(row.messages);
  const std::string text =
      markup_.render({.turns = all, .tools = tool_list, .open_answer = true, .thinking = thinking});
  return {tokenizer_.encode(text), text.ends_with("<think>\n")};
}

}  // namespace expertmesh::data
