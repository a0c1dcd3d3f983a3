// SPDX-License-Identifier: Apache-2.0
#include "base/file.h"

#include <fcntl.h>
#include <ftw.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "base/fault.h"
#include "base/log.h"

namespace expertmesh::base {
namespace {

constexpr size_t kChunkBytes = size_t{1} << 30;  // the system takes at most 2 GiB at once

// The system's words for an errno; strerror_r in its two forms is not worth the trouble.
std::string reason(int error) { return std::generic_category().message(error); }

[[noreturn]] void fail(Code code, std::string_view action, const std::string& path, int error) {
  const bool is_full = error == ENOSPC || error == EDQUOT;
  Error failure = make_error(is_full ? Code::kResources : code, "base/file", "cannot {}: {}", action, reason(error));
  failure.at(path);
  if (is_full) failure.hint("Free some space or choose another directory.");
  throw failure;
}

template <typename Call>
auto retry(Call&& call) {
  while (true) {
    const auto result = call();
    if (result != -1 || errno != EINTR) return result;
  }
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }
  int take() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

class PosixWritableFile final : public WritableFile {
 public:
  PosixWritableFile(Code code, std::string path, int fd) : code_(code), path_(std::move(path)), fd_(fd) {}

  void append(std::span<const std::byte> data) override {
    write_all(data, [&](const std::byte* at, size_t count) { return ::write(fd_.get(), at, count); });
  }

  void pwrite(std::span<const std::byte> data, uint64_t offset) override {
    write_all(data, [&](const std::byte* at, size_t count) {
      const ssize_t done = ::pwrite(fd_.get(), at, count, static_cast<off_t>(offset));
      if (done > 0) offset += static_cast<uint64_t>(done);
      return done;
    });
  }

  void sync() override {
    EXPERTMESH_FAULT_POINT("file.sync");
    if (retry([&] { return ::fsync(fd_.get()); }) != 0) fail(code_, "write to the device", path_, errno);
  }

  void close() override {
    const int fd = fd_.take();
    // After EINTR the descriptor is gone all the same: a second close could hit another thread's file.
    if (fd >= 0 && ::close(fd) != 0 && errno != EINTR) fail(code_, "close", path_, errno);
  }

 private:
  template <typename Write>
  void write_all(std::span<const std::byte> data, Write&& write) {
    while (!data.empty()) {
      EXPERTMESH_FAULT_POINT("file.write");
      const ssize_t done = retry([&] { return write(data.data(), std::min(data.size(), kChunkBytes)); });
      if (done < 0) fail(code_, "write", path_, errno);
      if (done == 0) fail(code_, "write", path_, EIO);
      data = data.subspan(static_cast<size_t>(done));
    }
  }

  Code code_;
  std::string path_;
  Descriptor fd_;
};

class PosixReadableFile final : public ReadableFile {
 public:
  PosixReadableFile(Code code, std::string path, int fd, uint64_t size)
      : code_(code), path_(std::move(path)), fd_(fd), size_(size) {}

  uint64_t size() const override { return size_; }

  void pread(std::span<std::byte> data, uint64_t offset) const override {
    while (!data.empty()) {
      const size_t want = std::min(data.size(), kChunkBytes);
      const ssize_t got = retry([&] { return ::pread(fd_.get(), data.data(), want, static_cast<off_t>(offset)); });
      if (got < 0) fail(code_, fmt::format("read at byte {}", offset), path_, errno);
      if (got == 0) {
        throw make_error(code_, "base/file", "the file ends at byte {} where {} more bytes were expected", offset,
                         data.size())
            .at(path_);
      }
      data = data.subspan(static_cast<size_t>(got));
      offset += static_cast<uint64_t>(got);
    }
  }

 private:
  Code code_;
  std::string path_;
  Descriptor fd_;
  uint64_t size_;
};

class PosixMappedFile final : public MappedFile {
 public:
  PosixMappedFile(void* address, size_t size) : address_(address), size_(size) {}
  PosixMappedFile(const PosixMappedFile&) = delete;
  PosixMappedFile& operator=(const PosixMappedFile&) = delete;
  ~PosixMappedFile() override {
    if (size_ > 0) ::munmap(address_, size_);
  }

  std::span<const std::byte> bytes() const override { return {static_cast<const std::byte*>(address_), size_}; }

