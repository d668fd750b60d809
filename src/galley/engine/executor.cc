// SPDX-License-Identifier: Apache-2.0
#include "galley/engine/executor.h"

#include <algorithm>
#include <chrono>

#include "galley/base/check.h"

namespace galley::engine {
namespace {

constexpr std::size_t kTailBytes = 4096;  // room for the newest text that banned words are compared with

}  // namespace

Executor::Executor(LoadedModel& loaded, const ExecutorOptions& options, std::function<void()> on_done)
    : loaded_(loaded),
      tables_(static_cast<std::size_t>(options.slots)),
      options_(options),
      drafter_(MakeDrafter(options.speculation.mode, loaded, lookup_chances_)),
      draft_rings_(options.slots, options.snapshots),
      mask_worker_(std::clamp(UsableProcessors() / 4, 1, 4)),
      change_memory_(loaded.config().vocab_size),
      on_done_(std::move(on_done)),
      steps_(static_cast<std::size_t>(options.steps)) {
  // A table never grows beyond these, so no step has to find memory for it.
  const auto blocks_most = static_cast<std::size_t>(loaded.state().blocks());
  const auto longest = static_cast<std::size_t>(loaded.max_seq_len()) / backend::kBlockTokens + 2;
  for (auto& table : tables_) table.reserve(std::min(blocks_most, longest));
  ReserveSteps();
}

// All that a step writes beside its state has its memory before the first one, whichever sequences come together in it.
void Executor::ReserveSteps() {
  const int rows = loaded_.model().options().rows_max;
  const int looks_back = std::max(0, loaded_.config().engram.max_ngram_size - 1);
  const auto slots = static_cast<std::size_t>(options_.slots);
  const auto rows_each = static_cast<std::size_t>(1 + options_.speculation.draft_tokens);
  for (Step& step : steps_) {
    step.job.Reserve(options_.slots, rows, looks_back);
    step.outcome.Reserve(options_.slots, static_cast<int>(rows_each));
  }
  verifies_.resize(slots);
  for (Verify& verify : verifies_) {
    verify.tokens.reserve(rows_each);
    verify.confidences.reserve(rows_each);
  }
  asks_.reserve(slots);
  asking_.reserve(slots);
  found_.resize(options_.speculation.lookup ? slots : 0);
  for (Proposal& proposal : found_) {
    proposal.tokens.reserve(rows_each);
    proposal.confidences.reserve(rows_each);
  }
  finding_.reserve(slots);
  found_survivals_.reserve(slots * rows_each);
  lengths_.reserve(slots);
  survivals_.reserve(slots * rows_each);
  sorted_.reserve(slots * rows_each);
  inputs_.reserve(slots);
  tail_.reserve(kTailBytes);
  const auto logit_rows = static_cast<std::size_t>(loaded_.model().options().logit_rows_max);
  const auto vocab = static_cast<std::size_t>(loaded_.config().vocab_size);
  logits_.reserve(logit_rows * vocab);
  changed_.reserve(vocab);
  change_memory_.Reserve();
  if (options_.speculation.mode == SpeculationMode::kRejection) draft_logits_.reserve(rows_each * vocab);
  mask_jobs_.reserve(slots);
  mask_of_.reserve(slots);
  if (loaded_.backend().draws()) {
    drawn_.reserve(slots * rows_each);
    requests_.reserve(slots * rows_each);
  }
}

void StepJob::Reserve(int slots, int rows, int earlier) {
  plan.Reserve(slots, rows);
  const auto chunks = static_cast<std::size_t>(std::min(slots, rows));
  prefill.reserve(chunks);
  tokens.reserve(static_cast<std::size_t>(rows) + chunks * static_cast<std::size_t>(earlier));
  draws.reserve(static_cast<std::size_t>(slots));
}

void StepJob::Clear() {
  prefill.clear();
  tokens.clear();
  scorings.clear();
  draws.clear();
}

void StepOutcome::Reserve(int slots, int tokens_each) {
  const auto most = static_cast<std::size_t>(slots);
  const auto tokens_most = most * static_cast<std::size_t>(tokens_each);
  done.draws.reserve(most);
  done.token_ids.reserve(tokens_most);
  tokens.reserve(tokens_most);
  drafts.reserve(most);
}

void StepOutcome::Clear() {
  status = {};
  done.draws.clear();
  done.token_ids.clear();
  scores.clear();
  tokens.clear();
  drafts.clear();
  draft_budget = 0;
  saved_us = 0;
}

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
  if (drafter_ != nullptr && speculation.adaptive && speculation.fixed_accepted < 0 && !speculation.on_round) {
    if (speculation.mode != SpeculationMode::kNgram) {
      ASSIGN_OR_RETURN(calibration_, LoadCalibration(options_.model_dir));
    }
    sched::VerifyOptions options{.drafts = speculation.draft_tokens};
    // Prompt lookup costs the same at every depth.
    options.any_size = !loaded_.backend().repeats_steps();
    if (options.any_size) options = sched::AnySize(options);
    planner_.emplace(options, decode_cost_);
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

StepJob& Executor::NextJob() {
  CHECK(steps_on_their_way() < options_.steps) << "more steps than may are on their way";
  Step& step = steps_[static_cast<std::size_t>(enqueued_) % steps_.size()];
  step.job.Clear();
  step.outcome.Clear();
  return step.job;
}

void Executor::Enqueue() {
  {
    std::lock_guard lock(mutex_);
    ++enqueued_;
  }
  wake_.notify_all();
}

Step* Executor::Take() {
  std::lock_guard lock(mutex_);
  if (taken_ == finished_) return nullptr;
  return &steps_[static_cast<std::size_t>(taken_++) % steps_.size()];
}

void Executor::Loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stopping_ || finished_ < enqueued_; });
    if (stopping_) return;
    Step& step = steps_[static_cast<std::size_t>(finished_) % steps_.size()];
    lock.unlock();
    Run(step.job, step.outcome);
    lock.lock();
    ++finished_;
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
        draft_rings_.Fork(op.from, op.to);
        if (op.from_block.valid()) state.CopyBlock(loaded_.backend(), op.from_block, state, op.to_block);
        break;
      case sched::StateOp::Kind::kSave:
        state.CopySlot(loaded_.backend(), op.from, *snapshots_, place);
        draft_rings_.Save(op.from, op.snapshot);
        if (op.from_block.valid()) state.CopyBlock(loaded_.backend(), op.from_block, *snapshots_, place_block);
        break;
      case sched::StateOp::Kind::kRestore:
        snapshots_->CopySlot(loaded_.backend(), place, state, op.to);
        draft_rings_.Restore(op.snapshot, op.to);
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
  const StepJob::Prefill& own = job.prefill[index];
  const auto tokens = std::span(job.tokens).subspan(own.first, static_cast<std::size_t>(own.count));
  const auto earlier = static_cast<std::size_t>(own.earlier);
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

