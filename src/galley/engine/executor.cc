// SPDX-License-Identifier: Apache-2.0
#include "galley/engine/executor.h"

#include <algorithm>
#include <chrono>

#include "galley/base/check.h"

namespace galley::engine {
Executor::Executor(LoadedModel& loaded, const ExecutorOptions& options, std::function<void()> on_done)
    : loaded_(loaded),
      tables_(static_cast<std::size_t>(options.slots)),
      options_(options),
      drafter_(MakeDrafter(options.speculation.mode, loaded)),
      on_done_(std::move(on_done)) {}

Status Executor::Prepare() {
  if (options_.snapshots > 0) {
    ASSIGN_OR_RETURN(model::StateStorage places,
                     model::StateStorage::Create(loaded_.backend(), loaded_.config(), options_.snapshots,
                                                 options_.snapshots, loaded_.state().layout().rewind));
    snapshots_ = std::make_unique<model::StateStorage>(std::move(places));
  }
  const SpeculationOptions& speculation = options_.speculation;
  // Whoever fixes or watches acceptance wants every draft verified, and needs no calibration: `galley calibrate` does,
  // to write it, so that a file that cannot be read can be made again.
  if (drafter_ != nullptr && speculation.fixed_accepted < 0 && !speculation.on_round) {
    ASSIGN_OR_RETURN(calibration_, LoadCalibration(options_.model_dir));
    planner_.emplace(sched::VerifyOptions{.drafts = speculation.draft_tokens}, decode_cost_);
  }
  thread_ = std::thread([this] { Loop(); });
  return {};
}

Executor::~Executor() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Executor::Enqueue(StepJob job) {
  {
    std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
  }
  wake_.notify_all();
}

std::optional<StepOutcome> Executor::Take() {
  std::lock_guard lock(mutex_);
  if (outcomes_.empty()) return std::nullopt;
  StepOutcome outcome = std::move(outcomes_.front());
  outcomes_.pop_front();
  return outcome;
}

void Executor::Loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
    if (stopping_) return;
    const StepJob job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    StepOutcome outcome = Run(job);
    lock.lock();
    outcomes_.push_back(std::move(outcome));
    lock.unlock();
    on_done_();
    lock.lock();
  }
}

void Executor::RunOps(const sched::StepPlan& plan) {
  model::StateStorage& state = loaded_.state();
  for (const sched::StateOp& op : plan.ops) {
    const SlotId place(op.snapshot.value);
    const BlockId place_block(op.snapshot.value);
    switch (op.kind) {
      case sched::StateOp::Kind::kFork:
        state.CopySlot(loaded_.backend(), op.from, state, op.to);
        if (op.from_block.valid()) state.CopyBlock(loaded_.backend(), op.from_block, state, op.to_block);
        break;
      case sched::StateOp::Kind::kSave:
        state.CopySlot(loaded_.backend(), op.from, *snapshots_, place);
        if (op.from_block.valid()) state.CopyBlock(loaded_.backend(), op.from_block, *snapshots_, place_block);
        break;
      case sched::StateOp::Kind::kRestore:
        snapshots_->CopySlot(loaded_.backend(), place, state, op.to);
        if (op.to_block.valid()) {
          snapshots_->CopyBlock(loaded_.backend(), place_block, state, op.to_block);
        }
        break;
    }
  }
}

void Executor::UpdateTables(const sched::StepPlan& plan) {
  for (const sched::TableUpdate& update : plan.tables) {
    std::vector<std::int32_t>& table = tables_[static_cast<std::size_t>(update.slot.value)];
    table.resize(static_cast<std::size_t>(update.first + update.count));
    for (int i = 0; i < update.count; ++i) {
      table[static_cast<std::size_t>(update.first + i)] =
          plan.blocks[static_cast<std::size_t>(update.offset + i)].value;
    }
  }
}

Result<model::SequenceInput> Executor::PrefillInput(const StepJob& job, std::size_t index) {
  const sched::SequenceRows& rows = job.plan.prefill[index];
  const std::span<const TokenId> tokens = job.prefill_tokens[index];
  const auto earlier = static_cast<std::size_t>(job.prefill_earlier[index]);
  // The ids before the first row: there already when this chunk follows another, needed when it starts or restarts.
  RETURN_IF_ERROR(loaded_.model().ResetSlot(loaded_.state(), rows.slot, rows.begin, tokens.first(earlier)));
  return model::SequenceInput{.slot = rows.slot,
                              .start = rows.begin,
                              .tokens = tokens.subspan(earlier),
                              .blocks = tables_[static_cast<std::size_t>(rows.slot.value)],
                              .history_from = rows.write_from,
                              .encoder_floor = rows.encoder_floor,
                              .decoder_floor = rows.decoder_floor,
                              .decoder_from = rows.tail_from,
                              .logit_rows = rows.draws > 0 ? 1 : 0};
}

