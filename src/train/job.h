// SPDX-License-Identifier: Apache-2.0
// What a training run needs, made once a process before its ranks start and shared by them read-only.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/json.h"
#include "ckpt/load_plan.h"
#include "config/load.h"
#include "config/validate.h"
#include "data/dataset.h"
#include "data/input_rows.h"
#include "model/registry.h"

namespace expertmesh::train {

struct Job {
  std::string stage = "sft";
  config::Loaded loaded;
  config::WorldSizes sizes;
  base::Json model_config;  // of <model>/config.json
  const model::ModelSpec* spec = nullptr;
  std::shared_ptr<const model::Model> blueprint;  // shapes and weight table; nothing is allocated in it
  std::shared_ptr<const ckpt::LoadPlan> weights;  // every tensor found and of the right shape
  std::shared_ptr<const data::Dataset> dataset;   // nullptr where nothing is trained
  std::string build_id;
  std::string profile_dir;  // of EXPERTMESH_PROFILE; empty: below the output directory
};

// Reads a config.json, or another file of its kind. Throws kModel where it is no JSON object.
base::Json read_config_json(const std::string& path);

// Reads <model>/config.json. Throws kModel where it is missing or no JSON object.
base::Json read_model_config(const std::string& model_dir);

// The model's part: description, sizes checked against `world` ranks, and the plan of its weights. No rank has started
// yet. `stage` is "sft", "score" or "generate".
Job prepare_model(const std::string& stage, config::Loaded loaded, int world);

// That, and the training rows. `progress` is called with bytes done and all bytes while text is tokenised.
Job prepare_job(const std::string& stage, config::Loaded loaded, int world,
                const std::function<void(uint64_t, uint64_t)>& progress);

// How rows of text are read for the job's model where nothing is trained.
data::InputOptions input_options(const Job& job);

}  // namespace expertmesh::train
