// SPDX-License-Identifier: Apache-2.0
#include "train/start_table.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "config/print.h"
#include "train/kernels.h"
#include "train/step.h"

namespace expertmesh::train {
namespace {

template <size_t N>
std::string scaled(double value, const std::array<const char*, N>& units, double base) {
  size_t unit = 0;
  while (value >= base && unit + 1 < N) {
    value /= base;
    ++unit;
  }
  const int digits = unit == 0 || value >= 100 ? 0 : value >= 10 ? 1 : 2;
  return fmt::format("{:.{}f}{}{}", value, digits, *units[unit] == 0 ? "" : " ", units[unit]);
}

int64_t tensor_bytes(const at::Tensor& tensor) { return tensor.numel() * static_cast<int64_t>(tensor.element_size()); }

int64_t unsharded_bytes(const std::vector<shard::Parameter*>& parameters) {
  int64_t bytes = 0;
  for (const shard::Parameter* parameter : parameters) {
    if (parameter->shard_group() == nullptr) continue;
    bytes += parameter->unsharded_box().numel() * static_cast<int64_t>(parameter->local().element_size());
  }
  return bytes;
}

TableSection model_section(const Job& job, ShardedModel& model) {
  const model::Model& m = model.model();
  const auto sizes = m.sizes();
  TableSection section{"model", {}};
  section.rows.emplace_back("type", std::string(job.spec->model_type));
  section.rows.emplace_back("path", job.loaded.config.model.path);
  section.rows.emplace_back(
      "parameters", fmt::format("{} total, {} active a token", human_count(static_cast<double>(m.total_parameters())),
                                human_count(static_cast<double>(m.active_parameters()))));
  section.rows.emplace_back("layers", fmt::format("{} ({} with experts), hidden {}, heads {}/{}", sizes.layers,
                                                  sizes.moe_layers, sizes.hidden, sizes.heads, sizes.kv_heads));
  section.rows.emplace_back("experts", fmt::format("{}, {} a token, width {}", sizes.experts, sizes.experts_per_token,
                                                   sizes.moe_intermediate));
  int64_t trained = 0;
  for (const shard::Parameter* parameter : model.parameters())
    trained += parameter->trainable() ? parameter->global_numel() : 0;
  if (trained != m.total_parameters()) section.rows.emplace_back("trained", human_count(static_cast<double>(trained)));
  return section;
}

TableSection mesh_section(const comm::World& world, ShardedModel& model) {
  const comm::Topology& t = model.meshes().topology();
  TableSection section{"mesh", {}};
  section.rows.emplace_back("ranks",
                            fmt::format("{} ({}), {} threads each", t.world, world.engine(), at::get_num_threads()));
  section.rows.emplace_back("data", fmt::format("dp {} x cp {}", t.dp, t.cp));
  section.rows.emplace_back("fsdp", fmt::format("mp_replicate {} x mp_shard {}", t.mp_replicate, t.mp_shard));
  section.rows.emplace_back("expert",
                            fmt::format("edp {} x efsdp {} x ep {} x expert_cp {}", t.edp, t.efsdp, t.ep, t.cp));
  return section;
}

TableSection memory_section(ShardedModel& model, const Optimizer& optimizer) {
  int64_t weights = 0, gradients = 0, largest_layer = 0;
  for (const shard::Parameter* parameter : model.parameters()) {
    weights += tensor_bytes(parameter->local());
    if (parameter->trainable()) gradients += parameter->local_numel() * 4;
  }
  for (const auto& layer : model.layers()) {
    largest_layer = std::max(largest_layer, unsharded_bytes(layer.module->parameters()));
  }
  TableSection section{"memory a rank", {}};
  section.rows.emplace_back("weights", human_bytes(static_cast<double>(weights)));
  section.rows.emplace_back("gradients", human_bytes(static_cast<double>(gradients)) + " (fp32)");
  section.rows.emplace_back("optimizer", human_bytes(static_cast<double>(optimizer.state_bytes())));
  section.rows.emplace_back(
      "gathered",
      fmt::format("{} (root and two layers)",
                  human_bytes(static_cast<double>(unsharded_bytes(model.root().parameters()) + 2 * largest_layer))));
  return section;
}

// flash_attn with what it means here: kernel_config may ask for plain ATen throughout.
std::string attention_text(const config::Config& config) {
  const std::string name(config::choice_name(config.model.flash_attn));
  if (config.kernel.has(config::Kernel::kReference)) return name + ": plain ATen, as kernel_config says";
  if (config.model.flash_attn == config::FlashAttention::kEager) return name + ": plain ATen, all scores of a document";
  return name +
         (config.train.bf16 ? ": own tiles, ATen flash where documents are few" : ": ATen flash, a document at a time");
}

// What a micro-batch holds: of a dynamic strategy its budget.
std::string batching_text(const Job& job) {
  const config::DataConfig& data = job.loaded.config.data;
  std::string name(config::choice_name(data.batching_strategy));
  if (!config::is_dynamic(data.batching_strategy)) return name;
  return fmt::format("{}, up to {} {} tokens a micro-batch (cutoff_len {} x micro_batch_size {})", name,
                     data.cutoff_len * data.micro_batch_size,
                     config::is_packed(data.batching_strategy) ? "packed" : "padded", data.cutoff_len,
                     data.micro_batch_size);
}

std::string steps_text(const Job& job, int64_t total_steps) {
  const config::DataConfig& data = job.loaded.config.data;
  if (config::is_dynamic(data.batching_strategy)) {
    return fmt::format("{} ({} micro-batches a rank)", total_steps, job.sizes.num_micro_batch);
  }
  return fmt::format("{}, {} samples each ({} micro-batches of {} a rank)", total_steps, job.sizes.global_batch_size,
                     job.sizes.num_micro_batch, data.micro_batch_size);
}

// The balance loss, and what it costs beside a sum over ranks.
std::string balance_text(const Job& job) {
  const int64_t again = job.sizes.num_micro_batch - 1;
  const BalanceOptions balance = balance_options(job.loaded.config.model);
  return fmt::format("{} times it, {} over all tokens of a step{}", balance.coefficient,
                     balance.is_by_layer ? "each layer by itself" : "all layers together",
                     again > 0 ? fmt::format("; {} of {} micro-batches are routed by a forward of their own", again,
                                             job.sizes.num_micro_batch)
                               : "");
}

TableSection compute_section(const Job& job, ShardedModel& model) {
  const config::Config& config = job.loaded.config;
  TableSection section{"compute", {}};
  section.rows.emplace_back("precision", config.train.bf16 ? "bf16 weights and compute, fp32 gradients" : "fp32");
  section.rows.emplace_back("dispatcher", std::string(model.runtime().dispatcher->name()));
  section.rows.emplace_back("kernels", kernels_text(config.kernel, model.model().sizes().linear_attention_layers > 0));
  section.rows.emplace_back("attention", attention_text(config));
  section.rows.emplace_back("recompute", config.train.enable_activation_checkpointing ? "decoder layers" : "off");
  if (config.model.debug_router.is_on()) {
    section.rows.emplace_back("debug_router", *config::try_value(config, "debug_router")->try_string());
  }
  if (config.model.router_aux_loss_coef > 0) {
    section.rows.emplace_back("balance loss", balance_text(job));
  }
  return section;
}

TableSection data_section(const Job& job, int64_t total_steps, const std::string& output_dir) {
  const data::DataSummary& data = job.dataset->summary();
  const config::Config& config = job.loaded.config;
  TableSection section{"data", {}};
  section.rows.emplace_back("rows", fmt::format("{}, {} samples{}", data.rows, data.samples,
                                                data.from_cache ? " (tokens from the cache)" : ""));
  section.rows.emplace_back("tokens", fmt::format("{}, {} supervised", human_count(static_cast<double>(data.tokens)),
                                                  human_count(static_cast<double>(data.supervised_tokens))));
  if (data.cut > 0)
    section.rows.emplace_back("cut", fmt::format("{} at cutoff_len {}", data.cut, config.data.cutoff_len));
  if (data.dropped > 0) section.rows.emplace_back("dropped", fmt::format("{} without a target left", data.dropped));
  if (data.skipped_bad_rows > 0)
    section.rows.emplace_back("bad rows", fmt::format("{} skipped", data.skipped_bad_rows));
  if (!data.markup.empty()) section.rows.emplace_back("markup", data.markup);
  section.rows.emplace_back("batching", batching_text(job));
  section.rows.emplace_back("steps", steps_text(job, total_steps));
  section.rows.emplace_back("output", output_dir);
  return section;
}

}  // namespace

std::string human_count(double count) { return scaled(count, std::array<const char*, 4>{"", "K", "M", "B"}, 1000.0); }

std::string human_bytes(double bytes) {
  return scaled(bytes, std::array<const char*, 5>{"B", "KiB", "MiB", "GiB", "TiB"}, 1024.0);
}

std::vector<TableSection> start_table(const Job& job, ShardedModel& model, const Optimizer& optimizer,
                                      const comm::World& world, int64_t total_steps, const std::string& output_dir) {
  return {model_section(job, model), mesh_section(world, model), memory_section(model, optimizer),
          compute_section(job, model), data_section(job, total_steps, output_dir)};
}

}  // namespace expertmesh::train
