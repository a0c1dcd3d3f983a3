// SPDX-License-Identifier: Apache-2.0
#include "train/token_batch.h"

#include <gtest/gtest.h>

namespace expertmesh::train {
namespace {

std::vector<int64_t> list(const at::Tensor& tensor) {
  const auto* data = tensor.const_data_ptr<int64_t>();
  return {data, data + tensor.numel()};
}

TEST(TokenBatch, DropsPaddingAndShiftsLabels) {
  const data::MicroBatch padded =
      data::collate({{{5, 6, 7}, {-100, 6, 7}, {0, 1, 1}}, {{8}, {8}, {1}}, {{1, 2}, {1, 2}, {1, 1}}});
  EXPECT_EQ(padded.width, 3);
  const model::TokenBatch batch = make_token_batch(padded);
  EXPECT_EQ(batch.num_tokens(), 6);
  EXPECT_EQ(list(batch.ids_T), (std::vector<int64_t>{5, 6, 7, 8, 1, 2}));
  EXPECT_EQ(list(batch.positions_T), (std::vector<int64_t>{0, 1, 2, 0, 0, 1}));
  EXPECT_EQ(list(batch.targets_T), (std::vector<int64_t>{6, 7, -100, -100, 2, -100}));
  EXPECT_EQ(batch.cu_seqlens, (std::vector<int64_t>{0, 3, 4, 6}));
  EXPECT_FALSE(batch.weights_T.defined());
}

TEST(TokenBatch, KeepsFractionalWeightsOfTargets) {
  const data::MicroBatch padded = data::collate({{{5, 6, 7}, {-100, 6, 7}, {0, 0.5, 0.25}}});
  const model::TokenBatch batch = make_token_batch(padded);
  ASSERT_TRUE(batch.weights_T.defined());
  const auto* weights = batch.weights_T.const_data_ptr<float>();
  EXPECT_EQ(std::vector<float>(weights, weights + 3), (std::vector<float>{0.5F, 0.25F, 0.0F}));
  EXPECT_DOUBLE_EQ(padded.target_weight, 0.75);
}

TEST(ScoreBatch, TargetsEveryTokenButTheFirst) {
  const model::TokenBatch batch = make_score_batch({{3, 4}, {9}});
  EXPECT_EQ(list(batch.targets_T), (std::vector<int64_t>{4, -100, -100}));
}

}  // namespace
}  // namespace expertmesh::train
