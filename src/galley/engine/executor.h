// SPDX-License-Identifier: Apache-2.0
// Runs step plans on a loaded model: state copies, block tables, one forward pass, draws. It works on a thread of its
// own, so that the next step is planned while one runs; steps end in the order in which they were enqueued. Everything
// a step needs that the plan does not hold travels with it, so nothing is shared with the rank thread.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "galley/backend/ops.h"
#include "galley/engine/banned_words.h"
#include "galley/engine/draft_rings.h"
#include "galley/engine/engine.h"
#include "galley/engine/loaded_model.h"
#include "galley/engine/logit_rules.h"
#include "galley/engine/mask_worker.h"
#include "galley/engine/speculation.h"
#include "galley/sched/options.h"
#include "galley/sched/step_plan.h"
#include "galley/sched/verify_plan.h"

namespace galley::engine {

// What the draws and the text of a sequence need to know; immutable.
struct DrawContext {
  std::vector<TokenId> prompt;
  SamplingParams sampling;
  LogitRules rules;                    // biases sorted
  std::vector<std::uint32_t> allowed;  // AllowedMask of them
  int prompt_logprobs = -1;
  bool report_prefill = false;
  int min_tokens = 0;
  int tokens_most = 0;  // that the request can draw
  std::vector<TokenId> stop_ids;
  StopSet stops;
  std::optional<TokenId> stops_after;
  BannedWords banned_words;
  std::shared_ptr<const TokenConstraint> constraint;  // in its start state; null: none
};

struct StepJob {
  sched::StepPlan plan;
  // For each of plan.prefill: tokens of its rows, and before them up to as many earlier ones as Engram looks back.
  struct Prefill {
    std::size_t first = 0;  // in tokens
    int earlier = 0;        // how many earlier ones
    int count = 0;          // those included
  };
  std::vector<Prefill> prefill;
  std::vector<TokenId> tokens;
  // Of plan.prefill, those whose rows are asked for log-probabilities of the tokens after them.
  struct Scoring {
    std::size_t prefill = 0;
    std::shared_ptr<const DrawContext> context;
  };
  std::vector<Scoring> scorings;
  // For each of plan.draws.
  struct Draw {
    std::shared_ptr<const DrawContext> context;
    int branch = 0;
    bool first = false;  // the sequence has drawn nothing yet
  };
  std::vector<Draw> draws;

  // Room for any step of so many sequences and rows, with so many tokens before each chunk.
  void Reserve(int slots, int rows, int earlier);
  // Keeps the memory.
  void Clear();
};

struct StepOutcome {
  Status status;
  sched::StepDone done;
  struct Scores {
    std::size_t prefill = 0;  // in plan.prefill
    PromptEvent event;
  };
  std::vector<Scores> scores;
  std::vector<Result<GeneratedToken>> tokens;  // as done.token_ids; an error concerns that sequence alone
  struct Drafts {
    int drafted = 0;
    int verified = 0;
    int accepted = 0;
  };
  std::vector<Drafts> drafts;  // one for each draw
  int draft_budget = 0;        // drafts that the step was to verify
  double saved_us = 0;         // by drafts, against one token a step; 0 where that is not known

  void Reserve(int slots, int tokens_each);
  // Keeps the memory.
  void Clear();
};

// A step on its way: to the executor and back. Steps use their places in turn, so their arrays are there already.
struct Step {
  StepJob job;
  StepOutcome outcome;
};

struct ExecutorOptions {
  int slots = 1;
  int snapshots = 0;
  int steps = 2;                   // that may be on their way
  SpeculationOptions speculation;  // resolved
  std::filesystem::path model_dir;
};

class Executor {
 public:
  // `on_done` is called from the executor's thread when an outcome can be taken.
  Executor(LoadedModel& loaded, const ExecutorOptions& options, std::function<void()> on_done);
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // Allocates the places of snapshots. Errors: kResourceExhausted.
  [[nodiscard]] Status Prepare();
  // An empty place for the next step, to be filled before Enqueue. Requires that no more steps than may are on their
  // way. One thread calls this, Enqueue, Take and steps_on_their_way.
  [[nodiscard]] StepJob& NextJob();
  void Enqueue();
  // The next finished step, or null; valid until NextJob.
  [[nodiscard]] Step* Take();
  [[nodiscard]] int steps_on_their_way() const { return static_cast<int>(enqueued_ - taken_); }

 private:
  void ReserveSteps();
  void Loop();
  void Run(const StepJob& job, StepOutcome& outcome);
  [[nodiscard]] Status RunStep(const StepJob& job, StepOutcome& outcome);
  void RunOps(const sched::StepPlan& plan);
  void UpdateTables(const sched::StepPlan& plan);
  [[nodiscard]] Result<model::SequenceInput> PrefillInput(const StepJob& job, std::size_t index);
  // What a sequence has drawn so far; a preempted one keeps it until it resumes or another takes its id.
  struct History {
    std::vector<TokenId> output;
    TokenUse use;
    std::shared_ptr<TokenConstraint> constraint;
    bool ended = false;  // by a draw; steps planned before that was known run nothing for it
    sched::QuenchState quench = {};
  };
  // Rows of a decoding sequence: its newest token and the drafts to verify. No tokens: it has ended.
  struct Verify {
    std::vector<TokenId> tokens;
    Position begin = 0;
    int drafted = 0;
    std::vector<float> confidences = {};  // [drafted], as the drafter gave them
    std::size_t survivals = 0;            // where the planner's are in survivals_, as many as drafts
    const float* draft_logits = nullptr;  // [drafted][vocab_size], on the device; only with rejection sampling
    int matched = 0;                      // as Proposal's
    bool found = false;                   // by lookup beside a draft head

