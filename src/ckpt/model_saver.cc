// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <span>

#include "base/check.h"
#include "base/fault.h"
#include "base/log.h"
#include "ckpt/convert.h"
#include "ckpt/hf_save.h"

namespace expertmesh::ckpt {
namespace {

using base::join_path;

constexpr std::string_view kTemporary = ".model-save.tmp";
constexpr std::string_view kIndex = "model.safetensors.index.json";
constexpr int64_t kBufferBytes = 1 << 20;
constexpr uint64_t kSpareBytes = 16 << 20;  // for the small files

std::string text_of_mib(uint64_t bytes) { return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1 << 20)); }

bool is_shard_name(std::string_view name) {
  return name.starts_with("model-") && name.ends_with(".safetensors") && name.find("-of-") != std::string_view::npos;
}

}  // namespace

ModelSaver::ModelSaver(base::FileSystem& fs, const SavePlan& plan, std::string directory)
    : fs_(fs),
      plan_(plan),
      directory_(std::move(directory)),
      temporary_(join_path(directory_, kTemporary)),
      written_(plan.outputs().size()) {}

void ModelSaver::begin() {
  fs_.make_directories(directory_);
  if (fs_.stat(temporary_).exists) {
    base::log_warn("{}: removing what an interrupted save left behind", temporary_);
    fs_.remove_tree(temporary_);
  }
  const uint64_t needed = plan_.total_bytes() + kSpareBytes, free = fs_.free_space_bytes(directory_);
  if (free < needed) {
    throw base::make_error(base::Code::kResources, "ckpt/save", "the model takes {}, but {} are free",
                           text_of_mib(needed), text_of_mib(free))
        .at(directory_)
        .hint("Free some space or choose another output_dir.");
  }
  fs_.make_directories(temporary_);
  EXPERTMESH_FAULT_POINT("ckpt.model.made_directory");
  for (const SavePlan::File& file : plan_.files()) {
    const auto out = fs_.create(join_path(temporary_, file.name), /*exclusive=*/true);
    out->append(file.plan.head);
    // The full size at once: other ranks write anywhere in it.
    const std::byte zero{0};
    if (file.plan.file_bytes > file.plan.head.size()) out->pwrite({&zero, 1}, file.plan.file_bytes - 1);
    out->close();
    EXPERTMESH_FAULT_POINT("ckpt.model.made_file");
  }
}

base::WritableFile& ModelSaver::file(size_t index) {
  const std::lock_guard lock(mutex_);
  auto& file = files_[index];
  if (!file) file = fs_.open_update(join_path(temporary_, plan_.files()[index].name));
  return *file;
}

void ModelSaver::write(std::string_view name, const Slice& slice, const void* data, DType dtype) {
  EXPERTMESH_CHECK(plan_.wants(name), "{} comes from the source", name);
  const size_t entry = plan_.table().index(name);
  EXPERTMESH_CHECK(slice.fits(plan_.table().entries()[entry].shape), "slice {} of {}", slice.text(), name);
  for (const size_t output : plan_.outputs_of(entry)) {
    const auto part = intersect(plan_.outputs()[output].box, slice);
    if (part) write_part(output, *part, slice, data, dtype);
  }
}

void ModelSaver::write_part(size_t index, const Slice& part, const Slice& box, const void* data, DType dtype) {
  const SavePlan::Output& output = plan_.outputs()[index];
  const auto size = static_cast<int64_t>(dtype_bytes(dtype));
  const auto target_size = static_cast<int64_t>(dtype_bytes(output.dtype));
  const uint64_t begin = plan_.files()[output.file].plan.tensors[output.tensor].begin;
  base::WritableFile& out = file(output.file);
  std::vector<std::byte> buffer;
  const auto put = [&](const std::byte* from, int64_t target, int64_t count) {
    const uint64_t offset = begin + static_cast<uint64_t>(target * target_size);
    if (dtype == output.dtype) {
      out.pwrite({from, static_cast<size_t>(count * size)}, offset);
      return;
    }
    buffer.resize(static_cast<size_t>(kBufferBytes));
    for (int64_t done = 0; done < count;) {
      const int64_t now = std::min(count - done, kBufferBytes / target_size);
      convert_elements(from + done * size, dtype, buffer.data(), output.dtype, now);
      out.pwrite(std::span(buffer).first(static_cast<size_t>(now * target_size)),
                 offset + static_cast<uint64_t>(done * target_size));
      done += now;
    }
  };
  for_each_block(part, box, output.box, [&](const RunBlock& block) {
    const auto* from = static_cast<const std::byte*>(data);
    const bool is_one_run = block.source_stride == block.run && block.target_stride == block.run;
    const int64_t rows = is_one_run ? 1 : block.rows, run = is_one_run ? block.rows * block.run : block.run;
    for (int64_t row = 0; row < rows; ++row) {
      put(from + (block.source + row * block.source_stride) * size, block.target + row * block.target_stride, run);
    }
  });
  written_[index] += part.numel();
}

void ModelSaver::copy_from_source(int part, int parts) {
  size_t turn = 0;
  for (size_t i = 0; i < plan_.outputs().size(); ++i) {
    const SavePlan::Output& output = plan_.outputs()[i];
    if (!output.from_source || static_cast<int>(turn++ % static_cast<size_t>(parts)) != part) continue;
    if (output.copied != nullptr) {
      copy_tensor(i);
    } else {
      assemble_tensor(i);
    }
    EXPERTMESH_FAULT_POINT("ckpt.model.copied_tensor");
  }
}

