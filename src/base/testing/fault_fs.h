// SPDX-License-Identifier: Apache-2.0
// For tests: a FileSystem over another one that fails its k-th changing operation (create, write, sync, close, rename,
// remove, make directory, sync directory), and counts them.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"

namespace expertmesh::base::testing {

class FaultFs final : public FileSystem {
 public:
  struct Plan {
    long fail_at = -1;              // the operation that fails, from 1; -1: none
    bool and_later = false;         // all after it too
    Code with = Code::kCheckpoint;  // kResources: as if the disk were full
    long operations = 0;            // so far

    void count(std::string_view action, const std::string& path) {
      ++operations;
      if (fail_at < 0 || operations < fail_at || (operations > fail_at && !and_later)) return;
      throw make_error(with, "base/file", "cannot {}: injected failure at operation {}", action, operations).at(path);
    }
  };

  FaultFs(std::unique_ptr<FileSystem> real, std::shared_ptr<Plan> plan)
      : FileSystem(real->code()), real_(std::move(real)), plan_(std::move(plan)) {}

  FileStat stat(const std::string& path) const override { return real_->stat(path); }
  std::string read_all(const std::string& path) const override { return real_->read_all(path); }
  std::unique_ptr<MappedFile> map(const std::string& path) const override { return real_->map(path); }
  std::unique_ptr<ReadableFile> open_read(const std::string& path) const override { return real_->open_read(path); }
  std::vector<std::string> list(const std::string& path) const override { return real_->list(path); }
  uint64_t free_space_bytes(const std::string& path) const override { return real_->free_space_bytes(path); }
  std::string canonical(const std::string& path) const override { return real_->canonical(path); }

  std::unique_ptr<WritableFile> create(const std::string& path, bool exclusive) override {
    plan_->count("create", path);
    return wrap(path, real_->create(path, exclusive));
  }
  std::unique_ptr<WritableFile> open_append(const std::string& path) override {
    plan_->count("open", path);
    return wrap(path, real_->open_append(path));
  }
  std::unique_ptr<WritableFile> open_update(const std::string& path) override {
    plan_->count("open", path);
    return wrap(path, real_->open_update(path));
  }
  void make_directories(const std::string& path) override {
    plan_->count("make the directory", path);
    real_->make_directories(path);
  }
  void rename(const std::string& from, const std::string& to) override {
    plan_->count("rename", to);
    real_->rename(from, to);
  }
  void remove_file(const std::string& path) override {
    plan_->count("remove", path);
    real_->remove_file(path);
  }
  void remove_tree(const std::string& path) override {
    plan_->count("remove", path);
    real_->remove_tree(path);
  }
  void sync_directory(const std::string& path) override {
    plan_->count("write the directory to the device", path);
    real_->sync_directory(path);
  }
  void copy_file(const std::string& from, const std::string& to) override {
    plan_->count("copy to", to);
    real_->copy_file(from, to);
  }

 private:
  class File final : public WritableFile {
   public:
    File(std::string path, std::unique_ptr<WritableFile> real, std::shared_ptr<Plan> plan)
        : path_(std::move(path)), real_(std::move(real)), plan_(std::move(plan)) {}
    void append(std::span<const std::byte> data) override {
      half_then_fail(data.size(), [&](size_t count) { real_->append(data.first(count)); });
    }
    void pwrite(std::span<const std::byte> data, uint64_t offset) override {
      half_then_fail(data.size(), [&](size_t count) { real_->pwrite(data.first(count), offset); });
    }
    void sync() override {
      plan_->count("write to the device", path_);
      real_->sync();
    }
    void close() override {
      plan_->count("close", path_);
      real_->close();
    }

   private:
    // A write that fails has written a part.
    template <typename Write>
    void half_then_fail(size_t size, Write&& write) {
      try {
        plan_->count("write", path_);
      } catch (...) {
        write(size / 2);
        throw;
      }
      write(size);
    }

    std::string path_;
    std::unique_ptr<WritableFile> real_;
    std::shared_ptr<Plan> plan_;
  };

  std::unique_ptr<WritableFile> wrap(const std::string& path, std::unique_ptr<WritableFile> file) {
    return std::make_unique<File>(path, std::move(file), plan_);
  }

  std::unique_ptr<FileSystem> real_;
  std::shared_ptr<Plan> plan_;
};

}  // namespace expertmesh::base::testing
