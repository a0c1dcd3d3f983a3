// SPDX-License-Identifier: Apache-2.0
#include "ckpt/model_files.h"

#include <algorithm>
#include <set>

#include "base/check.h"
#include "base/json.h"
#include "base/log.h"
#include "ckpt/fault_list.h"

namespace expertmesh::ckpt {
namespace {

using base::Error;
using base::join_path;
using base::Json;
using base::make_error;

constexpr std::string_view kSingle = "model.safetensors";
constexpr std::string_view kIndex = "model.safetensors.index.json";

struct WeightMap {
  std::vector<std::string> files;                            // in order of first mention
  std::vector<std::pair<std::string, std::string>> tensors;  // name -> file
  int64_t total_size = -1;
};

class IndexReader {
 public:
  IndexReader(const base::FileSystem& fs, const std::string& directory)
      : fs_(fs), directory_(directory), path_(join_path(directory, kIndex)) {}

  WeightMap read() const {
    const Json* map = nullptr;
    const Json index = parse();
    map = index.find("weight_map");
    if (map == nullptr || !map->is_object()) throw fail("weight_map is missing or no object");
    WeightMap result;
    std::set<std::string_view> seen;
    for (const auto& [tensor, value] : *map->try_object()) {
      const std::string* file = value.try_string();
      if (file == nullptr)
        throw fail(fmt::format("weight_map of {} is {}, not a file name", display_name(tensor), value.kind()));
      result.tensors.emplace_back(tensor, *file);
      if (seen.insert(*file).second) {
        check_name(*file, tensor);
        result.files.push_back(*file);
      }
    }
    if (result.files.empty()) throw fail("weight_map is empty");
    if (const Json* metadata = index.find("metadata")) {
      if (const Json* total = metadata->find("total_size")) result.total_size = total->try_int64().value_or(-1);
    }
    check_exist(result.files);
    return result;
  }

 private:
  Error fail(const std::string& message) const { return std::move(Error(fs_.code(), "ckpt/index", message).at(path_)); }

  Json parse() const {
    const std::string text = fs_.read_all(path_);
    try {
      Json index = base::parse_json(text, {.max_depth = 8});
      if (!index.is_object()) throw fail(fmt::format("the index is {}, not an object", index.kind()));
      return index;
    } catch (const base::JsonError& error) {
      throw std::move(Error(fs_.code(), "ckpt/index", "not valid JSON: " + error.message)
                          .at(fmt::format("{}:{}:{}", path_, error.line, error.column)));
    }
  }

  void check_name(const std::string& file, const std::string& tensor) const {
    const bool is_plain = !file.empty() && file.front() != '/' && file.find('\0') == std::string::npos &&
                          ("/" + file + "/").find("/../") == std::string::npos;
    if (!is_plain) {
      throw std::move(fail(fmt::format("tensor {} is said to be in {}, which is outside of the model directory",
                                       display_name(tensor), display_name(file)))
                          .hint("A shard is named by its path inside the directory."));
    }
    if (!file.ends_with(".safetensors")) {
      throw std::move(fail(fmt::format("tensor {} is said to be in {}, which is no .safetensors file",
                                       display_name(tensor), display_name(file))));
    }
  }

  void check_exist(const std::vector<std::string>& files) const {
    FaultList missing;
    for (const std::string& file : files) {
      if (!fs_.stat(join_path(directory_, file)).is_regular) missing.add("missing files", display_name(file));
    }
    if (!missing.empty()) {
      throw std::move(fail(fmt::format("{} of {} named weight files are not there: {}", missing.count(), files.size(),
                                       missing.text()))
                          .hint("Download the missing files."));
    }
  }

  const base::FileSystem& fs_;
  const std::string& directory_;
  std::string path_;
};

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
  const WeightMap map = IndexReader(fs, directory_).read();
  for (const std::string& name : map.files) add_file(fs, name);
  index_tensors();

  FaultList faults;
  std::set<std::string_view> promised;
  for (const auto& [name, file] : map.tensors) {
    promised.insert(name);
    const ModelTensor* tensor = find(name);
    if (tensor == nullptr || file_names_[tensor->file] != file) {
      faults.add("not where the index says", fmt::format("{} (not in {})", display_name(name), file));
    }
  }
  for (const ModelTensor& tensor : tensors_) {
    if (!promised.contains(tensor.info.name)) {
      faults.add("not in the index",
                 fmt::format("{} (in {})", display_name(tensor.info.name), file_names_[tensor.file]));
    }
  }
  if (!faults.empty()) {
    throw make_error(code_, "ckpt/index", "index and files disagree about {}: {}", faults.count_text("tensor"),
                     faults.text())
        .at(join_path(directory_, kIndex))
        .hint("Download the model again.");
  }
  if (map.total_size >= 0 && static_cast<uint64_t>(map.total_size) != total_bytes()) {
    base::log_warn("{}: total_size is {}, but the tensors take {} bytes", join_path(directory_, kIndex), map.total_size,
                   total_bytes());
  }
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
