// SPDX-License-Identifier: Apache-2.0
#include "data/row_file.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include "data/testing.h"

namespace expertmesh::data {
namespace {

using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using testing::TempDir;

RowFile open(const std::string& path) { return {*testing::file_system(), path}; }

std::vector<uint32_t> lines(const RowFile& file) {
  std::vector<uint32_t> numbers;
  for (const RowText& row : file.split()) numbers.push_back(row.line);
  return numbers;
}

TEST(RowFile, LinesWithBomCrlfBlanksAndNoLastNewline) {
  const TempDir dir;
  const RowFile file = open(dir.write("a.jsonl", "\xef\xbb\xbf{\"a\": 1}\r\n\r\n  \t\n{\"a\": 2}\n\n{\"a\": 3}"));
  EXPECT_THAT(lines(file), ElementsAre(1, 4, 6));
  for (const RowText& row : file.split()) EXPECT_TRUE(file.parse(row).is_object());
}

TEST(RowFile, ArrayElementsKnowLineAndNumber) {
  const TempDir dir;
  const RowFile file = open(dir.write("a.json", "\n[{\"s\": \"],}\\\"\"},\n\n {\"b\": [1, {}]}\n]\n"));
  const auto rows = file.split();
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_EQ(rows[0].line, 2U);
  EXPECT_EQ(rows[1].line, 4U);
  EXPECT_EQ(rows[1].element, 2U);
  EXPECT_EQ(file.parse(rows[0]).find("s")->try_string()->size(), 4U);
  EXPECT_EQ(open(dir.write("none.json", " [ ] ")).split().size(), 0U);
}

TEST(RowFile, JsonLinesInAJsonFile) {
  const TempDir dir;
  EXPECT_THAT(lines(open(dir.write("a.json", "{\"a\": 1}\n{\"a\": 2}\n"))), ElementsAre(1, 2));
}

TEST(RowFile, BrokenArraysSayTheLine) {
  const TempDir dir;
  const auto error = [&](std::string_view text) {
    const RowFile file = open(dir.write("a.json", text));
    return error_of([&] { file.split(); });
  };
  EXPECT_THAT(error("[{},\n]").text(), HasSubstr("a.json:2: a comma before"));
  EXPECT_THAT(error("[{}\n{}]").text(), HasSubstr("a.json:2: a comma or ']'"));
  EXPECT_THAT(error("[{}\n").text(), HasSubstr("a.json:2: the JSON array is not closed"));
  EXPECT_THAT(error("[\"a\\").text(), HasSubstr("not closed"));
  EXPECT_THAT(error("[{}] x").text(), HasSubstr("text after the end"));
  EXPECT_THAT(error("[}]").text(), HasSubstr("without its opening one"));
  EXPECT_THAT(error("[,{}]").text(), HasSubstr("element was expected"));
}

TEST(RowFile, JsonErrorsInAnArrayCountFromTheFile) {
  const TempDir dir;
  const RowFile file = open(dir.write("a.json", "[\n {\n  \"a\": 01\n }\n]"));
  EXPECT_THAT(error_of([&] { file.parse(file.split()[0]); }).where(), HasSubstr("a.json:3:"));
}

TEST(RowFile, EveryCutOfAFileIsAnErrorOrRows) {
  const TempDir dir;
  const std::string text = "[{\"a\": \"x\\\"y\"}, {\"b\": [1, 2]}]";
  for (size_t length = 0; length < text.size(); ++length) {
    const RowFile file = open(dir.write("a.json", text.substr(0, length)));
    if (length == 0) {
      EXPECT_TRUE(file.split().empty());
    } else {
      EXPECT_EQ(error_of([&] { file.split(); }).code(), base::Code::kData) << length;
    }
  }
}

TEST(RowFile, KindsThatAreNotReadAreNamed) {
  const TempDir dir;
  for (const char* kind : {"csv", "parquet", "arrow", "txt", "xml", "gz"}) {
    const std::string path = dir.write(std::string("rows.") + kind, "x");
    EXPECT_THAT(error_of([&] { open(path); }).text(), HasSubstr(kind));
  }
  EXPECT_NO_THROW(open(dir.write("ROWS.JSONL", "{}")));
}

TEST(RowFile, NeitherDirectoryNorPipeNorNothing) {
  const TempDir dir;
  EXPECT_THAT(error_of([&] { open(dir.path() + "/no.jsonl"); }).text(), HasSubstr("no such file"));
  const std::string pipe = dir.path() + "/pipe.jsonl";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT(error_of([&] { open(pipe); }).text(), HasSubstr("not a regular file"));
}

TEST(RowFiles, OfADirectoryAreOneKind) {
  const TempDir dir;
  const auto fs = testing::file_system();
  EXPECT_THAT(error_of([&] { list_row_files(*fs, dir.path()); }).text(), HasSubstr("no row files"));
  const std::string b = dir.write("b.jsonl", "{}");
  const std::string a = dir.write("a.jsonl", "{}");
  dir.write(".hidden", "");
  EXPECT_THAT(list_row_files(*fs, dir.path()), ElementsAre(a, b));
  EXPECT_THAT(list_row_files(*fs, a), ElementsAre(a));
  dir.write("c.json", "[]");
  EXPECT_THAT(error_of([&] { list_row_files(*fs, dir.path()); }).text(), HasSubstr("mixes kinds"));
}

TEST(RowFile, HundredMegabyteLine) {
  const TempDir dir;
  std::string text = "{\"a\": \"";
  text.append(size_t{100} << 20, 'x');
  const RowFile cut = open(dir.write("cut.jsonl", text));
  EXPECT_EQ(error_of([&] { cut.parse(cut.split()[0]); }).code(), base::Code::kData);
  const RowFile whole = open(dir.write("whole.jsonl", text + "\"}\n"));
  EXPECT_EQ(whole.parse(whole.split()[0]).find("a")->try_string()->size(), size_t{100} << 20);
}

}  // namespace
}  // namespace expertmesh::data
