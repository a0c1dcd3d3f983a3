// SPDX-License-Identifier: Apache-2.0
#include "train/trainer.h"

#include <sys/resource.h>

#include <chrono>
#include <cmath>
#include <limits>
#include <span>

#include "base/error.h"
#include "base/log.h"
#include "base/trace.h"
#include "config/print.h"
#include "shard/gradient_norm.h"
#include "train/agreement.h"
#include "train/build.h"
#include "train/profile.h"
#include "train/profile_report.h"
#include "train/schedule.h"
#include "train/start_table.h"
#include "train/step.h"
#include "train/weights.h"

namespace expertmesh::train {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kMaxSkipsInARow = 3;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

int64_t peak_rss_mib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss / 1024;
}

// The loop of one run: what it counts between log records, and when it has to end.
class Trainer {
 public:
  Trainer(comm::World& world, const Job& job, Observer& observer, std::string output_dir)
      : world_(world),
        job_(job),
        config_(job.loaded.config),
        observer_(observer),
        output_dir_(std::move(output_dir)),
        meshes_(build_meshes(world, job)),
        model_owner_(build_sharded_model(job, meshes_)),
        model_(*model_owner_),
        walk_(model_, config_.train.enable_activation_checkpointing),
        loss_(make_loss(job.stage)),
        loader_(job.dataset, loader_options()),
        total_steps_(config_.train.max_steps.value_or(config_.train.num_train_epochs * loader_.steps_per_epoch())),
        rate_(config_.schedule, config_.train.learning_rate, total_steps_) {}

  // The one in use, also where the configuration leaves the choice.
  void name_dispatcher(config::DistConfig& dist) const {
    const moe::Dispatcher& dispatcher = *model_.runtime().dispatcher;
    dist.ep_dispatcher = config::try_choice<config::Dispatcher>(dispatcher.name()).value();
    if (!moe::has_dedup(dispatcher.name(), model_.runtime().ep->shares_memory())) {
      dist.ep_dedup = config::Dedup::kAuto;
    } else if (!dispatcher.options().dedup) {
      dist.ep_dedup = config::Dedup::kFalse;
    }
  }

  Stop run() {
    load_weights(*job_.weights, model_);
    optimizer_ = make_optimizer(config_.optim, model_.parameters());
    warm_up();
    start_profile();
    if (is_main())
      observer_.on_start(start_table(job_, model_, *optimizer_, world_, total_steps_, output_dir_), output_dir_);
    const auto start = Clock::now();
    while (step_ < total_steps_ && summary_.stop == Stop::kNone) {
      ++step_;
      try {
        one_step();
      } catch (base::Error& error) {
        if (!error.rank()) error.on_rank(world_.rank(), meshes_->place(), static_cast<long>(step_));
        throw;
      }
    }
    summary_.seconds = seconds_since(start);
    if (profile_) profile_->stop();
    summary_.tokens_per_s = static_cast<double>(tokens_seen_) / std::max(summary_.seconds, 1e-9);
    report_traffic();
    save();
    return summary_.stop;
  }

 private:
  bool is_main() const { return world_.rank() == 0; }

  // What travelling once to a rank saves: tokens, results and their gradients, of all ranks.
  void report_traffic() {
    const moe::TokenTraffic own = model_.runtime().dispatcher->traffic();
    const auto sum = [&](int64_t bytes) {
      return static_cast<double>(world_.all().all_reduce_int(bytes, comm::ReduceOp::kSum, "exchanged bytes"));
    };
    const double bytes = sum(own.bytes), by_choice = sum(own.bytes_by_choice);
    if (!is_main() || by_choice == 0) return;
    base::log_info("tokens and results exchanged between ranks: {}, of {} with a row for each choice",
                   human_bytes(bytes), human_bytes(by_choice));
  }