    // Keeps the memory.
    void Clear() {
      tokens.clear();
      confidences.clear();
      begin = 0;
      drafted = 0;
      draft_logits = nullptr;
      matched = 0;
      found = false;
    }
    [[nodiscard]] std::span<const TokenId> drafts() const {
      return tokens.empty() ? std::span<const TokenId>() : std::span(tokens).subspan(1);
    }
  };
  // One row that is drawn from.
  struct RowDraw {
    std::size_t at = 0;   // in plan.draws
    std::size_t row = 0;  // of the draw's rows
    Position position = 0;
    std::size_t logits_row = 0;                // of the step
    std::optional<std::size_t> drawn = {};     // by the device: where in drawn_; else by the host from logits_
    std::optional<TokenId> draft = {};         // for the same position
    std::span<const float> draft_logits = {};  // that it was drawn from; empty: accepted iff equal
    bool forced = false;                       // the draft counts as drawn
  };

  // executor_draw.cc
  // Histories of sequences that draw for the first time begin.
  void StartHistories(const StepJob& job);
  // What each decode sequence runs: drafts are proposed and the rows to verify chosen.
  [[nodiscard]] Status PlanVerify(const StepJob& job);
  [[nodiscard]] model::SequenceInput DecodeInput(const sched::SequenceRows& rows, const Verify& verify);
  // Proposes drafts for asks_ within the budget of verify rows; asking_ names their places in plan.decode.
  [[nodiscard]] Status ProposeDrafts(const StepJob& job);
  // Looks up drafts for the sequence at `decode` of the plan, and keeps them where they are likely, or, with
  // `otherwise_none`, whatever is found.
  [[nodiscard]] bool Find(const DraftAsk& ask, std::size_t decode, bool otherwise_none);
  // Verifies what was found as far as the plan allows; drafts taken.
  int TakeFound(const sched::VerifyBudget& plan);
  // Whether the step keeps the draft head's rings; noted for each of inputs_.
  void KeepRings(const StepJob& job);
  // Only so many of asks_, other ones each turn.
  void KeepAsks(std::size_t count, std::size_t turn);
  // Of the proposals, as many drafts as the plan allows, best survivals first.
  void ChooseLengths(const sched::VerifyBudget& plan, std::span<const Proposal> proposals);
  // Tells the planner what the step came to.
  void ReportStep(const StepJob& job, double forward_us, double sampler_us, StepOutcome& outcome);
  // Masks of the step's draws are asked for.
  void StartMasks(const StepJob& job);
  // Whether the backend draws the step's tokens, so that only they come back, and not the logits.
  [[nodiscard]] bool DrawsOnDevice(const StepJob& job) const;
  // Calls visit(draw, row, history, drafts before the row) for every row of the step that can be drawn from: the verify
  // rows of each decode sequence, then the last one of each prompt that ends, once for each of its draws. The logits
  // have the same order, those of a prompt once.
  template <typename Visit>
  void ForRows(const StepJob& job, Visit&& visit);
  // Draws every row of the step, drafts being guessed right, into drawn_.
  [[nodiscard]] Status DrawOnDevice(const StepJob& job);
  // From logits_, or what is in drawn_.
  [[nodiscard]] Status DrawAll(const StepJob& job, StepOutcome& outcome);
  // Draws one sequence's tokens until a draft is not what comes, and reports them. `first`: of its rows.
  [[nodiscard]] Status DrawVerified(const StepJob& job, std::size_t decode, std::size_t first, StepOutcome& outcome);
  [[nodiscard]] std::span<const float> LogitsOf(const RowDraw& row) const;
  // Place for the mask of a row whose sequence is constrained; empty for others.
  [[nodiscard]] std::span<std::uint32_t> MaskOf(const RowDraw& row);
  // Whether that place holds the constraint's mask, and whether it needs none.
  [[nodiscard]] bool IsMasked(const RowDraw& row) const;
  [[nodiscard]] bool IsOpen(const RowDraw& row) const;
  // Everything that changes the row's logits behind the history's output and `drafts`; with `masked` the mask of the
  // constraint. In memory of change_memory_ and of the row's mask.
  [[nodiscard]] backend::RowChanges ChangesOf(const StepJob::Draw& draw, const RowDraw& row, const History& history,
                                              std::span<const TokenId> drafts, bool masked);
  [[nodiscard]] backend::DrawRequest RequestOf(const StepJob::Draw& draw, const RowDraw& row, const History& history,
                                               std::span<const TokenId> drafts, bool masked);
  // Draws requests_ from logits on the device into drawn_ and ranked_.
  [[nodiscard]] Status RunRequests(const float* logits);
  // Draws the row another time into its place, with the mask of its constraint.
  [[nodiscard]] Status DrawAgain(const StepJob::Draw& draw, const RowDraw& row, const History& history);
  // A draw of the row that the step is at: kNothingLeft or kBrokenRow when there is none.
  [[nodiscard]] TokenId Choose(const StepJob::Draw& draw, const RowDraw& row, const backend::DrawRequest& request);
  [[nodiscard]] static Error NothingLeft(TokenId why, Position position);
  [[nodiscard]] Result<GeneratedToken> DrawOne(const StepJob::Draw& draw, RowDraw row, const History& history);
  // The token with its log-probability and those of `top` alternatives, from logits on the host.
  [[nodiscard]] GeneratedToken Scored(std::span<const float> logits, TokenId id, int top);
  // The same of a token that the device drew, or was given.
  [[nodiscard]] GeneratedToken Delivered(std::size_t drawn, int top) const;
  // Draws, and enters the token into history and outcome; whether it ends the sequence.
  bool DrawInto(const StepJob::Draw& draw, const RowDraw& row, History& history, StepOutcome& outcome);
  // Log-probabilities of prompt tokens: logits of all rows of the chunks that ask for it, a few at a time, in the
  // memory of the draws' logits, which are not needed any more. `first_prompt` is the first prompt's place in the step.
  [[nodiscard]] Status ScorePrompts(const StepJob& job, std::size_t first_prompt, StepOutcome& outcome);
  // The same of some rows, whose logits are on the device: scores of `tokens`.
  [[nodiscard]] Status ScoreRows(const float* logits, std::span<const TokenId> tokens, int top, PromptEvent& event);

