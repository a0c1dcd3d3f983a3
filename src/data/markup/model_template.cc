// SPDX-License-Identifier: Apache-2.0
#include "data/markup/model_template.h"

#include "base/json.h"

namespace expertmesh::data {
namespace {

using base::Json;

// A text, or a list of {"name": ..., "template": ...}.
std::optional<std::string> template_of(const Json& value) {
  if (const std::string* text = value.try_string()) return *text;
  const Json::Array* list = value.try_array();
  if (list == nullptr) return std::nullopt;
  for (const Json& item : *list) {
    const Json* name = item.find("name");
    const Json* text = item.find("template");
    const bool is_default = name != nullptr && name->try_string() != nullptr && *name->try_string() == "default";
    if (is_default && text != nullptr && text->is_string()) return *text->try_string();
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> read_chat_template(const base::FileSystem& fs, const std::string& model_dir) {
  const std::string plain = base::join_path(model_dir, "chat_template.jinja");
  if (fs.stat(plain).is_regular) return fs.read_all(plain);
  for (const std::string_view name : {"tokenizer_config.json", "chat_template.json"}) {
    const std::string path = base::join_path(model_dir, name);
    if (!fs.stat(path).is_regular) continue;
    try {
      const Json json = base::parse_json(fs.read_all(path));
      const Json* value = json.find("chat_template");
      if (value == nullptr) continue;
      if (auto text = template_of(*value)) return text;
    } catch (const base::JsonError& error) {
      throw base::make_error(base::Code::kModel, "data/chat_template", "{}", error.message)
          .at(fmt::format("{}:{}:{}", path, error.line, error.column));
    }
  }
  return std::nullopt;
}

}  // namespace expertmesh::data
