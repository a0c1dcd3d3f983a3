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

bool are_equal(const model::TokenBatch& a, const model::TokenBatch& b) {
  const auto floats = [](const at::Tensor& tensor) {
    const float* data = tensor.defined() ? tensor.const_data_ptr<float>() : nullptr;
    return data == nullptr ? std::vector<float>() : std::vector<float>(data, data + tensor.numel());
  };
  return list(a.ids_T) == list(b.ids_T) && list(a.positions_T) == list(b.positions_T) &&
         list(a.targets_T) == list(b.targets_T) && a.cu_seqlens == b.cu_seqlens &&
         floats(a.weights_T) == floats(b.weights_T);
}

// Padded, packed, and with documents that hold nothing: the model meets the same tokens, positions and targets.
TEST(TokenBatch, IsTheSamePaddedAndPacked) {
  const data::Sample empty, one{{8}, {8}, {1}}, two{{1, 2}, {1, 2}, {1, 1}},
      three{{5, 6, 7}, {5, -100, 7}, {1, 0, 0.5F}};
  for (const auto& samples : {std::vector<data::Sample>{two, one, two}, {three, two, one, three}, {one}, {one, one}}) {
    const model::TokenBatch padded = make_token_batch(data::collate(samples));
    EXPECT_TRUE(are_equal(padded, make_token_batch(data::pack(samples))));
    std::vector<data::Sample> with_empty{empty};
    for (const data::Sample& sample : samples) with_empty.insert(with_empty.end(), {sample, empty});
    EXPECT_TRUE(are_equal(padded, make_token_batch(data::collate(with_empty))));
    EXPECT_TRUE(are_equal(padded, make_token_batch(data::pack(with_empty))));
  }
  EXPECT_EQ(make_token_batch(data::pack({empty, empty})).num_tokens(), 0);
}

TEST(DocumentBatch, TargetsEveryTokenButTheFirst) {
  const std::vector<int32_t> one{3, 4}, other{9};
  const model::TokenBatch batch = make_document_batch(std::vector<TokenPiece>{{.ids = one}, {.ids = other}});
  EXPECT_EQ(list(batch.targets_T), (std::vector<int64_t>{4, -100, -100}));
  EXPECT_FALSE(batch.axis_positions_AT.defined());
}

TEST(DocumentBatch, TokensStandWhereTheirDocumentSays) {
  const std::vector<int32_t> two{3, 4}, one{9};
  const std::vector<std::vector<int32_t>> line{{5, 8}}, axes{{1}, {2}, {6}};
  const model::TokenBatch in_line =
      make_document_batch(std::vector<TokenPiece>{{.ids = one}, {.ids = two, .positions = line}});
  EXPECT_EQ(list(in_line.positions_T), (std::vector<int64_t>{0, 5, 8}));
  EXPECT_FALSE(in_line.axis_positions_AT.defined());

  const model::TokenBatch by_axis = make_document_batch(
      std::vector<TokenPiece>{{.ids = two, .positions = line}, {.ids = one, .positions = axes}, {.ids = two}});
  EXPECT_EQ(list(by_axis.axis_positions_AT.flatten()),
            (std::vector<int64_t>{5, 8, 1, 0, 1, 5, 8, 2, 0, 1, 5, 8, 6, 0, 1}));
}

TEST(DocumentBatch, PositionsGoOnWhereEachDocumentWas) {
  const std::vector<int32_t> prompt{3, 4, 5}, token{9};
  const std::vector<TokenPiece> pieces{{.ids = token, .begin = 7}, {.ids = prompt}, {.ids = token, .begin = 1}};
  const model::TokenBatch batch = make_document_batch(pieces);
  EXPECT_EQ(list(batch.ids_T), (std::vector<int64_t>{9, 3, 4, 5, 9}));
  EXPECT_EQ(list(batch.positions_T), (std::vector<int64_t>{7, 0, 1, 2, 1}));
  EXPECT_EQ(batch.cu_seqlens, (std::vector<int64_t>{0, 1, 4, 5}));

  const model::TokenBatch nothing = make_document_batch({});
  EXPECT_EQ(nothing.num_tokens(), 0);
  EXPECT_EQ(nothing.ids_T.size(0), 0);
}

}  // namespace
}  // namespace expertmesh::train
