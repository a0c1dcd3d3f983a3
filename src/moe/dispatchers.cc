// SPDX-License-Identifier: Apache-2.0
#include <fmt/ranges.h>

#include <array>

#include "base/error.h"
#include "moe/dispatch_domino.h"
#include "moe/dispatch_eager.h"
#include "moe/dispatch_fused.h"
#include "moe/dispatch_mc2.h"
#include "moe/dispatcher.h"

namespace expertmesh::moe {
namespace {

constexpr std::array kDispatchers{
    DispatcherInfo{"eager", "reference", "any CPU, any ep_size", make_eager_dispatcher},
    DispatcherInfo{"fused", "validated", "any CPU, any ep_size", make_fused_dispatcher},
    DispatcherInfo{"mc2", "validated", "any CPU, any ep_size", make_mc2_dispatcher},
    DispatcherInfo{"domino", "validated", "any CPU, any ep_size", make_domino_dispatcher},
};

}  // namespace

std::span<const DispatcherInfo> dispatchers() { return kDispatchers; }

std::unique_ptr<Dispatcher> make_dispatcher(std::string_view name, const DispatcherOptions& options) {
  std::vector<std::string_view> names;
  for (const DispatcherInfo& info : kDispatchers) {
    if (info.name == name) return info.make(options);
    names.push_back(info.name);
  }
  throw base::make_error(base::Code::kConfig, "config/ep_dispatcher", "there is no dispatcher \"{}\".", name)
      .hint(fmt::format("Use one of: {}.", fmt::join(names, ", ")));
}

bool has_dedup(std::string_view name, bool shares_memory) {
  return name != "eager" && !(name == "mc2" && shares_memory);
}

}  // namespace expertmesh::moe
