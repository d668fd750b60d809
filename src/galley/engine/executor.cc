// SPDX-License-Identifier: Apache-2.0
#include "galley/engine/executor.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>

#include "galley/backend/sampling.h"
#include "galley/base/check.h"
#include "galley/engine/logit_rules.h"

namespace galley::engine {
namespace {

// The token with its log-probability and those of `top` alternatives.
GeneratedToken Scored(std::span<const float> logits, TokenId id, int top) {
  GeneratedToken token{.id = id, .logprob = backend::LogProbability(logits, id), .alternatives = {}};
  for (const backend::RankedToken& ranked : backend::TopTokens(logits, top)) {
    token.alternatives.push_back({.id = ranked.id, .logprob = ranked.logprob});
  }
  return token;
}

}  // namespace

Executor::Executor(LoadedModel& loaded, int slots, int snapshots, std::function<void()> on_done)
    : loaded_(loaded),
      tables_(static_cast<std::size_t>(slots)),
      snapshot_count_(snapshots),
      on_done_(std::move(on_done)) {}

Status Executor::Prepare() {
  if (snapshot_count_ > 0) {
    ASSIGN_OR_RETURN(model::StateStorage places,
                     model::StateStorage::Create(loaded_.backend(), loaded_.config(), snapshot_count_, snapshot_count_,
                                                 loaded_.state().layout().rewind));
    snapshots_ = std::make_unique<model::StateStorage>(std::move(places));
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

model::SequenceInput Executor::DecodeInput(const sched::SequenceRows& rows) {
  CHECK(rows.rows == 1) << rows.rows << " decode rows without drafts";
  // A sequence whose draw failed with an earlier step has nothing to go on with. It has ended, and this step was
  // planned before that was known: the row is dead, and any token does.
  static constexpr TokenId kDead = 0;
  const std::vector<TokenId>& output = histories_[rows.sequence].output;
  return {.slot = rows.slot,
          .start = rows.begin,
          .tokens = output.empty() ? std::span(&kDead, 1) : std::span(output).last(1),
          .blocks = tables_[static_cast<std::size_t>(rows.slot.value)],
          .history_from = rows.write_from,
          .encoder_floor = rows.encoder_floor,
          .decoder_floor = rows.decoder_floor,
          .logit_rows = 1};
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
    std::vector<model::SequenceInput> inputs;
    for (const sched::SequenceRows& rows : job.plan.decode) inputs.push_back(DecodeInput(rows));
    for (std::size_t i = 0; i < job.plan.prefill.size(); ++i) {
      ASSIGN_OR_RETURN(model::SequenceInput input, PrefillInput(job, i));
      inputs.push_back(input);
    }
    if (inputs.empty()) return {};
    StartMasks(job);
    const Result<const float*> ran = loaded_.model().Forward(inputs, loaded_.state());
    mask_worker_.Wait();
    ASSIGN_OR_RETURN(const float* device, ran);
    std::size_t rows = 0;
    for (const model::SequenceInput& input : inputs) rows += static_cast<std::size_t>(input.logit_rows);
    std::vector<float> logits(rows * static_cast<std::size_t>(loaded_.config().vocab_size));
    RETURN_IF_ERROR(loaded_.backend().CopyToHost(logits.data(), device, logits.size() * sizeof(float)));
    DrawAll(job, logits, outcome);
    return ScorePrompts(job, outcome);
  }();
  outcome.done.elapsed_us =
      std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - begin).count();
  return outcome;
}

void Executor::StartMasks(const StepJob& job) {
  const std::size_t words = MaskWords(loaded_.config().vocab_size);
  mask_jobs_.clear();
  mask_of_.assign(job.draws.size(), -1);
  for (std::size_t at = 0; at < job.draws.size(); ++at) {
    const StepJob::Draw& draw = job.draws[at];
    History& history = histories_[job.plan.draws[at]];
    if (draw.first) {
      history.output.clear();
      history.constraint = draw.context->constraint == nullptr ? nullptr : draw.context->constraint->Clone();
    }
    if (history.constraint == nullptr) continue;
    mask_of_[at] = static_cast<int>(mask_jobs_.size());
    mask_jobs_.push_back({.constraint = history.constraint.get(), .mask = {}, .status = {}});
  }
  mask_words_.resize(std::max(mask_words_.size(), mask_jobs_.size() * words));
  for (std::size_t i = 0; i < mask_jobs_.size(); ++i) {
    mask_jobs_[i].mask = std::span(mask_words_).subspan(i * words, words);
  }
  mask_worker_.Start(mask_jobs_);
}

void Executor::DrawAll(const StepJob& job, const std::vector<float>& logits, StepOutcome& outcome) {
  const auto vocab = static_cast<std::size_t>(loaded_.config().vocab_size);
  outcome.done.draws.resize(job.plan.draws.size());
  outcome.tokens.resize(job.plan.draws.size(), GeneratedToken{});
  outcome.done.token_ids.resize(job.plan.draws.size());
  std::size_t row = 0;
  for (const auto* list : {&job.plan.decode, &job.plan.prefill}) {
    for (const sched::SequenceRows& rows : *list) {
      if (rows.draws == 0) continue;
      const std::span<const float> row_logits = std::span(logits).subspan(row++ * vocab, vocab);
      for (int i = 0; i < rows.draws; ++i) {
        const auto at = static_cast<std::size_t>(rows.first_draw + i);
        const StepJob::Draw& draw = job.draws[at];
        History& history = histories_.at(job.plan.draws[at]);
        Result<GeneratedToken> token = DrawOne(draw, at, history, row_logits, rows.end());
        const TokenId id = token ? token->id : 0;  // a failed draw ends its own sequence and no other
        history.output.push_back(id);
        const std::vector<TokenId>& stops = draw.context->stop_ids;
        const bool complete = history.constraint != nullptr && history.constraint->IsComplete();
        outcome.done.draws[at] = {
            .sequence = job.plan.draws[at],
            .first = static_cast<int>(at),
            .count = 1,
            .stop = !token || complete || std::find(stops.begin(), stops.end(), id) != stops.end()};
        outcome.done.token_ids[at] = id;
        outcome.tokens[at] = std::move(token);
      }
    }
  }
}

std::span<const float> Executor::ChangedLogits(const StepJob::Draw& draw, std::size_t at,
                                               std::span<const TokenId> output, std::span<const float> logits) {
  const DrawContext& context = *draw.context;
  const bool early = static_cast<int>(output.size()) < context.min_tokens && !context.stop_ids.empty();
  const int mask = mask_of_[at];
  if (!early && mask < 0 && context.banned_words.empty() && !HasRules(context.rules)) return logits;
  changed_.assign(logits.begin(), logits.end());
  if (mask >= 0) ApplyMask(mask_jobs_[static_cast<std::size_t>(mask)].mask, changed_);
  context.banned_words.Apply(output, changed_);
  const std::span<const TokenId> stops = early ? std::span(context.stop_ids) : std::span<const TokenId>();
  ApplyRules(context.rules, context.prompt, output, stops, changed_);
  return changed_;
}

Result<GeneratedToken> Executor::DrawOne(const StepJob::Draw& draw, std::size_t at, const History& history,
                                         std::span<const float> logits, Position position) {
  const SamplingParams& s = draw.context->sampling;
  if (mask_of_[at] >= 0) RETURN_IF_ERROR(mask_jobs_[static_cast<std::size_t>(mask_of_[at])].status);
  const std::span<const float> final_logits = ChangedLogits(draw, at, history.output, logits);
  const std::optional<TokenId> id = backend::SampleRow(final_logits, {.temperature = static_cast<float>(s.temperature),
                                                                      .top_k = s.top_k,
                                                                      .top_p = static_cast<float>(s.top_p),
                                                                      .min_p = static_cast<float>(s.min_p),
                                                                      .seed = BranchSeed(s.seed, draw.branch),
                                                                      .position = position});
  if (!id) {
    return Err(ErrorCode::kInternal,
               fmt::format("no token can follow position {}: every logit is minus infinity or NaN", position - 1));
  }
  if (history.constraint != nullptr && !history.constraint->Accept(*id)) {
    return Err(ErrorCode::kInternal,
               fmt::format("the constraint allowed token {} at position {} and then refused it", *id, position));
  }
  if (s.top_logprobs < 0) return GeneratedToken{.id = *id, .logprob = 0, .alternatives = {}};
  return Scored(logits, *id, s.top_logprobs);
}

Status Executor::ScorePrompts(const StepJob& job, StepOutcome& outcome) {
  const auto vocab = static_cast<std::size_t>(loaded_.config().vocab_size);
  const int batch = loaded_.model().options().logit_rows_max;
  std::vector<float> logits;
  for (const StepJob::Scoring& scoring : job.scorings) {
    const sched::SequenceRows& rows = job.plan.prefill[scoring.prefill];
    const std::vector<TokenId>& prompt = scoring.context->prompt;
    StepOutcome::Scores scores{.prefill = scoring.prefill, .event = {.first = rows.begin + 1}};
    // The last row of a prompt has no token after it.
    const int count = std::min(rows.rows, static_cast<int>(prompt.size()) - 1 - static_cast<int>(rows.begin));
    const auto sequence = static_cast<int>(job.plan.decode.size() + scoring.prefill);
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
