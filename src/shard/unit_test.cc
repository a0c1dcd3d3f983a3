// SPDX-License-Identifier: Apache-2.0
// Units on rank threads: what is gathered is the whole tensor, what is reduced is the sum, in both gather modes.
#include "shard/unit.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "comm/world.h"
#include "shard/gradient_norm.h"
#include "shard/module.h"
#include "shard/placement.h"

namespace expertmesh::shard {
namespace {

at::Tensor numbered(const std::vector<int64_t>& shape) {
  int64_t numel = 1;
  for (const int64_t size : shape) numel *= size;
  return at::arange(numel, at::TensorOptions().dtype(at::kFloat)).reshape(shape);
}

std::vector<std::vector<int>> everybody(int size) {
  std::vector<int> all;
  for (int rank = 0; rank < size; ++rank) all.push_back(rank);
  return {all};
}

// Puts this rank's part of the numbered tensor into the shard.
void fill(Parameter& parameter) {
  at::Tensor part = numbered(parameter.global_shape());
  for (size_t dim = 0; dim < parameter.global_shape().size(); ++dim) {
    const Range& range = parameter.local_box().ranges[dim];
    part = part.narrow(static_cast<int64_t>(dim), range.begin, range.size());
  }
  parameter.local().copy_(part);
}

struct Case {
  int ranks;
  GatherMode mode;
};

class UnitTest : public testing::TestWithParam<Case> {};

TEST_P(UnitTest, GathersTheWholeAndSumsTheParts) {
  const auto [ranks, mode] = GetParam();
  comm::run_threads(ranks, {}, [&](comm::World& world) {
    const auto group = world.make_group("shard", everybody(ranks));
    // Dim 0 that does not divide, dim 1 of a stack, a vector shorter than the ranks, bf16 beside fp32.
    Parameter a("a", {7, 3}), b("b", {2, 5, 2}), c("c", {2}), d("d", {6, 2});
    a.shard(0, group);
    b.shard(1, group);
    c.shard(0, group);
    d.shard(0, group);
    for (Parameter* parameter : {&a, &b, &c}) parameter->materialize(at::kFloat);
    d.materialize(at::kBFloat16);
    const std::vector<Parameter*> parameters{&a, &b, &c, &d};
    for (Parameter* parameter : parameters) fill(*parameter);

    BufferPool pool;
    Unit unit("unit", parameters, mode, &pool);
    for (int round = 1; round <= 2; ++round) {
      EXPECT_FALSE(unit.is_unsharded() && ranks > 1);
      EXPECT_TRUE(ranks == 1 || !a.is_unsharded());
      unit.unshard();
      unit.wait();
      for (Parameter* parameter : parameters) {
        EXPECT_TRUE(at::equal(parameter->value().detach().to(at::kFloat), numbered(parameter->global_shape())))
            << parameter->name();
        // Rank r contributes (r + 1) times the numbered tensor.
        const_cast<at::Tensor&>(parameter->value()).mutable_grad() =
            (numbered(parameter->global_shape()) * (world.rank() + 1)).to(parameter->dtype());
      }
      unit.reduce_gradients();
      const double factor = ranks * (ranks + 1) / 2.0 * round;  // rounds accumulate
      for (Parameter* parameter : parameters) {
        const at::Tensor local = parameter->local().to(at::kFloat);
        EXPECT_TRUE(parameter->has_grad());
        EXPECT_TRUE(at::equal(parameter->grad(), local * factor)) << parameter->name() << " round " << round;
      }
      unit.reshard();
    }
    if (ranks > 1) {
      EXPECT_THROW(a.value(), base::Error);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Modes, UnitTest,
                         testing::Values(Case{1, GatherMode::kPerParameter}, Case{2, GatherMode::kPerParameter},
                                         Case{2, GatherMode::kFlat}, Case{3, GatherMode::kPerParameter},
                                         Case{3, GatherMode::kFlat}, Case{4, GatherMode::kFlat},
                                         Case{8, GatherMode::kPerParameter}, Case{8, GatherMode::kFlat}),
                         [](const auto& test) {
                           return std::to_string(test.param.ranks) +
                                  (test.param.mode == GatherMode::kFlat ? "_flat" : "_native");
                         });

TEST(Unit, CountsAMissingGradientAsZerosAndTakesFullGradients) {
  comm::run_threads(2, {}, [](comm::World& world) {
    const auto group = world.make_group("shard", everybody(2));
    Parameter a("a", {4}), b("b", {4}, {.sums_full_grad = true});
    for (Parameter* parameter : {&a, &b}) {
      parameter->shard(0, group);
      parameter->materialize(at::kFloat);
      fill(*parameter);
    }
    Unit unit("unit", {&a, &b}, GatherMode::kPerParameter, nullptr);
    for (int step = 1; step <= 2; ++step) {
      for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
        unit.wait();
        if (world.rank() == 0) b.full_grad().add_(step);
        unit.reshard();  // where a gradient is full is no matter of the weight
        unit.reduce_gradients();
        EXPECT_FALSE(b.has_grad());
      }
      unit.reduce_full_gradients();
      EXPECT_EQ(a.grad().sum().item<float>(), 0.0F);
      EXPECT_EQ(b.grad().sizes(), b.local().sizes());
      EXPECT_EQ(b.grad().sum().item<float>(), 2.0F * 2.0F * static_cast<float>(step));
      for (Parameter* parameter : {&a, &b}) parameter->clear_grad();
    }
  });
}

TEST(FinishReductions, SumsOverReplicas) {
  comm::run_threads(4, {}, [](comm::World& world) {
    const auto group = world.make_group("replicas", everybody(4));
    Parameter a("a", {3}), idle("idle", {2});
    for (Parameter* parameter : {&a, &idle}) {
      parameter->replicate_over(group);
      parameter->materialize(at::kFloat);
    }
    a.ensure_grad();
    a.grad().fill_(world.rank() + 1.0);
    finish_reductions({&a, &idle});
    EXPECT_EQ(a.grad()[1].item<float>(), 10.0F);
    EXPECT_EQ(idle.grad().sum().item<float>(), 0.0F);
    EXPECT_EQ(a.is_primary_replica(), world.rank() == 0);
  });
}

// MESH-13, MESH-14, MESH-04: each element once, over both meshes, whatever a rank holds.
struct NormCase {
  std::vector<std::vector<float>> dense;    // shard of each rank
  std::vector<std::vector<float>> experts;  // of each rank
  double norm, coefficient;
};

void check_norm(const NormCase& c) {
  comm::run_threads(2, {}, [&](comm::World& world) {
    const auto rank = static_cast<size_t>(world.rank());
    const auto group = world.make_group("world", everybody(2));
    Parameter dense("dense", {2}), expert("expert", {2, 2}, {.is_expert = true});
    dense.shard(0, group);
    expert.partition_experts(world.rank(), 2);
    for (Parameter* parameter : {&dense, &expert}) parameter->materialize(at::kFloat);
    const auto set = [](Parameter& parameter, const std::vector<float>& values) {
      if (values.empty()) return;
      parameter.ensure_grad();
      for (size_t i = 0; i < values.size(); ++i) parameter.grad().mutable_data_ptr<float>()[i] = values[i];
    };
    set(dense, c.dense[rank]);
    set(expert, c.experts[rank]);
    const GradientNorm norm = global_gradient_norm({&dense, &expert}, world.all());
    EXPECT_TRUE(norm.is_finite);
    EXPECT_NEAR(norm.norm, c.norm, 1e-6 * std::max(1.0, c.norm));
    EXPECT_NEAR(clip_coefficient(norm.norm, 1.0), c.coefficient, 1e-6);
  });
}

TEST(GradientNorm, CountsEachElementOnce) {
  check_norm({{{2.4F}, {3.2F}}, {{24.0F, 32.0F}, {0.4F}}, 40.2014925, 0.0248746977});
  check_norm({{{}, {}}, {{2.0F, 4.0F}, {6.0F, 8.0F}}, 10.9544512, 0.0912870846});
  check_norm({{{}, {}}, {{0.3F}, {0.4F}}, 0.5, 1.0});
  check_norm({{{}, {}}, {{}, {}}, 0.0, 1.0});
  check_norm({{{0.1F}, {0.2F}}, {{0.2F}, {0.0F}}, 0.3, 1.0});
}

TEST(GradientNorm, NamesTheFirstNonFiniteGradientOnAllRanks) {
  comm::run_threads(3, {}, [](comm::World& world) {
    Parameter a("a", {2}), b("b", {2});
    for (Parameter* parameter : {&a, &b}) {
      parameter->materialize(at::kFloat);
      parameter->ensure_grad();
    }
    if (world.rank() == 2) b.grad().mutable_data_ptr<float>()[1] = NAN;
    const GradientNorm norm = global_gradient_norm({&a, &b}, world.all());
    EXPECT_FALSE(norm.is_finite);
    EXPECT_EQ(norm.first_non_finite, "gradient of b on rank 2");
  });
}

// --- placement ---

struct ExpertsModule : Module {
  explicit ExpertsModule(std::string path) : Module(std::move(path)) {
    add_parameter("gate_up_proj", {12, 8, 4}, {.is_expert = true});
    add_parameter("scale", {12}, {.is_expert = true});
  }
};

struct Dense : Module {
  explicit Dense(std::string path) : Module(std::move(path)) { add_parameter("weight", {6, 4}); }
};

struct TinyModel : Module {
  TinyModel() : Module("model"), attention("model.layers.0.self_attn"), experts("model.layers.0.mlp.experts") {
    add_child(attention);
    add_child(experts);
  }
  Dense attention;
  ExpertsModule experts;
};

TEST(Placement, ExpertsFirstThenTheRest) {
  comm::run_threads(4, {}, [](comm::World& world) {
    const auto all = world.make_group("world", everybody(4));
    const auto ep = world.make_group("ep", {{0, 1}, {2, 3}});
    const auto efsdp = world.make_group("efsdp", {{0, 2}, {1, 3}});
    const auto alone = world.make_group("alone", {{0}, {1}, {2}, {3}});
    TinyModel model;
    const ParameterSet experts = shard_experts(model, "model.layers.{*}.mlp.experts", {ep, efsdp, alone});
    EXPECT_EQ(experts.size(), 2U);
    shard_outer(model, {all, alone, all}, experts, true, {});
    const auto parameters = model.parameters();
    EXPECT_EQ(parameters[0]->local_shape(), (std::vector<int64_t>{world.rank() < 3 ? 2 : 0, 4}));
    const int64_t first = world.rank() % 2 * 6, half = world.rank() / 2 * 4;
    EXPECT_EQ(parameters[1]->local_box().text(), fmt::format("[{}:{}, {}:{}, 0:4]", first, first + 6, half, half + 4));
    // A vector of experts is split again along its only dim.
    EXPECT_EQ(parameters[2]->local_shape(), (std::vector<int64_t>{3}));
  });
}

TEST(Placement, TheWrongOrderAndBadPatternsAreRefused) {
  const auto world = comm::make_single_world();
  const std::shared_ptr<comm::Group> alone = world->make_group("alone", {{0}});
  TinyModel model;
  EXPECT_THROW(shard_outer(model, {alone, alone, alone}, {}, true, {}), base::Error);
  TinyModel other;
  try {
    shard_outer(other, {alone, alone, alone}, {}, false, {"model.layers.{*}.selfattn"});
    FAIL();
  } catch (const base::Error& error) {
    EXPECT_EQ(error.code(), base::Code::kConfig);
    EXPECT_NE(error.text().find("model.layers.{*}.selfattn"), std::string::npos);
  }
}

TEST(Placement, ExpertsThatDoNotDivideAreRefusedWithTheSizesThatDo) {
  comm::run_threads(8, {}, [](comm::World& world) {
    const auto ep = world.make_group("ep", everybody(8));
    const auto alone = world.make_group("alone", {{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}});
    TinyModel model;
    try {
      shard_experts(model, "model.layers.{*}.mlp.experts", {ep, alone, alone});
      ADD_FAILURE();
    } catch (const base::Error& error) {
      EXPECT_NE(error.text().find("ep_size 8 does not divide the 12 experts"), std::string::npos) << error.text();
      EXPECT_NE(error.text().find("1, 2, 3, 4, 6, 12"), std::string::npos) << error.text();
    }
  });
}

}  // namespace
}  // namespace expertmesh::shard
