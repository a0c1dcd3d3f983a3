// SPDX-License-Identifier: Apache-2.0
#include "shard/module.h"

#include <gtest/gtest.h>

namespace expertmesh::shard {
namespace {

TEST(MatchesPattern, KnowsUpstreamsForms) {
  EXPECT_TRUE(matches_pattern("model.layers.3.mlp.experts", "model.layers.{*}.mlp.experts"));
  EXPECT_TRUE(matches_pattern("model.layers.12.mlp.experts", "model.layers.{*}.mlp.experts"));
  EXPECT_FALSE(matches_pattern("model.layers.x.mlp.experts", "model.layers.{*}.mlp.experts"));
  EXPECT_FALSE(matches_pattern("model.layers.3.mlp", "model.layers.{*}.mlp.experts"));
  EXPECT_FALSE(matches_pattern("xmodel.layers.3.mlp", "model.layers.{*}.mlp"));
  EXPECT_TRUE(matches_pattern("model.layers.3.mlp", "model.layers.{2-5}.mlp"));
  EXPECT_FALSE(matches_pattern("model.layers.6.mlp", "model.layers.{2-5}.mlp"));
  EXPECT_FALSE(matches_pattern("model.layers..mlp", "model.layers.{*}.mlp"));
  EXPECT_TRUE(matches_pattern("anything.at.all", "*"));
  EXPECT_TRUE(matches_pattern("a.b.q_proj", "*.q_proj"));
  EXPECT_TRUE(matches_pattern("layer1", "layer?"));
  EXPECT_FALSE(matches_pattern("layer12", "layer?"));
  EXPECT_TRUE(matches_pattern("", ""));
  EXPECT_FALSE(matches_pattern("a", ""));
}

struct Leaf : Module {
  explicit Leaf(std::string path) : Module(std::move(path)) { add_parameter("weight", {2, 3}); }
};

struct Tree : Module {
  Tree() : Module("root"), left("root.left"), right("root.right") {
    add_parameter("bias", {4});
    add_child(left);
    add_child(right);
  }
  Leaf left, right;
};

TEST(Module, NamesParametersByPathParentsFirst) {
  Tree tree;
  std::vector<std::string> names;
  for (const Parameter* parameter : tree.parameters()) names.push_back(parameter->name());
  EXPECT_EQ(names, (std::vector<std::string>{"root.bias", "root.left.weight", "root.right.weight"}));
  EXPECT_EQ(tree.modules().size(), 3U);
}

TEST(Module, RunsHooksOnEntryInOrder) {
  Tree tree;
  std::string calls;
  tree.left.add_entry_hook([&] { calls += "a"; });
  tree.left.add_entry_hook([&] { calls += "b"; });
  tree.left.enter();
  tree.right.enter();
  EXPECT_EQ(calls, "ab");
}

}  // namespace
}  // namespace expertmesh::shard
