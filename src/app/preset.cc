// SPDX-License-Identifier: Apache-2.0
#include "app/preset.h"

#include "base/error.h"
#include "config/suggest.h"

namespace expertmesh::app {

FoundPreset find_preset(const std::string& name) {
  std::vector<std::string> names;
  for (const auto& spec : model::model_specs()) {
    for (const auto& preset : spec.presets()) {
      if (preset.name == name) return {spec, preset};
      names.emplace_back(preset.name);
    }
  }
  const auto near = config::try_nearest(name, names);
  throw base::make_error(base::Code::kUsage, "app/preset", "there is no preset \"{}\"", name)
      .hint(near ? fmt::format("Did you mean {}?", *near) : fmt::format("Use one of {}.", config::join_names(names)));
}

}  // namespace expertmesh::app
