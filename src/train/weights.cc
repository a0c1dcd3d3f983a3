// SPDX-License-Identifier: Apache-2.0
#include "train/weights.h"

#include "base/file.h"
#include "base/json.h"
#include "ckpt/hf_save.h"

namespace expertmesh::train {
namespace {

ckpt::Slice slice_of(const shard::Box& box) {
  ckpt::Slice slice;
  for (const shard::Range& range : box.ranges) {
    slice.begin.push_back(range.begin);
    slice.end.push_back(range.end);
  }
  return slice;
}

}  // namespace

void load_weights(const ckpt::LoadPlan& plan, ShardedModel& model) {
  for (shard::Parameter* parameter : model.parameters()) {
    if (parameter->local_numel() == 0) continue;
    plan.load_slice(parameter->name(), slice_of(parameter->local_box()), parameter->local().mutable_data_ptr(),
                    shard::comm_dtype(parameter->dtype()));
  }
}

void save_weights(const ckpt::LoadPlan& plan, ShardedModel& model, const std::string& directory, bool bf16,
                  Observer* observer) {
  const auto fs = base::make_posix_file_system(base::Code::kCheckpoint);
  std::unordered_map<std::string_view, bool> trained;
  for (const shard::Parameter* parameter : model.parameters()) trained[parameter->name()] = parameter->trainable();
  const ckpt::SavePlan save_plan(plan.table(), &plan,
                                 {.dtype = bf16 ? base::DType::kBF16 : base::DType::kF32,
                                  .is_trained = [&](std::string_view name) { return trained.at(name); }});
  const std::string& source = plan.files().directory();
  const std::string config = fs->read_all(base::join_path(source, "config.json"));
  const auto write_local = [&](ckpt::ModelSaver& saver) {
    const auto& parameters = model.parameters();
    for (size_t i = 0; i < parameters.size(); ++i) {
      const shard::Parameter& parameter = *parameters[i];
      if (observer != nullptr)
        observer->on_save("model", static_cast<double>(i) / static_cast<double>(parameters.size()));
      if (!parameter.is_primary_replica() || parameter.local_numel() == 0 || !save_plan.wants(parameter.name()))
        continue;
      saver.write(parameter.name(), slice_of(parameter.local_box()), parameter.local().const_data_ptr(),
                  shard::comm_dtype(parameter.dtype()));
    }
  };
  ckpt::save_model(model.meshes().world(), *fs, save_plan, directory, ckpt::config_for_save(config, save_plan),
                   ckpt::companion_files(*fs, source), write_local);
}

}  // namespace expertmesh::train