void ModelSaver::copy_tensor(size_t index) {
  const SavePlan::Output& output = plan_.outputs()[index];
  const TensorInfo& target = plan_.files()[output.file].plan.tensors[output.tensor];
  base::WritableFile& out = file(output.file);
  std::vector<std::byte> buffer(static_cast<size_t>(std::min<uint64_t>(kBufferBytes, target.bytes())));
  for (uint64_t at = 0; at < target.bytes(); at += buffer.size()) {
    const auto chunk =
        std::span(buffer).first(static_cast<size_t>(std::min<uint64_t>(buffer.size(), target.bytes() - at)));
    plan_.source()->files().read(*output.copied, at, chunk);
    out.pwrite(chunk, target.begin + at);
  }
  written_[index] += numel(output.shape);
}

void ModelSaver::assemble_tensor(size_t index) {
  const SavePlan::Output& output = plan_.outputs()[index];
  const std::string& name = plan_.table().entries()[static_cast<size_t>(output.entry)].name;
  // One step along the first dim at a time: a fused tensor is never held whole.
  Slice step = output.box;
  std::vector<std::byte> buffer;
  for (int64_t at = output.box.begin[0]; at < output.box.end[0]; ++at) {
    step.begin[0] = at;
    step.end[0] = at + 1;
    buffer.resize(static_cast<size_t>(step.numel()) * dtype_bytes(output.dtype));
    plan_.source()->load_slice(name, step, buffer.data(), output.dtype);
    write_part(index, step, step, buffer.data(), output.dtype);
  }
}

void ModelSaver::finish_rank() {
  const std::lock_guard lock(mutex_);
  for (auto& [index, file] : files_) {
    EXPERTMESH_FAULT_POINT("ckpt.model.before_sync");
    file->sync();
    file->close();
  }
  files_.clear();
}

std::vector<int64_t> ModelSaver::elements_written() const { return {written_.begin(), written_.end()}; }

void ModelSaver::check_coverage(const std::vector<int64_t>& total_elements) const {
  const auto& outputs = plan_.outputs();
  EXPERTMESH_CHECK(total_elements.size() == outputs.size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    EXPERTMESH_CHECK(total_elements[i] == numel(outputs[i].shape), "{} of {} elements of {} were written",
                     total_elements[i], numel(outputs[i].shape), outputs[i].name);
  }
}

void ModelSaver::commit(const std::vector<int64_t>& total_elements, const std::string& config_json,
                        const std::vector<std::string>& companions) {
  check_coverage(total_elements);
  for (const SavePlan::File& file : plan_.files()) {
    const std::string path = join_path(temporary_, file.name);
    fs_.open_update(path)->sync();  // what other processes wrote is on the device too
    verify_safetensors(fs_, path, file.plan);
    EXPERTMESH_FAULT_POINT("ckpt.model.verified_file");
  }
  write_small_files(config_json, companions);
  EXPERTMESH_FAULT_POINT("ckpt.model.before_commit");
  is_complete_ = true;
  remove_previous();
  move_into_place();
  fs_.remove_tree(temporary_);
}

void ModelSaver::write_small_files(const std::string& config_json, const std::vector<std::string>& companions) {
  for (const std::string& from : companions) {
    const std::string to = join_path(temporary_, from.substr(from.rfind('/') + 1));
    fs_.copy_file(from, to);
    fs_.open_update(to)->sync();
  }
  if (const std::string index = plan_.index_json(); !index.empty()) {
    base::write_file_atomic(fs_, join_path(temporary_, kIndex), index);
  }
  base::write_file_atomic(fs_, join_path(temporary_, "config.json"), config_json);
}

void ModelSaver::remove_previous() {
  // config.json first: from here on the directory is no model until the new one is complete.
  fs_.remove_file(join_path(directory_, "config.json"));
  fs_.sync_directory(directory_);
  EXPERTMESH_FAULT_POINT("ckpt.model.removed_config");
  fs_.remove_file(join_path(directory_, kIndex));
  for (const std::string& name : fs_.list(directory_)) {
    if (name == "model.safetensors" || is_shard_name(name)) fs_.remove_file(join_path(directory_, name));
  }
}

void ModelSaver::move_into_place() {
  std::vector<std::string> names = fs_.list(temporary_);
  const auto rank = [](const std::string& name) { return name == "config.json" ? 2 : name == kIndex ? 1 : 0; };
  std::stable_sort(names.begin(), names.end(),
                   [&](const std::string& a, const std::string& b) { return rank(a) < rank(b); });
  for (const std::string& name : names) {
    if (name == "config.json") fs_.sync_directory(directory_);  // all else first
    fs_.rename(join_path(temporary_, name), join_path(directory_, name));
    EXPERTMESH_FAULT_POINT("ckpt.model.renamed_file");
  }
  fs_.sync_directory(directory_);
}

void ModelSaver::abandon() noexcept {
  try {
    const std::lock_guard lock(mutex_);
    files_.clear();
    if (is_complete_) {
      base::log_warn("{}: the saved model is complete here but could not be moved into place", temporary_);
    } else {
      fs_.remove_tree(temporary_);
    }
  } catch (const base::Error& error) {
    base::log_warn("{}", error.reason());
  } catch (const std::exception& error) {
    base::log_warn("{}", error.what());
  }
}

}  // namespace expertmesh::ckpt
