// SPDX-License-Identifier: Apache-2.0
#include "base/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>

namespace expertmesh::base {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class FileTest : public ::testing::Test {
 protected:
  FileTest() {
    std::string pattern = testing::TempDir() + "/expertmesh_file_XXXXXX";
    root_ = ::mkdtemp(pattern.data());
  }
  ~FileTest() override { fs_->remove_tree(root_); }

  std::string path(std::string_view name) const { return join_path(root_, name); }

  template <typename Call>
  Error error_of(Call&& call) {
    try {
      call();
    } catch (const Error& error) {
      return error;
    }
    ADD_FAILURE() << "no error";
    return {Code::kInternal, "", ""};
  }

  std::unique_ptr<FileSystem> fs_ = make_posix_file_system(Code::kModel);
  std::string root_;
};

TEST_F(FileTest, WritesAndReads) {
  const auto file = fs_->create(path("a"));
  file->append("hello ");
  file->append("world");
  file->pwrite(std::as_bytes(std::span("J", 1)), 0);
  file->sync();
  file->close();
  EXPECT_EQ(fs_->read_all(path("a")), "Jello world");
  const FileStat stat = fs_->stat(path("a"));
  EXPECT_TRUE(stat.exists && stat.is_regular && !stat.is_directory);
  EXPECT_EQ(stat.size, 11U);
  EXPECT_GT(stat.mtime_ns, 0);
}

TEST_F(FileTest, AppendAndUpdateKeepWhatIsThere) {
  write_file_atomic(*fs_, path("a"), "12345");
  fs_->open_append(path("a"))->append("67");
  fs_->open_update(path("a"))->pwrite(std::as_bytes(std::span("x", 1)), 2);
  EXPECT_EQ(fs_->read_all(path("a")), "12x4567");
  EXPECT_EQ(error_of([&] { fs_->open_update(path("missing")); }).where(), path("missing"));
}

TEST_F(FileTest, ErrorsNameThePathAndTheReason) {
  const Error missing = error_of([&] { fs_->read_all(path("none")); });
  EXPECT_EQ(missing.code(), Code::kModel);
  EXPECT_EQ(missing.where(), path("none"));
  EXPECT_THAT(missing.message(), HasSubstr("No such file"));
  EXPECT_THAT(error_of([&] { fs_->read_all(root_); }).message(), HasSubstr("directory"));
  EXPECT_THAT(error_of([&] { fs_->map(root_); }).message(), HasSubstr("directory"));
  fs_->create(path("a"));
  EXPECT_THAT(error_of([&] { fs_->create(path("a"), true); }).message(), HasSubstr("exists"));
}

TEST_F(FileTest, FullDiskIsAResourceError) {
  if (!fs_->stat("/dev/full").exists) GTEST_SKIP() << "no /dev/full";
  const auto file = fs_->open_update("/dev/full");
  const Error error = error_of([&] { file->append("x"); });
  EXPECT_EQ(error.code(), Code::kResources);
  EXPECT_FALSE(error.hint().empty());
}

TEST_F(FileTest, FifoIsRefusedAtOnce) {
  ASSERT_EQ(::mkfifo(path("fifo").c_str(), 0600), 0);
  EXPECT_THAT(error_of([&] { fs_->read_all(path("fifo")); }).message(), HasSubstr("not a regular file"));
  EXPECT_FALSE(fs_->stat(path("fifo")).is_regular);
}

TEST_F(FileTest, MapsAndReleases) {
  const std::string text(100'000, 'q');
  write_file_atomic(*fs_, path("a"), text);
  const auto map = fs_->map(path("a"));
  ASSERT_EQ(map->bytes().size(), text.size());
  map->release(5, 50'000);
  map->release(99'000, UINT64_MAX / 2);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(map->bytes().data()), text.size()), text);
  fs_->create(path("empty"));
  EXPECT_TRUE(fs_->map(path("empty"))->bytes().empty());
}

TEST_F(FileTest, ReadsAtAnOffsetAndNoticesAShrunkFile) {
  write_file_atomic(*fs_, path("a"), "0123456789");
  const auto file = fs_->open_read(path("a"));
  EXPECT_EQ(file->size(), 10U);
  std::string got(4, ' ');
  file->pread(std::as_writable_bytes(std::span(got)), 3);
  EXPECT_EQ(got, "3456");
  ASSERT_EQ(::truncate(path("a").c_str(), 5), 0);
  const Error error = error_of([&] { file->pread(std::as_writable_bytes(std::span(got)), 3); });
  EXPECT_EQ(error.where(), path("a"));
  EXPECT_EQ(error.message(), "the file ends at byte 5 where 2 more bytes were expected");
}

TEST_F(FileTest, DirectoriesLinksAndTrees) {
  fs_->make_directories(path("d/e/f"));
  fs_->make_directories(path("d/e/f"));
  write_file_atomic(*fs_, path("d/b"), "1");
  write_file_atomic(*fs_, path("outside"), "2");
  EXPECT_THAT(fs_->list(path("d")), ElementsAre("b", "e"));
  ASSERT_EQ(::symlink("../outside", path("d/link").c_str()), 0);
  ASSERT_EQ(::symlink("..", path("d/up").c_str()), 0);
  EXPECT_EQ(fs_->canonical(path("d/link")), fs_->canonical(path("outside")));
  fs_->remove_tree(path("d"));
  EXPECT_FALSE(fs_->stat(path("d")).exists);
  EXPECT_EQ(fs_->read_all(path("outside")), "2");  // links are not followed
  EXPECT_NO_THROW(fs_->remove_tree(path("d")));
  EXPECT_NO_THROW(fs_->remove_file(path("d")));
  EXPECT_EQ(error_of([&] { fs_->make_directories(path("outside/x")); }).where(), path("outside/x"));
}

TEST_F(FileTest, AtomicWriteReplacesAndLeavesNothingBehind) {
  write_file_atomic(*fs_, path("a"), "one");
  write_file_atomic(*fs_, path("a"), "two");
  EXPECT_EQ(fs_->read_all(path("a")), "two");
  EXPECT_THAT(fs_->list(root_), ElementsAre("a"));
  fs_->make_directories(path("dir"));
  error_of([&] { write_file_atomic(*fs_, path("dir"), "x"); });  // cannot replace a directory
  EXPECT_THAT(fs_->list(root_), ElementsAre("a", "dir"));
}

TEST_F(FileTest, UnfinishedWritesAreRemovedAndNothingElse) {
  for (const char* name : {"a.yaml.tmp-123-0", "a.yaml", "b.tmp", "c.tmp-x", "d.tmp-1.txt"}) fs_->create(path(name));
  remove_unfinished_writes(*fs_, root_);
  EXPECT_EQ(fs_->list(root_), (std::vector<std::string>{"a.yaml", "b.tmp", "c.tmp-x", "d.tmp-1.txt"}));
}

TEST_F(FileTest, CopiesBytes) {
  std::string text(3'000'000, '\0');
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 7);
  write_file_atomic(*fs_, path("a"), text);
  fs_->copy_file(path("a"), path("b"));
  EXPECT_EQ(fs_->read_all(path("b")), text);
  EXPECT_GT(fs_->free_space_bytes(root_), 0U);
  fs_->rename(path("b"), path("c"));
  EXPECT_FALSE(fs_->stat(path("b")).exists);
}

TEST(JoinPath, Joins) {
  EXPECT_EQ(join_path("a", "b"), "a/b");
  EXPECT_EQ(join_path("a/", "b"), "a/b");
  EXPECT_EQ(join_path("a", "/b"), "/b");
  EXPECT_EQ(join_path("", "b"), "b");
}

}  // namespace
}  // namespace expertmesh::base