void Executor::Run(const StepJob& job, StepOutcome& outcome) {
  const auto begin = std::chrono::steady_clock::now();
  outcome.done.step = job.plan.id;
  outcome.status = RunStep(job, outcome);
  outcome.done.elapsed_us =
      std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - begin).count();
}

Status Executor::RunStep(const StepJob& job, StepOutcome& outcome) {
  RunOps(job.plan);
  UpdateTables(job.plan);
  StartHistories(job);
  RETURN_IF_ERROR(PlanVerify(job));
  inputs_.clear();
  for (std::size_t i = 0; i < job.plan.decode.size(); ++i) {
    if (!verifies_[i].tokens.empty()) inputs_.push_back(DecodeInput(job.plan.decode[i], verifies_[i]));
  }
  for (std::size_t i = 0; i < job.plan.prefill.size(); ++i) {
    ASSIGN_OR_RETURN(model::SequenceInput input, PrefillInput(job, i));
    inputs_.push_back(input);
  }
  if (inputs_.empty()) return DrawAll(job, outcome);
  StartMasks(job);
  KeepRings(job);
  const auto forward_begin = std::chrono::steady_clock::now();
  const Result<const float*> ran = loaded_.model().Forward(inputs_, loaded_.state());
  const auto forward_end = std::chrono::steady_clock::now();
  mask_worker_.Wait();
  ASSIGN_OR_RETURN(device_logits_, ran);
  std::size_t rows = 0;
  for (const model::SequenceInput& input : inputs_) rows += static_cast<std::size_t>(input.logit_rows);
  const auto draw_begin = std::chrono::steady_clock::now();
  if (DrawsOnDevice(job)) {
    RETURN_IF_ERROR(DrawOnDevice(job));
  } else {
    logits_.resize(rows * static_cast<std::size_t>(loaded_.config().vocab_size));
    RETURN_IF_ERROR(loaded_.backend().CopyToHost(logits_.data(), device_logits_, logits_.size() * sizeof(float)));
  }
  RETURN_IF_ERROR(DrawAll(job, outcome));
  const auto microseconds = [](auto from, auto to) {
    return std::chrono::duration<double, std::micro>(to - from).count();
  };
  ReportStep(job, microseconds(forward_begin, forward_end), microseconds(draw_begin, std::chrono::steady_clock::now()),
             outcome);
  return ScorePrompts(job, inputs_.size() - job.plan.prefill.size(), outcome);
}

Status Executor::ScorePrompts(const StepJob& job, std::size_t first_prompt, StepOutcome& outcome) {
  const int batch = loaded_.model().options().logit_rows_max;
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
      const auto tokens =
          std::span(prompt).subspan(static_cast<std::size_t>(rows.begin + first) + 1, static_cast<std::size_t>(some));
      RETURN_IF_ERROR(ScoreRows(device, tokens, scoring.context->prompt_logprobs, scores.event));
    }
    if (count > 0) outcome.scores.push_back(std::move(scores));
  }
  return {};
}

}  // namespace galley::engine
