// SPDX-License-Identifier: Apache-2.0
// A small base for the parts of a model: a tree of named modules that own parameters. No forward here: each module has
// its own, with the arguments it needs. Entering a module runs its hooks; EFSDP gathers start there.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "shard/parameter.h"

namespace expertmesh::shard {

class Module {
 public:
  // `path` is the full dotted name: "model.layers.3.mlp".
  explicit Module(std::string path) : path_(std::move(path)) {}
  virtual ~Module() = default;
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  const std::string& path() const { return path_; }
  const std::vector<Module*>& children() const { return children_; }

  // Parameters of this module alone, and of the whole tree below it in order of registration.
  const std::vector<std::unique_ptr<Parameter>>& own_parameters() const { return parameters_; }
  std::vector<Parameter*> parameters() const;
  // This module and all below it, parents first.
  std::vector<Module*> modules();

  // Called by forward() of each module at its start.
  void enter() const {
    for (const auto& hook : hooks_) hook();
  }
  void add_entry_hook(std::function<void()> hook) { hooks_.push_back(std::move(hook)); }

 protected:
  // Makes a parameter named path() + "." + name.
  Parameter& add_parameter(std::string_view name, std::vector<int64_t> shape, const Parameter::Options& options = {});
  // Registers a member as child; the member outlives this module's use.
  void add_child(Module& child) { children_.push_back(&child); }

 private:
  std::string path_;
  std::vector<Module*> children_;
  std::vector<std::unique_ptr<Parameter>> parameters_;
  std::vector<std::function<void()>> hooks_;
};

// Upstream's name patterns: `*` any text, `?` one character, `{*}` one integer, `{a-b}` an integer range; the whole
// name has to match.
bool matches_pattern(std::string_view name, std::string_view pattern);

}  // namespace expertmesh::shard