  void release(uint64_t offset, uint64_t length) const override {
    static const auto kPage = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
    const uint64_t end = std::min<uint64_t>(size_, offset + length);
    const uint64_t begin = offset / kPage * kPage;
    // Pages shared with a neighbouring range are dropped too: they come back when touched.
    if (begin < end) ::madvise(static_cast<std::byte*>(address_) + begin, end - begin, MADV_DONTNEED);
  }

 private:
  void* address_;
  size_t size_;
};

class PosixFileSystem final : public FileSystem {
 public:
  explicit PosixFileSystem(Code code) : FileSystem(code) {}

  FileStat stat(const std::string& path) const override {
    struct ::stat found{};
    if (retry([&] { return ::stat(path.c_str(), &found); }) != 0) return {};
    return {.exists = true,
            .is_directory = S_ISDIR(found.st_mode),
            .is_regular = S_ISREG(found.st_mode),
            .size = static_cast<uint64_t>(found.st_size),
            .mtime_ns = found.st_mtim.tv_sec * 1'000'000'000 + found.st_mtim.tv_nsec};
  }

  std::string read_all(const std::string& path) const override {
    const Descriptor fd = open_regular(path);
    const uint64_t size = stat(path).size;
    std::string text;
    text.reserve(std::min<uint64_t>(size, uint64_t{1} << 30));
    std::vector<char> buffer(std::clamp<uint64_t>(size, 4096, uint64_t{1} << 20));
    while (true) {
      const ssize_t got = retry([&] { return ::read(fd.get(), buffer.data(), buffer.size()); });
      if (got < 0) fail(code(), "read", path, errno);
      if (got == 0) return text;
      text.append(buffer.data(), static_cast<size_t>(got));
    }
  }

  std::unique_ptr<MappedFile> map(const std::string& path) const override {
    const Descriptor fd = open_regular(path);
    struct ::stat found{};
    if (::fstat(fd.get(), &found) != 0) fail(code(), "read the size of", path, errno);
    const auto size = static_cast<size_t>(found.st_size);
    if (size == 0) return std::make_unique<PosixMappedFile>(nullptr, 0);
    void* address = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd.get(), 0);
    if (address == MAP_FAILED) fail(code(), "map", path, errno);
    return std::make_unique<PosixMappedFile>(address, size);
  }

  std::unique_ptr<ReadableFile> open_read(const std::string& path) const override {
    Descriptor fd = open_regular(path);
    struct ::stat found{};
    if (::fstat(fd.get(), &found) != 0) fail(code(), "read the size of", path, errno);
    return std::make_unique<PosixReadableFile>(code(), path, fd.take(), static_cast<uint64_t>(found.st_size));
  }

  std::unique_ptr<WritableFile> create(const std::string& path, bool exclusive) override {
    return open_writable(path, O_CREAT | (exclusive ? O_EXCL : O_TRUNC), "create");
  }
  std::unique_ptr<WritableFile> open_append(const std::string& path) override {
    return open_writable(path, O_CREAT | O_APPEND, "open");
  }
  std::unique_ptr<WritableFile> open_update(const std::string& path) override {
    return open_writable(path, 0, "open for writing");
  }

  void make_directories(const std::string& path) override {
    EXPERTMESH_FAULT_POINT("file.make_directories");
    std::error_code error;
    std::filesystem::create_directories(path, error);
    if (error) fail(code(), "make the directory", path, error.value());
    if (!stat(path).is_directory) fail(code(), "make the directory", path, ENOTDIR);
  }

  std::vector<std::string> list(const std::string& path) const override {
    std::vector<std::string> names;
    std::error_code error;
    for (std::filesystem::directory_iterator at(path, error), end; !error && at != end; at.increment(error)) {
      names.push_back(at->path().filename().string());
    }
    if (error) fail(code(), "list", path, error.value());
    std::sort(names.begin(), names.end());
    return names;
  }

  void rename(const std::string& from, const std::string& to) override {
    EXPERTMESH_FAULT_POINT("file.rename");
    if (::rename(from.c_str(), to.c_str()) != 0) fail(code(), "rename " + from + " to this", to, errno);
  }

  void remove_file(const std::string& path) override {
    EXPERTMESH_FAULT_POINT("file.remove_file");
    if (::unlink(path.c_str()) != 0 && errno != ENOENT) fail(code(), "remove", path, errno);
  }

