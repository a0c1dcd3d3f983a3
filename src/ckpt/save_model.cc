// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <charconv>
#include <map>
#include <optional>

#include "base/json.h"
#include "ckpt/hf_save.h"

namespace expertmesh::ckpt {
namespace {

using base::Code;
using base::Error;
using base::Json;

constexpr std::array<std::string_view, 15> kCompanions{"generation_config.json",
                                                       "tokenizer.json",
                                                       "tokenizer_config.json",
                                                       "vocab.json",
                                                       "merges.txt",
                                                       "vocab.txt",
                                                       "added_tokens.json",
                                                       "special_tokens_map.json",
                                                       "chat_template.jinja",
                                                       "chat_template.json",
                                                       "tokenizer.model",
                                                       "processor_config.json",
                                                       "preprocessor_config.json",
                                                       "video_preprocessor_config.json",
                                                       "LICENSE"};

std::string_view config_name(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "float32";
    case DType::kBF16:
      return "bfloat16";
    case DType::kF16:
      return "float16";
    case DType::kF64:
      return "float64";
    default:
      return {};
  }
}

DType most_common_dtype(const SavePlan& plan) {
  std::map<DType, int64_t> elements;
  for (const SavePlan::Output& output : plan.outputs()) {
    if (output.entry >= 0) elements[output.dtype] += numel(output.shape);
  }
  DType best = plan.trained_dtype();
  for (const auto& [dtype, count] : elements) {
    if (count > elements[best]) best = dtype;
  }
  return best;
}

// Sets the dtype keys of one object; true where one changed.
bool set_dtype(Json& config, std::string_view name) {
  bool has_changed = false;
  for (const std::string_view key : {"dtype", "torch_dtype"}) {
    const Json* value = config.find(key);
    if (value == nullptr || value->is_null() || *value == Json(name)) continue;
    config.set(key, Json(name));
    has_changed = true;
  }
  return has_changed;
}

// Runs `work`; afterwards all ranks know whether it went well everywhere, and all throw if it did not.
void agree(comm::Group& world, std::string_view tag, const std::function<void()>& work) {
  std::optional<Error> mine;
  try {
    work();
  } catch (const Error& error) {
    if (error.code() == Code::kPeerLost || error.code() == Code::kTimeout) throw;  // there is nobody to agree with
    mine = error;
  }
  const std::string status = mine ? fmt::format("{} {}", static_cast<int>(mine->code()), mine->text()) : std::string();
  const std::vector<std::string> all = world.all_gather_text(status, tag);
  if (mine) throw *mine;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].empty()) continue;
    int code = static_cast<int>(Code::kCheckpoint);
    const size_t space = all[rank].find(' ');
    std::from_chars(all[rank].data(), all[rank].data() + space, code);
    throw base::make_error(static_cast<Code>(code), "ckpt/save", "rank {} could not save its part: {}", rank,
                           all[rank].substr(space + 1));
  }
}

}  // namespace

std::vector<std::string> companion_files(const base::FileSystem& fs, const std::string& model_directory) {
  std::vector<std::string> files;
  for (const std::string_view name : kCompanions) {
    const std::string path = base::join_path(model_directory, name);
    if (fs.stat(path).is_regular) files.push_back(path);
  }
  return files;
}

std::string config_for_save(const std::string& config_json, const SavePlan& plan) {
  return config_for_save(config_json, most_common_dtype(plan));
}

std::string config_for_save(const std::string& config_json, DType dtype) {
  Json config;
  try {
    config = base::parse_json(config_json);
  } catch (const base::JsonError& error) {
    throw base::make_error(Code::kModel, "ckpt/config", "not valid JSON: {}", error.message)
        .at(fmt::format("config.json:{}:{}", error.line, error.column));
  }
  if (!config.is_object()) {
    throw base::make_error(Code::kModel, "ckpt/config", "is {}, not an object", config.kind()).at("config.json");
  }
  const std::string_view name = config_name(dtype);
  if (name.empty()) return config_json;
  bool has_changed = set_dtype(config, name);
  if (const Json* text = config.find("text_config"); text != nullptr && text->is_object()) {
    Json changed = *text;
    if (set_dtype(changed, name)) {
      config.set("text_config", std::move(changed));
      has_changed = true;
    }
  }
  return has_changed ? base::dump_json(config, base::JsonStyle::kPretty) + "\n" : config_json;
}

void save_model(comm::Group& world, base::FileSystem& fs, const SavePlan& plan, const std::string& directory,
                const std::string& config_json, const std::vector<std::string>& companions,
                const std::function<void(ModelSaver&)>& write_local) {
  ModelSaver saver(fs, plan, directory);
  const bool is_root = world.rank() == 0;
  try {
    agree(world, "save model: begin", [&] {
      if (is_root) saver.begin();
    });
    agree(world, "save model: write", [&] {
      write_local(saver);
      saver.copy_from_source(world.rank(), world.size());
      saver.finish_rank();
    });
    std::vector<int64_t> counts = saver.elements_written();
    world.all_reduce({{counts.data(), static_cast<int64_t>(counts.size()), DType::kI64}}, comm::ReduceOp::kSum,
                     "save model: coverage");
    agree(world, "save model: commit", [&] {
      if (is_root) saver.commit(counts, config_json, companions);
    });
  } catch (...) {
    if (is_root) saver.abandon();
    throw;
  }
}

}  // namespace expertmesh::ckpt
