// SPDX-License-Identifier: Apache-2.0
// Saving a model directory in Hugging Face layout, streamed: every rank writes the slices it owns into place, so that
// no rank holds the whole model. Tensor names and expert layout are the source's unless asked otherwise.
//
// Commit: everything is written to DIR/.model-save.tmp, synced and read back. Then an earlier model in DIR loses its
// config.json, index and weights; the new files move up, the weights' entry point last but one and config.json last. A
// directory without config.json is no model, so a save that was killed never looks complete. Other files in DIR
// (logs, checkpoints) are not touched. Leftovers of a killed save are removed by the next one.
//
// Saved dtype: trained parameters follow `dtype`; parameters that were not trained, and pass-through tensors, are
// copied from the source byte for byte; those with keep_dtype are converted to the source's dtype. Errors: kCheckpoint,
// kResources where the disk is full, kInternal where a part was written twice or not at all.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "ckpt/load_plan.h"
#include "ckpt/safetensors_writer.h"
#include "comm/group.h"

namespace expertmesh::ckpt {

enum class ExpertLayout { kSource, kSplit, kFused };

struct SaveOptions {
  DType dtype = DType::kBF16;  // of trained parameters: kBF16 or kF32
  ExpertLayout layout = ExpertLayout::kSource;
  uint64_t max_shard_bytes = 4'000'000'000;
  // Own name -> whether it was trained. Empty: all were.
  std::function<bool(std::string_view)> is_trained;
};

// What the saved files will be; pure, the same on every rank.
class SavePlan {
 public:
  // `source` may be null (a new model): the tables' first layouts are written. It and the table must outlive the plan.
  SavePlan(const WeightTable& table, const LoadPlan* source, const SaveOptions& options);

  struct Output {
    std::string name;
    DType dtype = DType::kF32;
    Shape shape;
    int entry = -1;                       // parameter of the table; -1: pass-through
    Slice box;                            // the box of the parameter that it holds
    const ModelTensor* copied = nullptr;  // its bytes come from this tensor of the source
    bool from_source = false;             // its values come from the source (copied, or assembled in another layout)
    size_t file = 0;                      // where it went
    size_t tensor = 0;                    // and its place there
  };
  struct File {
    std::string name;
    SafetensorsPlan plan;
  };

  const WeightTable& table() const { return *table_; }
  const LoadPlan* source() const { return source_; }
  const std::vector<Output>& outputs() const { return outputs_; }
  const std::vector<File>& files() const { return files_; }
  // Outputs of a parameter, as positions in outputs().
  const std::vector<size_t>& outputs_of(size_t entry) const { return by_entry_[entry]; }
  uint64_t total_bytes() const;  // of all files
  DType trained_dtype() const { return options_.dtype; }
  // Whether ranks must write this parameter; false: it comes from the source.
  bool wants(std::string_view name) const;
  std::string index_json() const;  // empty where one file holds all

 private:
  void add_entry(size_t index);
  void add_pass_through();
  void assign_files();
  DType output_dtype(const WeightEntry& entry, bool from_source) const;

  const WeightTable* table_;
  const LoadPlan* source_;
  SaveOptions options_;
  std::vector<Output> outputs_;
  std::vector<std::vector<size_t>> by_entry_;
  std::vector<File> files_;
};

// One rank's part of one save. Order: begin() on one rank; a barrier; write() and copy_from_source() on all;
// finish_rank() on all; the counts summed over ranks; commit() on the rank that began. save_model() does just that.
class ModelSaver {
 public:
  ModelSaver(base::FileSystem& fs, const SavePlan& plan, std::string directory);

  // Checks free space, makes the temporary directory and the files with their headers.
  void begin();
  // A contiguous buffer (kF32 or kBF16) with this slice of parameter `name`. Threads: any.
  void write(std::string_view name, const Slice& slice, const void* data, DType dtype);
  // This rank's share of the tensors that come from the source.
  void copy_from_source(int part, int parts);
  // Syncs and closes what this rank wrote.
  void finish_rank();
  // Elements written by this rank, by position in plan.outputs().
  std::vector<int64_t> elements_written() const;
  // `total_elements`: summed over all ranks. The config and copies of the companions go beside the weights.
  void commit(const std::vector<int64_t>& total_elements, const std::string& config_json,
              const std::vector<std::string>& companions);
  // Removes what this save has written so far; what is complete and only failed to move into place stays.
  void abandon() noexcept;

 private:
  base::WritableFile& file(size_t index);
  // Part of output `index`, from a buffer that holds `box` of its parameter.
  void write_part(size_t index, const Slice& part, const Slice& box, const void* data, DType dtype);
  void copy_tensor(size_t index);
  void assemble_tensor(size_t index);
  void check_coverage(const std::vector<int64_t>& total_elements) const;
  void write_small_files(const std::string& config_json, const std::vector<std::string>& companions);
  void remove_previous();
  void move_into_place();

  base::FileSystem& fs_;
  const SavePlan& plan_;
  std::string directory_, temporary_;
  std::mutex mutex_;
  std::map<size_t, std::unique_ptr<base::WritableFile>> files_;  // guarded by mutex_
  std::vector<std::atomic<int64_t>> written_;
  bool is_complete_ = false;  // in the temporary directory
};

// The files of a model directory that a saved model carries on beside its weights (generation config, tokenizer, chat
// template), as full paths. config.json is not among them.
std::vector<std::string> companion_files(const base::FileSystem& fs, const std::string& model_directory);

// The text of a config.json with its `dtype` / `torch_dtype` keys set to what most of the parameters are saved in;
// unchanged to the byte where they say so already, or where it has none. Throws kModel for text that is no JSON object.
std::string config_for_save(const std::string& config_json, const SavePlan& plan);
// The same for a dtype that is known.
std::string config_for_save(const std::string& config_json, DType dtype);

// Saves one model. `write_local` calls saver.write() for each slice this rank is the owner of (skip parameters that
// plan.wants() refuses). Throws on every rank where it fails on any.
// Collective over: world.
void save_model(comm::Group& world, base::FileSystem& fs, const SavePlan& plan, const std::string& directory,
                const std::string& config_json, const std::vector<std::string>& companions,
                const std::function<void(ModelSaver&)>& write_local);

}  // namespace expertmesh::ckpt