StepOutcome Executor::Run(const StepJob& job) {
  const auto begin = std::chrono::steady_clock::now();
  StepOutcome outcome;
  outcome.step = job.plan.id;
  outcome.done.step = job.plan.id;
  outcome.status = [&]() -> Status {
    RunOps(job.plan);
    UpdateTables(job.plan);
    StartHistories(job);
    RETURN_IF_ERROR(PlanVerify(job));
    std::vector<model::SequenceInput> inputs;
    for (std::size_t i = 0; i < job.plan.decode.size(); ++i) {
      if (!verifies_[i].tokens.empty()) inputs.push_back(DecodeInput(job.plan.decode[i], verifies_[i]));
    }
    for (std::size_t i = 0; i < job.plan.prefill.size(); ++i) {
      ASSIGN_OR_RETURN(model::SequenceInput input, PrefillInput(job, i));
      inputs.push_back(input);
    }
    if (inputs.empty()) return DrawAll(job, {}, outcome);
    StartMasks(job);
    const auto forward_begin = std::chrono::steady_clock::now();
    const Result<const float*> ran = loaded_.model().Forward(inputs, loaded_.state());
    const auto forward_end = std::chrono::steady_clock::now();
    mask_worker_.Wait();
    ASSIGN_OR_RETURN(const float* device, ran);
    std::size_t rows = 0;
    for (const model::SequenceInput& input : inputs) rows += static_cast<std::size_t>(input.logit_rows);
    std::vector<float> logits;
    drawn_.clear();
    const auto draw_begin = std::chrono::steady_clock::now();
    if (DrawsOnDevice(job)) {
      RETURN_IF_ERROR(DrawOnDevice(job, device));
    } else {
      logits.resize(rows * static_cast<std::size_t>(loaded_.config().vocab_size));
      RETURN_IF_ERROR(loaded_.backend().CopyToHost(logits.data(), device, logits.size() * sizeof(float)));
    }
    RETURN_IF_ERROR(DrawAll(job, logits, outcome));
    const auto microseconds = [](auto from, auto to) {
      return std::chrono::duration<double, std::micro>(to - from).count();
    };
    ReportStep(job, microseconds(forward_begin, forward_end),
               microseconds(draw_begin, std::chrono::steady_clock::now()));
    return ScorePrompts(job, inputs.size() - job.plan.prefill.size(), outcome);
  }();
  outcome.done.elapsed_us =
      std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - begin).count();
  return outcome;
}

Status Executor::ScorePrompts(const StepJob& job, std::size_t first_prompt, StepOutcome& outcome) {
  const auto vocab = static_cast<std::size_t>(loaded_.config().vocab_size);
  const int batch = loaded_.model().options().logit_rows_max;
  std::vector<float> logits;
  for (const StepJob::Scoring& scoring : job.scorings) {
    const sched::SequenceRows& rows = job.plan.prefill[scoring.prefill];
    const std::vector<TokenId>& prompt = scoring.context->prompt;
    StepOutcome::Scores scores{.prefill = scoring.prefill, .event = {.first = rows.begin + 1}};
    // The last row of a prompt has no token after it.
    const int count = std::min(rows.rows, static_cast<int>(prompt.size()) - 1 - static_cast<int>(rows.begin));
    const auto sequence = static_cast<int>(first_prompt + scoring.prefill);
    for (int first = 0; first < count; first += batch) {
      const int some = std::min(batch, count - first);
      ASSIGN_OR_RETURN(const float* device, loaded_.model().RowLogits(sequence, first, some, loaded_.state()));
      logits.resize(static_cast<std::size_t>(some) * vocab);
      RETURN_IF_ERROR(loaded_.backend().CopyToHost(logits.data(), device, logits.size() * sizeof(float)));
      for (int i = 0; i < some; ++i) {
        scores.event.tokens.push_back(Scored(std::span(logits).subspan(static_cast<std::size_t>(i) * vocab, vocab),
                                             prompt[static_cast<std::size_t>(rows.begin + first + i) + 1],
                                             scoring.context->prompt_logprobs));
      }
    }
    if (count > 0) outcome.scores.push_back(std::move(scores));
  }
  return {};
}

}  // namespace galley::engine
