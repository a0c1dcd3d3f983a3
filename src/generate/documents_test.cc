// SPDX-License-Identifier: Apache-2.0
#include "generate/documents.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace expertmesh::generate {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Scores whose best token is `id`.
std::vector<float> scores_for(int32_t id) {
  std::vector<float> scores(10, 0.0F);
  scores[static_cast<size_t>(id)] = 1;
  return scores;
}

std::vector<size_t> rows_of(const std::vector<Document*>& batch) {
  std::vector<size_t> rows;
  for (const Document* document : batch) rows.push_back(document->row());
  return rows;
}

std::vector<int32_t> unseen_ids(const Document& document) {
  const auto ids = document.unseen().ids;
  return {ids.begin(), ids.end()};
}

TEST(Document, ShowsThePromptThenEachNewToken) {
  const Prompt prompt{.ids = {4, 5, 6}, .end_ids = {9}};
  Document document(0, prompt, {.max_new_tokens = 3});
  EXPECT_THAT(unseen_ids(document), ElementsAre(4, 5, 6));
  EXPECT_EQ(document.unseen().begin, 0);
  EXPECT_EQ(document.extend(scores_for(7)), 7);
  EXPECT_THAT(unseen_ids(document), ElementsAre(7));
  EXPECT_EQ(document.unseen().begin, 3);
  document.extend(scores_for(8));
  EXPECT_EQ(document.unseen().begin, 4);
  EXPECT_FALSE(document.is_finished());
  document.extend(scores_for(1));
  EXPECT_TRUE(document.is_finished());
  EXPECT_FALSE(document.answer().is_ended);
}

TEST(Document, EndsAtAnEndTokenAndKeepsIt) {
  const Prompt prompt{.ids = {4}, .end_ids = {2, 9}};
  for (const int64_t max_new_tokens : {1, 5}) {
    Document document(0, prompt, {.max_new_tokens = max_new_tokens});
    document.extend(scores_for(9));
    EXPECT_TRUE(document.is_finished());
    EXPECT_TRUE(document.answer().is_ended);
    EXPECT_THAT(document.answer().ids, ElementsAre(9));
  }
}

TEST(RankDocuments, TakesItsRowsAndFillsWhatBecomesFree) {
  const std::vector<Prompt> prompts(7, Prompt{.ids = {4}, .end_ids = {9}});
  RankDocuments documents(prompts, {.max_new_tokens = 5, .batch = 2}, 1, 2);  // rows 1, 3, 5
  std::vector<Document*> batch = documents.choose_batch();
  EXPECT_THAT(rows_of(batch), ElementsAre(1, 3));
  batch[0]->extend(scores_for(9));
  batch[1]->extend(scores_for(3));
  const auto finished = documents.take_finished();
  ASSERT_EQ(finished.size(), 1U);
  EXPECT_EQ(finished.front().row(), 1U);

  batch = documents.choose_batch();
  EXPECT_THAT(rows_of(batch), ElementsAre(5));  // the new one alone, then both
  batch[0]->extend(scores_for(3));
  batch = documents.choose_batch();
  EXPECT_THAT(rows_of(batch), ElementsAre(3, 5));
  for (Document* document : batch) document->extend(scores_for(9));
  EXPECT_TRUE(documents.has_work());
  EXPECT_EQ(documents.take_finished().size(), 2U);
  EXPECT_FALSE(documents.has_work());
  EXPECT_THAT(documents.choose_batch(), IsEmpty());
}

TEST(RankDocuments, LongPromptsBeginInPieces) {
  const std::vector<Prompt> prompts(3, Prompt{.ids = std::vector<int32_t>(3000, 1)});
  RankDocuments documents(prompts, {.batch = 8}, 0, 1);
  EXPECT_THAT(rows_of(documents.choose_batch()), ElementsAre(0));
  EXPECT_THAT(rows_of(documents.choose_batch()), ElementsAre(1));
  EXPECT_THAT(rows_of(documents.choose_batch()), ElementsAre(2));

  const std::vector<Prompt> huge(1, Prompt{.ids = std::vector<int32_t>(9000, 1)});
  RankDocuments alone(huge, {}, 0, 1);
  EXPECT_THAT(rows_of(alone.choose_batch()), ElementsAre(0));
}

TEST(RankDocuments, ARankMayHaveNone) {
  const std::vector<Prompt> prompts(2, Prompt{.ids = {4}});
  RankDocuments documents(prompts, {}, 3, 4);
  EXPECT_FALSE(documents.has_work());
  EXPECT_THAT(documents.choose_batch(), IsEmpty());
  EXPECT_THAT(documents.take_finished(), IsEmpty());
}

}  // namespace
}  // namespace expertmesh::generate
