// SPDX-License-Identifier: Apache-2.0
// Every touch of the file system goes through FileSystem, so that tests can inject faults. Paths are UTF-8 strings.
// Errors: base::Error with the code the caller chose (`code`), the path in `where`, the system's reason in the message;
// a full disk is always Code::kResources.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace expertmesh::base {

// A file opened for writing. One thread, but for pwrite, which several may call at once. Destruction closes without
// syncing.
class WritableFile {
 public:
  virtual ~WritableFile() = default;
  virtual void append(std::span<const std::byte> data) = 0;  // all of it, or an error
  virtual void pwrite(std::span<const std::byte> data, uint64_t offset) = 0;
  virtual void sync() = 0;   // data and size are on the device on return
  virtual void close() = 0;  // reports a late error
  void append(std::string_view text) { append(std::as_bytes(std::span(text.data(), text.size()))); }
};

// A file opened for reading at any offset. Threads: any. A file that shrinks meanwhile is an error, never a crash.
class ReadableFile {
 public:
  virtual ~ReadableFile() = default;
  virtual uint64_t size() const = 0;  // when it was opened
  // Fills all of `data`, or an error that names the offset.
  virtual void pread(std::span<std::byte> data, uint64_t offset) const = 0;
};

// A read-only mapping of a whole file. Threads: any. Empty files give an empty span.
class MappedFile {
 public:
  virtual ~MappedFile() = default;
  virtual std::span<const std::byte> bytes() const = 0;
  // Tells the system that a range will not be read again soon: its pages leave the process.
  virtual void release(uint64_t offset, uint64_t length) const = 0;
};

struct FileStat {
  bool exists = false;
  bool is_directory = false;
  bool is_regular = false;  // links are followed
  uint64_t size = 0;
  int64_t mtime_ns = 0;
};

class FileSystem {
 public:
  explicit FileSystem(Code code = Code::kCheckpoint) : code_(code) {}
  virtual ~FileSystem() = default;

  virtual FileStat stat(const std::string& path) const = 0;  // never throws for a path that is not there
  virtual std::string read_all(const std::string& path) const = 0;
  virtual std::unique_ptr<MappedFile> map(const std::string& path) const = 0;
  virtual std::unique_ptr<ReadableFile> open_read(const std::string& path) const = 0;
  // exclusive: an existing file is an error; otherwise it is truncated.
  virtual std::unique_ptr<WritableFile> create(const std::string& path, bool exclusive = false) = 0;
  virtual std::unique_ptr<WritableFile> open_append(const std::string& path) = 0;
  virtual std::unique_ptr<WritableFile> open_update(const std::string& path) = 0;  // an existing file, for pwrite
  virtual void make_directories(const std::string& path) = 0;
  virtual std::vector<std::string> list(const std::string& path) const = 0;  // names, sorted
  virtual void rename(const std::string& from, const std::string& to) = 0;
  virtual void remove_file(const std::string& path) = 0;  // no error where it is not there
  virtual void remove_tree(const std::string& path) = 0;  // no error where it is not there; links are not followed
  virtual void sync_directory(const std::string& path) = 0;
  virtual uint64_t free_space_bytes(const std::string& path) const = 0;
  // The real path with links resolved; an error where it does not exist.
  virtual std::string canonical(const std::string& path) const = 0;
  virtual void copy_file(const std::string& from, const std::string& to) = 0;

  Code code() const { return code_; }

 private:
  Code code_;
};

// The system's file system; errors carry `code`.
std::unique_ptr<FileSystem> make_posix_file_system(Code code);

// "a/b" from "a" and "b"; b alone where it is absolute.
std::string join_path(std::string_view a, std::string_view b);

// Writes beside the target, syncs, renames over it: readers see the old or the new text, never a part.
void write_file_atomic(FileSystem& fs, const std::string& path, std::string_view text);

// Removes what writes of the above that were killed have left in a directory, and says so in the log.
void remove_unfinished_writes(FileSystem& fs, const std::string& directory);

}  // namespace expertmesh::base
