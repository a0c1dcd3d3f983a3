// SPDX-License-Identifier: Apache-2.0
// The sections of the file: dist_config and its siblings, each with a `name` and the keys that exist for that name.
#include "config/fields.h"

namespace expertmesh::config {
namespace {

constexpr IntegerRange kAtLeast1{1, INT64_MAX};
constexpr NumberRange kNotNegative{0.0, 1e300, false, false};

constexpr std::string_view kExpertModules =
    "Which modules are experts is part of the model and cannot be configured; hook_modules and fsdp_ignored_modules "
    "take patterns.";

Section make_section(std::string key, std::string doc) {
  Section section;
  section.key = key;
  section.title = std::move(key);
  section.doc = std::move(doc);
  section.refused = {{"ep_modules", kExpertModules}, {"ep_fsdp_modules", kExpertModules}};
  return section;
}

Section dist_section() {
  Section section = make_section(
      "dist_config",
      "How parameters are spread over the ranks. null: every rank holds all of them, and gradients are summed.");
  section.is_null = [](const Config& config) { return config.dist.backend == DistBackend::kReplicated; };
  section.set_null = [](Config& config) { config.dist = {}; };
  section.start = section.set_null;
  section.refused.push_back({"config_file", "It belongs to deepspeed, which is not supported."});
  Rows<DistConfig> rows(section.fields, &Config::dist);
  rows.choice("name", &DistConfig::backend,
              "`fsdp2` shards all parameters alike; `fsdpturbo` gives the experts their own mesh.");
  rows.flag("reshard_after_forward", &DistConfig::reshard_after_forward,
            "Free gathered parameters after forward and gather them again for backward.");
  rows.flag("offload_params", &DistConfig::offload_params, "Keep shards in host memory.");
  rows.flag("pin_memory", &DistConfig::pin_memory, "Pin that memory; only with offload_params.");
  rows.special(
      "dcp_path", "null", "", "Upstream's pickled checkpoints are never read: use a Hugging Face directory.", true,
      [](const Node& node, const ReadContext&, DistConfig&) {
        if (node.is_null()) return;
        throw ValueError{fmt::format("is {}, expected null", describe(node)),
                         "Such checkpoints are pickles, which can run code: give a safetensors directory as model."};
      },
      [](const DistConfig&) { return base::Json(); });

  rows.only_for("fsdpturbo", [](const Config& config) { return config.dist.backend == DistBackend::kFsdpTurbo; });
  rows.integer("ep_size", &DistConfig::ep_size, {1, 1 << 20}, "ranks",
               "Ranks that share the experts; divides dp_size and the number of experts.");
  rows.integer("efsdp_size", &DistConfig::efsdp_size, {1, 1 << 20}, "ranks",
               "Ranks that share the weights of one expert; divides dp_size / ep_size; null: just that. What is left "
               "are copies.");
  rows.choice("ep_dispatcher", &DistConfig::ep_dispatcher,
              "How tokens reach their experts; `auto` measures the others at start.");
  rows.choice(
      "ep_dedup", &DistConfig::ep_dedup,
      "Whether a token travels once to a rank that has several of its experts, and their sum back; `auto`: yes, "
      "or as measured with ep_dispatcher `auto`.");
  rows.text_list("fsdp_ignored_modules", &DistConfig::fsdp_ignored_modules, false,
                 "Patterns of module names that stay replicated; their gradients are still summed.");
  rows.text_list("hook_modules", &DistConfig::hook_modules, false,
                 "Patterns of module names whose entry gathers the experts; empty: each experts module.");
  rows.choice("fsdp_implementation", &DistConfig::fsdp_implementation,
              "`native` gathers each parameter, `custom` one flat buffer a unit. Equal in result.");
  return section;
}

Section init_section() {
  Section section = make_section("init_config", "How the model is built before its weights are loaded.");
  section.set_null = [](Config& config) { config.init = {}; };
  Rows<InitConfig> rows(section.fields, &Config::init);
  rows.choice("name", &InitConfig::mode, "All give the same model bit for bit, and each rank reads only its slices.");
  return section;
}

std::vector<Kernel> read_kernels(const Node& node) {
  const std::string expected = "a comma-separated list of " + join_names(choice_names<Kernel>());
  if (!node.is_scalar()) throw ValueError{fmt::format("is {}, expected {}", describe(node), expected), ""};
  std::vector<Kernel> kernels;
  for (const std::string& name : split_commas(node.text)) {
    const auto kernel = read_choice_text<Kernel>(name, shorten(name));
    if (std::find(kernels.begin(), kernels.end(), kernel) == kernels.end()) kernels.push_back(kernel);
  }
  if (kernels.empty()) throw ValueError{fmt::format("is {}, expected {}", describe(node), expected), ""};
  return kernels;
}

std::vector<LinearAttentionOp> all_ops() { return KernelConfig().include_kernels; }

std::vector<LinearAttentionOp> read_ops(const Node& node) {
  const std::string expected =
      "auto, true or a comma-separated list of " + join_names(choice_names<LinearAttentionOp>());
  if (!node.is_scalar()) throw ValueError{fmt::format("is {}, expected {}", describe(node), expected), ""};
  if (node.text == "auto" || node.text == "true" || node.text == "True") return all_ops();
  std::vector<LinearAttentionOp> ops;
  for (const std::string& name : split_commas(node.text)) {
    const auto op = read_choice_text<LinearAttentionOp>(name, shorten(name));
    if (std::find(ops.begin(), ops.end(), op) == ops.end()) ops.push_back(op);
  }
  if (ops.empty()) throw ValueError{fmt::format("is {}, expected {}", describe(node), expected), ""};
  return ops;
}

template <typename E>
base::Json join_choices(const std::vector<E>& values) {
  std::vector<std::string_view> names;
  names.reserve(values.size());
  for (const E value : values) names.push_back(choice_name(value));
  return join_names(names);
}

Section kernel_section() {
  Section section = make_section(
      "kernel_config",
      "Which operators are used. null: `auto, flash-linear-attention`, as far as they fit the model. An operator that "
      "is named and fits no layer is an error.");
  section.is_null = [](const Config& config) { return !config.kernel.is_explicit; };
  section.set_null = [](Config& config) { config.kernel = {}; };
  section.start = [](Config& config) {
    config.kernel = {};
    config.kernel.is_explicit = true;
  };
  section.refused.push_back({"require_logits", "It belongs to liger_kernel, which is not supported."});
  Rows<KernelConfig> rows(section.fields, &Config::kernel);
  rows.special(
      "name", "comma-separated list of " + join_names(choice_names<Kernel>()), "",
      "Applied from left to right. `auto`: the fused norms, rotary embedding, SwiGLU and loss; `reference`: plain "
      "ATen.",
      false, [](const Node& node, const ReadContext&, KernelConfig& kernel) { kernel.names = read_kernels(node); },
      [](const KernelConfig& kernel) { return join_choices(kernel.names); });
  rows.only_for("flash-linear-attention",
                [](const Config& config) { return config.kernel.has(Kernel::kFlashLinearAttention); });
  rows.special(
      "include_kernels", "auto, true or a comma-separated list of " + join_names(choice_names<LinearAttentionOp>()), "",
      "The operators that are replaced.", false,
      [](const Node& node, const ReadContext&, KernelConfig& kernel) { kernel.include_kernels = read_ops(node); },
      [](const KernelConfig& kernel) {
        return kernel.include_kernels == all_ops() ? base::Json("auto") : join_choices(kernel.include_kernels);
      });
  rows.special(
      "chunk_size", "one of 16, 32, 64", "tokens", "Chunk of the gated delta rule.", false,
      [](const Node& node, const ReadContext& context, KernelConfig& kernel) {
        const ValueError wrong{fmt::format("is {}, expected one of 16, 32, 64", describe(node)), ""};
        int64_t size = 0;
        try {
          size = read_integer(node, {}, context.quotes);
        } catch (const ValueError&) {
          throw wrong;
        }
        if (size != 16 && size != 32 && size != 64) throw wrong;
        kernel.chunk_size = size;
      },
      [](const KernelConfig& kernel) { return base::Json(kernel.chunk_size); });
  return section;
}

// Defaults that differ by optimizer; keys that one does not have keep a fixed value, so that equal files compare equal.
OptimConfig optimizer_defaults(Optimizer optimizer) {
  OptimConfig optim;
  optim.optimizer = optimizer;
  if (optimizer != Optimizer::kAdamW) optim.weight_decay = 0.0;
  if (optimizer == Optimizer::kMuon) optim.momentum = 0.95;
  return optim;
}

Section optim_section() {
  Section section = make_section("optim_config", "The optimizer. null: adamw with its defaults.");
  section.set_null = [](Config& config) { config.optim = {}; };
  section.start = section.set_null;
  const auto uses = [](Optimizer a, Optimizer b) {
    return [a, b](const Config& config) { return config.optim.optimizer == a || config.optim.optimizer == b; };
  };
  Rows<OptimConfig> rows(section.fields, &Config::optim);
  rows.special(
      "name", "one of " + join_names(choice_names<Optimizer>()), "", "The optimizer.", false,
      [](const Node& node, const ReadContext&, OptimConfig& optim) {
        optim = optimizer_defaults(read_choice<Optimizer>(node));
      },
      [](const OptimConfig& optim) { return base::Json(choice_name(optim.optimizer)); });
  rows.choice("master_weights", &OptimConfig::master_weights,
              "With bf16: `fp32` copies that small updates are summed in, or `none` (upstream's plain bf16).");
  rows.special(
      "lr", "number of at least 0", "", "Has no effect, with a warning: learning_rate is the only source of the rate.",
      true,
      [](const Node& node, const ReadContext& context, OptimConfig&) {
        if (!node.is_null()) read_number(node, kNotNegative, context.quotes);
      },
      [](const OptimConfig&) { return base::Json(); });
  section.fields.back().is_ignored = true;

  rows.only_for("adamw", uses(Optimizer::kAdamW, Optimizer::kAdamW));
  rows.pair("betas", &OptimConfig::beta1, &OptimConfig::beta2, "Decay of the two moments.");
  rows.number("eps", &OptimConfig::eps, {0.0, 1e300, true, false}, "", "Added to the root of the second moment.");
  rows.only_for("adamw, sgd", uses(Optimizer::kAdamW, Optimizer::kSgd));
  rows.number("weight_decay", &OptimConfig::weight_decay, kNotNegative, "",
              "Decay of every trained tensor, norms and biases too. With sgd 0 by default.");
  rows.only_for("sgd, muon", uses(Optimizer::kSgd, Optimizer::kMuon));
  rows.number("momentum", &OptimConfig::momentum, {0.0, 1.0, false, false}, "", "With muon 0.95 by default.");
  rows.only_for("muon", uses(Optimizer::kMuon, Optimizer::kMuon));
  rows.number("wd", &OptimConfig::muon_wd, kNotNegative, "", "Weight decay of muon.");
  rows.flag("nesterov", &OptimConfig::nesterov, "Nesterov's form of the momentum.");
  rows.integer("ns_steps", &OptimConfig::ns_steps, {1, 100}, "iterations", "Newton-Schulz iterations.");
  rows.pair("adamw_betas", &OptimConfig::adamw_beta1, &OptimConfig::adamw_beta2,
            "Betas for what muon leaves to AdamW (embeddings, head, vectors).");
  rows.number("adamw_eps", &OptimConfig::adamw_eps, {0.0, 1e300, true, false}, "", "Its eps.");
  return section;
}

Section schedule_section() {
  Section section = make_section("lr_scheduler_config", "The course of the learning rate. null: constant.");
  section.set_null = [](Config& config) { config.schedule = {}; };
  section.start = section.set_null;
  Rows<ScheduleConfig> rows(section.fields, &Config::schedule);
  rows.choice("name", &ScheduleConfig::schedule, "What follows the warm-up.");
  rows.integer("warmup_steps", &ScheduleConfig::warmup_steps, {0, int64_t{1} << 40}, "steps",
               "Steps in which the rate rises from 0.");
  rows.number("warmup_ratio", &ScheduleConfig::warmup_ratio, {0.0, 1.0, false, false}, "",
              "The same as a part of all steps, in place of warmup_steps.");
  rows.number("min_lr_ratio", &ScheduleConfig::min_lr_ratio, {0.0, 1.0, false, false}, "",
              "Where linear and cosine end, as a part of learning_rate.");
  return section;
}

Section peft_section() {
  Section section = make_section("peft_config", "Training of a part of the weights. null: all of them.");
  section.is_null = [](const Config& config) { return config.peft.kind == PeftKind::kNone; };
  section.set_null = [](Config& config) { config.peft = {}; };
  section.start = section.set_null;
  Rows<PeftConfig> rows(section.fields, &Config::peft);
  rows.choice("name", &PeftConfig::kind, "The method.");
  rows.only_for("lora", [](const Config& config) { return config.peft.kind == PeftKind::kLora; });
  rows.integer("r", &PeftConfig::r, kAtLeast1, "", "Rank of the adapters.");
  rows.integer("lora_alpha", &PeftConfig::lora_alpha, kAtLeast1, "", "Scale of the adapters.");
  rows.number("lora_dropout", &PeftConfig::lora_dropout, {0.0, 1.0, false, false}, "", "Dropout before the adapters.");
  rows.text_list("target_modules", &PeftConfig::target_modules, true, "Names of adapted modules, or all.");
  rows.flag("use_rslora", &PeftConfig::use_rslora, "Rank-stabilised scale.");
  rows.flag("use_dora", &PeftConfig::use_dora, "Weight-decomposed adapters.");
  rows.text_list("modules_to_save", &PeftConfig::modules_to_save, true, "Modules trained in full beside the adapters.");
  rows.text_list("adapter_name_or_path", &PeftConfig::adapter_name_or_path, true, "Adapters to start from.");
  rows.text("export_dir", &PeftConfig::export_dir, "Where a merged model is written.");
  rows.integer("export_size", &PeftConfig::export_size, {1, 1 << 20}, "GB", "Size of its shards.");
  rows.text("export_hub_model_id", &PeftConfig::export_hub_model_id, "Upstream's upload target.");
  rows.choice("infer_dtype", &PeftConfig::infer_dtype, "Type of a merged model.");
  rows.flag("export_legacy_format", &PeftConfig::export_legacy_format, "Upstream's pickled format.");
  rows.only_for("freeze", [](const Config& config) { return config.peft.kind == PeftKind::kFreeze; });
  rows.integer("freeze_trainable_layers", &PeftConfig::freeze_trainable_layers, {-(1 << 20), 1 << 20}, "layers",
               "Trained layers: the last n, or with a negative number the first.");
  rows.text_list("freeze_trainable_modules", &PeftConfig::freeze_trainable_modules, true,
                 "Names of modules trained in those layers, or all.");
  rows.text_list("freeze_extra_modules", &PeftConfig::freeze_extra_modules, true, "Names trained outside the layers.");
  rows.flag("cast_trainable_params_to_fp32", &PeftConfig::cast_trainable_params_to_fp32,
            "Trained parameters are fp32.");
  return section;
}

Section quant_section() {
  Section section = make_section("quant_config", "Not supported: null is the only value.");
  section.is_null = [](const Config&) { return true; };
  section.set_null = [](Config&) {};
  section.never = "Quantization is not supported: leave it out.";
  return section;
}

}  // namespace

std::vector<Section> file_sections() {
  return {dist_section(),     init_section(), kernel_section(), optim_section(),
          schedule_section(), peft_section(), quant_section()};
}

}  // namespace expertmesh::config