  data::LoaderOptions loader_options() const {
    return {.dp_rank = meshes_->coordinates().dp,
            .dp_size = meshes_->topology().dp,
            .micro_batch_size = static_cast<int>(config_.data.micro_batch_size),
            .num_micro_batch = static_cast<int>(job_.sizes.num_micro_batch),
            .seed = static_cast<uint64_t>(config_.train.seed),
            .shuffle = config_.data.shuffle,
            .strategy = config_.data.batching_strategy,
            .cutoff_len = static_cast<int>(config_.data.cutoff_len)};
  }

  // The reductions of a step once, with zero gradients: connections are made before the clock starts, and a mesh that
  // cannot work fails here.
  void warm_up() {
    model_.finish_gradients();
    shard::global_gradient_norm(model_.parameters(), meshes_->world());
    for (shard::Parameter* parameter : model_.parameters()) parameter->clear_grad();
  }

  void start_profile() {
    if (!config_.train.profile) return;
    const std::string directory = job_.profile_dir.empty() ? base::join_path(output_dir_, "profile") : job_.profile_dir;
    profile_ = std::make_unique<Profile>(world_, config_.train.bf16, directory);
    profile_->start();
  }

  std::vector<data::MicroBatch> next_micro_batches() {
    const base::Span span("data");
    return loader_.next_step();
  }

  void one_step() {
    const base::Span span(kStepSpan, base::SpanKind::kScope, step_);
    const auto begin = Clock::now();
    const std::vector<data::MicroBatch> micro_batches = next_micro_batches();
    load_wait_s_ += seconds_since(begin);
    const StepResult result = train_step(model_, walk_, *loss_, *optimizer_, micro_batches,
                                         {.max_grad_norm = config_.train.max_grad_norm,
                                          .learning_rate = rate_.current(),
                                          .step = step_,
                                          .ledger = &world_.ledger(),
                                          .balance = balance_options(config_.model)});
    ++steps_since_log_;
    tokens_seen_ += result.tokens;
    tokens_since_log_ += result.tokens;
    step_s_ += seconds_since(begin);
    account(result);
    record(result);
    stop_where_not_finite(result);
    agree_on_stop();
  }

  // One rank's wish is enough; after the last step there is nothing to stop.
  void agree_on_stop() {
    const auto wish = static_cast<int64_t>(observer_.wants_stop());
    const int64_t agreed = world_.all().all_reduce_int(wish, comm::ReduceOp::kMax, "stop");
    if (step_ < total_steps_) summary_.stop = static_cast<Stop>(agreed);
  }

  void account(const StepResult& result) {
    if (result.is_applied) {
      rate_.advance();
      skips_in_a_row_ = 0;
      summary_.last_loss = result.loss;
      if (summary_.first_loss == 0) summary_.first_loss = result.loss;
      return;
    }
    ++summary_.skipped_steps;
    if (is_main()) base::log_warn("step {} is skipped: {}", step_, result.skip_reason);
    if (result.is_nonfinite) ++skips_in_a_row_;
  }

  void stop_where_not_finite(const StepResult& result) const {
    if (!result.is_nonfinite) return;
    const bool stops = config_.train.on_nonfinite == config::OnNonfinite::kStop;
    if (!stops && skips_in_a_row_ < kMaxSkipsInARow) return;
    throw base::make_error(
        base::Code::kNumerics, "train/nonfinite", "step {}: {}; {}", step_, result.skip_reason,
        stops ? "on_nonfinite is stop" : fmt::format("{} steps in a row were skipped", skips_in_a_row_))
        .hint("No weight was changed by it. Lower learning_rate or max_grad_norm, or look at the rows of this step.")
        .on_rank(result.nonfinite_rank, {}, static_cast<long>(step_));
  }

