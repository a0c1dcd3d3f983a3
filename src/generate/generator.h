// SPDX-License-Identifier: Apache-2.0
// Generates the continuations of token rows on any mesh. Rows go to the dp ranks in turn; a rank keeps up to `batch` of
// them going, and one that ends makes room for the next. An iteration is one forward of all ranks: each begins new
// rows, or gives one more token to all that are running, or takes part without tokens. What is generated depends on
// none of that, but for the rounding of sums: not on the mesh, the batch, or the other rows.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "comm/world.h"
#include "generate/token_choice.h"
#include "train/job.h"
#include "train/layer_walk.h"

namespace expertmesh::generate {

struct Prompt {
  std::vector<int32_t> ids;           // at least one
  std::vector<int32_t> end_ids = {};  // tokens that end its answer
};

struct Answer {
  std::vector<int32_t> ids;  // the new tokens, the end token included
  bool is_ended = false;     // by an end token; else by max_new_tokens
};

struct GeneratorOptions {
  Sampling sampling = {};
  uint64_t seed = 42;
  int64_t max_new_tokens = 128;  // of a row, at least 1
  int64_t batch = 8;             // rows at a time on a rank, at least 1
};

// What a run tells; each may be left out.
struct Listener {
  // On the rank that generates the row (row 0: global rank 0): each new token as it comes, but end tokens.
  std::function<void(size_t row, int32_t id)> on_token = {};
  // On global rank 0: each finished row, in the order of the prompts.
  std::function<void(size_t row, const Answer& answer)> on_answer = {};
  // Asked on every rank, once an iteration; one rank's wish ends the run on all of them.
  std::function<bool()> wants_stop = {};
};

// The same on all ranks but for the seconds.
struct RunStats {
  int64_t prompt_tokens = 0, new_tokens = 0;
  double prompt_seconds = 0;  // in iterations that began rows
  // In all other iterations; the first token of each row comes from its prompt and does not count here.
  int64_t decoded_tokens = 0;
  double decode_seconds = 0;
  bool is_stopped = false;  // by a wish; rows that were not finished are lost
};

class Generator {
 public:
  // Builds the meshes and the model and loads the weights. Collective over the world.
  Generator(comm::World& world, const train::Job& job);

  // As many prompts on every rank, and the same options; a rank reads only the prompts of its rows. Collective over the
  // world. Errors: kNumerics for scores that are not finite.
  RunStats run(std::span<const Prompt> prompts, const GeneratorOptions& options, const Listener& listener);

 private:
  comm::World& world_;
  std::shared_ptr<const comm::Meshes> meshes_;
  std::unique_ptr<train::ShardedModel> model_;
  train::LayerWalk walk_;
};

}  // namespace expertmesh::generate