  void remove_tree(const std::string& path) override {
    EXPERTMESH_FAULT_POINT("file.remove_tree");
    std::error_code error;
    std::filesystem::remove_all(path, error);
    if (error) fail(code(), "remove", path, error.value());
  }

  void sync_directory(const std::string& path) override {
    EXPERTMESH_FAULT_POINT("file.sync_directory");
    const Descriptor fd(retry([&] { return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
    if (fd.get() < 0) fail(code(), "open the directory", path, errno);
    // Some network and overlay file systems cannot sync a directory; that is no failure of the write.
    if (retry([&] { return ::fsync(fd.get()); }) != 0 && errno != EINVAL && errno != ENOTSUP) {
      fail(code(), "write the directory to the device", path, errno);
    }
  }

  uint64_t free_space_bytes(const std::string& path) const override {
    struct ::statvfs found{};
    if (retry([&] { return ::statvfs(path.c_str(), &found); }) != 0) fail(code(), "ask for free space", path, errno);
    return static_cast<uint64_t>(found.f_bavail) * found.f_frsize;
  }

  std::string canonical(const std::string& path) const override {
    const std::unique_ptr<char, decltype(&std::free)> real(::realpath(path.c_str(), nullptr), &std::free);
    if (!real) fail(code(), "resolve", path, errno);
    return real.get();
  }

  void copy_file(const std::string& from, const std::string& to) override {
    const Descriptor source = open_regular(from);
    const auto target = create(to, false);
    std::vector<std::byte> buffer(size_t{1} << 20);
    while (true) {
      const ssize_t got = retry([&] { return ::read(source.get(), buffer.data(), buffer.size()); });
      if (got < 0) fail(code(), "read", from, errno);
      if (got == 0) break;
      target->append(std::span(buffer).first(static_cast<size_t>(got)));
    }
    target->close();
  }

 private:
  // O_NONBLOCK: opening a FIFO must not wait for a writer.
  Descriptor open_regular(const std::string& path) const {
    const int fd = retry([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); });
    if (fd < 0) fail(code(), "open", path, errno);
    Descriptor opened(fd);
    struct ::stat found{};
    if (::fstat(fd, &found) != 0) fail(code(), "read the size of", path, errno);
    if (S_ISDIR(found.st_mode)) fail(code(), "read", path, EISDIR);
    if (!S_ISREG(found.st_mode)) throw make_error(code(), "base/file", "not a regular file").at(path);
    return Descriptor(opened.take());
  }

  std::unique_ptr<WritableFile> open_writable(const std::string& path, int flags, std::string_view action) const {
    EXPERTMESH_FAULT_POINT("file.open");
    const int fd = retry([&] { return ::open(path.c_str(), O_WRONLY | O_CLOEXEC | flags, 0666); });
    if (fd < 0) fail(code(), action, path, errno);
    return std::make_unique<PosixWritableFile>(code(), path, fd);
  }
};

}  // namespace

std::unique_ptr<FileSystem> make_posix_file_system(Code code) { return std::make_unique<PosixFileSystem>(code); }

std::string join_path(std::string_view a, std::string_view b) {
  if (a.empty() || b.starts_with('/')) return std::string(b);
  std::string joined(a);
  if (!joined.ends_with('/')) joined += '/';
  return joined += b;
}

void write_file_atomic(FileSystem& fs, const std::string& path, std::string_view text) {
  static std::atomic<unsigned> counter{0};
  const std::string beside = fmt::format("{}.tmp-{}-{}", path, ::getpid(), counter++);
  try {
    const auto file = fs.create(beside, /*exclusive=*/true);
    file->append(text);
    file->sync();
    file->close();
    fs.rename(beside, path);
  } catch (...) {
    try {
      fs.remove_file(beside);
    } catch (const Error& second) {  // the first cause is the one to report
      log_warn("{}", second.reason());
    }
    throw;
  }
  const size_t slash = path.rfind('/');
  fs.sync_directory(slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash));
}

void remove_unfinished_writes(FileSystem& fs, const std::string& directory) {
  for (const std::string& name : fs.list(directory)) {
    const size_t mark = name.rfind(".tmp-");
    if (mark == std::string::npos || name.find_first_not_of("0123456789-", mark + 5) != std::string::npos) continue;
    const std::string path = join_path(directory, name);
    log_warn("{}: removing what an interrupted write left behind", path);
    fs.remove_file(path);
  }
}

}  // namespace expertmesh::base