  void record(const StepResult& result) {
    const bool is_logged = step_ % config_.train.logging_steps == 0;
    StepRecord record;
    if (is_logged) record.expert_load = take_expert_load();
    if (config_.model.router_aux_loss_coef > 0) record.aux_loss = result.balance_loss;
    record.epoch = loader_.epoch();
    record.step = step_;
    record.total_steps = total_steps_;
    record.loss = result.loss;
    record.grad_norm = result.grad_norm;
    record.learning_rate = rate_.current();
    record.tokens_seen = tokens_seen_;
    record.tokens_per_s = static_cast<double>(tokens_since_log_) / std::max(step_s_, 1e-9);
    record.step_s = step_s_ / static_cast<double>(steps_since_log_);
    record.load_wait_s = load_wait_s_;
    record.skipped_steps = summary_.skipped_steps;
    record.rss_mib = peak_rss_mib();
    record.is_logged = is_logged;
    if (is_main()) observer_.on_step(record);
    if (!is_logged) return;
    steps_since_log_ = tokens_since_log_ = 0;
    step_s_ = load_wait_s_ = 0;
  }

  // Of the steps since the last record. Collective over the world.
  std::vector<LayerLoad> take_expert_load() {
    std::vector<LayerLoad> loads;
    std::vector<int64_t> counts;  // of all layers one after the other
    for (size_t i = 0; i < model_.layers().size(); ++i) {
      const moe::Router* router = model_.layers()[i].module->router();
      if (router == nullptr) continue;
      loads.push_back({static_cast<int64_t>(i)});
      counts.insert(counts.end(), router->load().counts().begin(), router->load().counts().end());
      router->load().reset();
    }
    meshes_->world().all_reduce({{counts.data(), static_cast<int64_t>(counts.size()), comm::DType::kI64}},
                                comm::ReduceOp::kSum, "expert load");
    std::span<const int64_t> rest(counts);
    for (LayerLoad& load : loads) {
      const size_t experts = counts.size() / loads.size();
      const moe::LoadSummary summary = moe::summarise_load(rest.first(experts));
      rest = rest.subspan(experts);
      load = {load.layer, summary.max_over_mean, summary.dead, summary.entropy};
    }
    return loads;
  }

  void save() {
    save_weights(*job_.weights, model_, output_dir_, config_.train.bf16, is_main() ? &observer_ : nullptr);
    summary_.steps = step_;
    summary_.output_dir = output_dir_;
    if (profile_) summary_.profile = profile_->write(meshes_->place());
    if (is_main()) observer_.on_end(summary_);
  }

  comm::World& world_;
  const Job& job_;
  const config::Config& config_;
  Observer& observer_;
  std::string output_dir_;
  std::unique_ptr<Profile> profile_;  // before what posts collectives: it outlives them
  std::shared_ptr<const comm::Meshes> meshes_;
  std::unique_ptr<ShardedModel> model_owner_;
  ShardedModel& model_;
  LayerWalk walk_;
  std::unique_ptr<Loss> loss_;
  data::BatchLoader loader_;
  int64_t total_steps_;
  LearningRate rate_;
  std::unique_ptr<Optimizer> optimizer_;

  int64_t step_ = 0, steps_since_log_ = 0;
  int64_t tokens_seen_ = 0, tokens_since_log_ = 0;
  double step_s_ = 0, load_wait_s_ = 0;
  int skips_in_a_row_ = 0;
  RunSummary summary_;
};

void write_resolved_config(const config::Config& config, const std::string& output_dir) {
  const auto fs = base::make_posix_file_system(base::Code::kCheckpoint);
  fs->make_directories(output_dir);
  base::remove_unfinished_writes(*fs, output_dir);
  config::Config resolved = config;
  resolved.train.output_dir = output_dir;
  base::write_file_atomic(*fs, base::join_path(output_dir, "config.resolved.yaml"), config::print_yaml(resolved));
}

}  // namespace

Stop run_training(comm::World& world, const Job& job, Observer& observer) {
  agree_on_job(job, world.all());
  const std::string output_dir = agree_on_output_dir(job.loaded.config.train.output_dir, world.all());
  config::Config resolved = job.loaded.config;
  if (world.rank() == 0) write_resolved_config(resolved, output_dir);
  Trainer trainer(world, job, observer, output_dir);
  if (world.rank() == 0 && resolved.dist.ep_dispatcher == config::Dispatcher::kAuto) {
    trainer.name_dispatcher(resolved.dist);
    write_resolved_config(resolved, output_dir);
  }
  return trainer.run();
}

}  // namespace expertmesh::train
