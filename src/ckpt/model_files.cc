// SPDX-License-Identifier: Apache-2.0
#include "ckpt/model_files.h"

#include <algorithm>

#include "base/check.h"
#include "base/log.h"
#include "ckpt/fault_list.h"
#include "ckpt/model_index.h"

namespace expertmesh::ckpt {
namespace {

using base::Error;
using base::join_path;
using base::make_error;

constexpr std::string_view kSingle = "model.safetensors";
constexpr std::string_view kIndex = "model.safetensors.index.json";

void check_exist(const base::FileSystem& fs, const std::string& directory, const std::vector<std::string>& files) {
  FaultList missing;
  for (const std::string& file : files) {
    if (!fs.stat(join_path(directory, file)).is_regular) missing.add("missing files", display_name(file));
  }
  if (missing.empty()) return;
  throw make_error(fs.code(), "ckpt/index", "{} of {} named weight files are not there: {}", missing.count(),
                   files.size(), missing.text())
      .at(join_path(directory, kIndex))
      .hint("Download the missing files.");
}

// Files of a hub cache are links from REPO/snapshots/REVISION into REPO/blobs.
std::string blobs_of(const std::string& real_directory) {
  const size_t revision = real_directory.rfind('/');
  if (revision == std::string::npos || revision == 0) return {};
  const std::string snapshots = real_directory.substr(0, revision);
  if (!snapshots.ends_with("/snapshots")) return {};
  return snapshots.substr(0, snapshots.rfind('/')) + "/blobs/";
}

void check_link(const base::FileSystem& fs, const std::string& directory, const std::string& name) {
  const std::string real_directory = fs.canonical(directory);
  const std::string real_file = fs.canonical(join_path(directory, name));
  const std::string blobs = blobs_of(real_directory);
  if (real_file.starts_with(real_directory + "/") || (!blobs.empty() && real_file.starts_with(blobs))) return;
  throw make_error(fs.code(), "ckpt/files", "the link leads out of the model directory, to {}", real_file)
      .at(join_path(directory, name))
      .hint("Put the file itself into the directory.");
}

Error no_weights(const base::FileSystem& fs, const std::string& directory) {
  Error error = make_error(fs.code(), "ckpt/files", "there is neither {} nor {}", kSingle, kIndex);
  error.at(directory);
  for (const std::string& name : fs.list(directory)) {
    if (name.ends_with(".bin") || name.ends_with(".pt") || name.ends_with(".pth") || name.ends_with(".ckpt")) {
      error.hint(
          fmt::format("{} is a pickle, which could run code and is never loaded: convert it to safetensors.", name));
      return error;
    }
    if (name.ends_with(".safetensors")) {
      error.hint(fmt::format("{} is there, but shards need the index that names them.", name));
    }
  }
  if (error.hint().empty()) error.hint("Name a Hugging Face model directory with its weights.");
  return error;
}

}  // namespace

ModelFiles::ModelFiles(const base::FileSystem& fs, std::string directory)
    : directory_(std::move(directory)), code_(fs.code()) {
  if (!fs.stat(directory_).is_directory) {
    throw make_error(code_, "ckpt/files", "there is no such model directory").at(directory_);
  }
  const bool has_index = fs.stat(join_path(directory_, kIndex)).exists;
  if (fs.stat(join_path(directory_, kSingle)).exists) {
    if (has_index) base::log_warn("{}: {} is there, so {} is not used", directory_, kSingle, kIndex);
    add_file(fs, std::string(kSingle));
    index_tensors();
  } else if (has_index) {
    add_indexed(fs);
  } else {
    throw no_weights(fs, directory_);
  }
}

void ModelFiles::add_indexed(const base::FileSystem& fs) {
  const std::string path = join_path(directory_, kIndex);
  const ModelIndex index = read_model_index(fs, path);
  check_exist(fs, directory_, index.files);
  for (const std::string& name : index.files) add_file(fs, name);
  index_tensors();
  compare_with(index, path);
  if (index.total_size >= 0 && static_cast<uint64_t>(index.total_size) != total_bytes()) {
    base::log_warn("{}: total_size is {}, but the tensors take {} bytes", path, index.total_size, total_bytes());
  }
}

void ModelFiles::compare_with(const ModelIndex& index, const std::string& path) const {
  FaultList faults;
  for (const auto& [name, file] : index.tensors) {
    const ModelTensor* tensor = find(name);
    if (tensor == nullptr || tensor->file != file) {
      faults.add("not where the index says", fmt::format("{} (not in {})", display_name(name), index.files[file]));
    }
  }
  for (const ModelTensor& tensor : tensors_) {
    const auto& name = tensor.info.name;
    const auto at = std::lower_bound(index.tensors.begin(), index.tensors.end(), name,
                                     [](const auto& entry, const std::string& key) { return entry.first < key; });
    if (at == index.tensors.end() || at->first != name) {
      faults.add("not in the index", fmt::format("{} (in {})", display_name(name), file_names_[tensor.file]));
    }
  }
  if (faults.empty()) return;
  throw make_error(code_, "ckpt/index", "index and files disagree about {}: {}", faults.count_text("tensor"),
                   faults.text())
      .at(path)
      .hint("Download the model again.");
}

void ModelFiles::add_file(const base::FileSystem& fs, const std::string& name) {
  check_link(fs, directory_, name);
  const std::string path = join_path(directory_, name);
  auto file = fs.open_read(path);
  SafetensorsHeader header = read_safetensors_header(*file, path, code_);
  for (TensorInfo& info : header.tensors) tensors_.push_back({std::move(info), files_.size()});
  file_names_.push_back(name);
  files_.push_back(std::move(file));
}

void ModelFiles::index_tensors() {
  FaultList twice;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const auto [at, is_new] = index_.emplace(tensors_[i].info.name, i);
    if (!is_new) {
      twice.add("there twice", fmt::format("{} (in {} and {})", display_name(tensors_[i].info.name),
                                           file_names_[tensors_[at->second].file], file_names_[tensors_[i].file]));
    }
  }
  if (!twice.empty()) {
    throw make_error(code_, "ckpt/files", "{} in two files: {}", twice.count_text("tensor"), twice.text())
        .at(directory_);
  }
}

uint64_t ModelFiles::total_bytes() const {
  uint64_t total = 0;
  for (const ModelTensor& tensor : tensors_) total += tensor.info.bytes();
  return total;
}

const ModelTensor* ModelFiles::find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

std::string ModelFiles::where(const ModelTensor& tensor) const {
  return fmt::format("{}: tensor {}", join_path(directory_, file_names_[tensor.file]), display_name(tensor.info.name));
}

void ModelFiles::read(const ModelTensor& tensor, uint64_t offset, std::span<std::byte> bytes) const {
  EXPERTMESH_CHECK(offset <= tensor.info.bytes() && bytes.size() <= tensor.info.bytes() - offset,
                   "bytes {} to {} of {}", offset, offset + bytes.size(), tensor.info.name);
  files_[tensor.file]->pread(bytes, tensor.info.begin + offset);
}

}  // namespace expertmesh::ckpt