  LoadedModel& loaded_;
  std::vector<std::vector<std::int32_t>> tables_;  // [slots] block ids
  ExecutorOptions options_;
  LookupChances lookup_chances_;
  std::unique_ptr<Drafter> drafter_;
  DraftRings draft_rings_;
  std::unique_ptr<model::StateStorage> snapshots_;  // one slot and one block a place
  std::unordered_map<sched::SequenceId, History> histories_;
  MaskWorker mask_worker_;           // a few threads: the model's own have most of the processors
  std::vector<Verify> verifies_;     // of the step, as plan.decode; empty ones behind those
  std::vector<DraftAsk> asks_;       // of the step: sequences that may have drafts
  std::vector<std::size_t> asking_;  // their places in plan.decode
  // Drafts that lookup found in the step, of sequences at finding_ in plan.decode; the first places are in use.
  std::vector<Proposal> found_;
  std::vector<std::size_t> finding_;
  std::vector<float> found_survivals_;                                   // draft_tokens of each
  int found_rows_ = 0;                                                   // of them verified
  sched::CostCurve decode_cost_{sched::SchedulerOptions().decode_cost};  // learnt from the first steps on
  std::optional<sched::VerifyPlanner> planner_;  // of verify lengths; nothing: every draft is verified
  Calibration calibration_;
  std::vector<float> survivals_;                               // of the step's proposals, draft_tokens each
  std::vector<int> lengths_;                                   // drafts to verify, as asks_
  double draft_us_ = 0;                                        // of the step
  int draft_budget_ = 0;                                       // of the step
  int draft_size_ = 0;                                         // of its draft pass, as the planner counts
  int depth_ = 1;                                              // survivals_ of each sequence
  std::vector<MaskJob> mask_jobs_;                             // of the step
  std::vector<int> mask_of_;                                   // [draws of the step] in mask_jobs_; -1: unconstrained
  std::vector<std::uint32_t> mask_words_;                      // of all of mask_jobs_
  ChangeMemory change_memory_;                                 // of requests_, or of one row
  std::vector<float> changed_;                                 // scratch of Choose
  std::string tail_;                                           // scratch of ChangesOf
  std::vector<float> draft_logits_;                            // scratch of DrawVerified
  std::vector<float> sorted_;                                  // scratch of ChooseLengths
  std::vector<model::SequenceInput> inputs_;                   // of the step
  std::vector<float> logits_;                                  // of the step, on the host
  std::vector<backend::TokenChance> chances_, draft_chances_;  // scratch of Choose
  std::vector<backend::RankedToken> ranked_;                   // scratch of Scored
  const float* device_logits_ = nullptr;                       // of the step
  std::vector<backend::DrawRequest> requests_;
  std::vector<backend::DrawnToken> drawn_;          // of each of requests_
  std::vector<backend::RankedToken> ranked_draws_;  // [requests_][kAlternativesMax], if one asks for any

  std::function<void()> on_done_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<Step> steps_;    // ring; a place belongs to whoever its step is with
  std::int64_t enqueued_ = 0;  // steps so far; guarded by mutex_, as the next three
  std::int64_t finished_ = 0;
  std::int64_t taken_ = 0;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace galley::engine
