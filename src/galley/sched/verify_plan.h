// SPDX-License-Identifier: Apache-2.0
// How many drafts a step verifies, and which: as many rows as make the expected tokens per time largest, best survivals
// first. The survival of a draft is the chance that it and all before it are accepted, the product of their calibrated
// confidences. Pure. The count is fixed on the host from confidences at least two steps old, so that it neither waits
// for nor depends on the drafts of its own step; the rows are then chosen with fresh values. docs/scheduler.md. Owned
// by whoever runs the steps (the engine's executor, a simulated device); times in microseconds.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "galley/sched/cost_curve.h"
#include "galley/sched/step_plan.h"
#include "galley/sched/survival_classes.h"

namespace galley::sched {

// Survivals from confidences, in place: running products. What is no probability counts as 0.
void ToSurvivals(std::span<float> confidences);

// What verifying the best part of a step's drafts brings: accepted drafts a sequence, by the part of all drafts that is
// verified. Averaged over steps, so that it also says what a fixed budget brings where few sequences run and each
// step's best differ.
class SurvivalCurve {
 public:
  static constexpr int kPoints = 60;  // divided by 1 to 5 drafts of up to 4 sequences

  [[nodiscard]] bool empty() const { return empty_; }
  // Of one step; `per_sequence` survivals a sequence.
  [[nodiscard]] static SurvivalCurve Of(std::span<const float> survivals, int per_sequence);
  // Moves this curve towards a newer one by `part`; an empty one takes it over.
  void Blend(const SurvivalCurve& newer, double part);
  // `part` in [0, 1].
  [[nodiscard]] double Gain(double part) const;

 private:
  std::array<double, kPoints + 1> gain_{};
  bool empty_ = true;
};

// Time of a step that decodes, from the learnt curve of the decode launch, a correction that follows the last steps,
// and the learnt times of sampling and drafting.
class VerifyCost {
 public:
  // `forward` outlives it. `speed_apart`: the machine's speed of the moment, which goes with all of the work, is told
  // apart from what a size costs; for processors that others use too. Otherwise the curve takes what it sees, and the
  // correction is what is left.
  VerifyCost(CostCurve& forward, const CostCurve::Prior& draft, bool speed_apart = false)
      : forward_(&forward), draft_(draft), speed_apart_(speed_apart) {}

  // `drafting`: size of the draft pass, VerifyBudget::draft_size; without one when it is 0.
  [[nodiscard]] double Predict(std::int64_t rows, std::int64_t drafting) const;
  // On average over steps with so many rows on average; in between, the curve is taken to be linear.
  [[nodiscard]] double PredictMean(double rows, std::int64_t drafting) const;

  struct Measured {
    std::int64_t rows = 0;      // of the decode launch
    std::int64_t drafting = 0;  // size of the draft pass
    double forward_us = 0;      // 0: unknown, of each; or, of this one, the curve has been told already
    double sampler_us = 0;
    double draft_us = 0;
  };
  void Observe(const Measured& measured);

 private:
  [[nodiscard]] double Total(double forward_us, double rows, std::int64_t drafting) const;

  CostCurve* forward_;
  CostCurve draft_;
  bool speed_apart_;
  double correction_ = 1;
  double sampler_row_us_ = 0;
  bool sampler_seen_ = false;
};

// Drafts that are there before a draft pass, and without one: found by lookup, say. By class of survival.
struct FoundDrafts {
  int count = 0;
  std::array<double, SurvivalClasses::kClasses> rows = {}, gain = {};
  [[nodiscard]] static FoundDrafts Of(std::span<const float> survivals);
};

// What a step has to decide on.
struct DraftLoad {
  int sequences = 0;       // that decode
  int drafting = 0;        // of them may have drafts by a draft pass
  int drafts_most = 0;     // rows that the step can verify beside each sequence's newest token
  FoundDrafts found = {};  // of other sequences
};

struct VerifyBudget {
  int drafts = 0;            // rows to verify beside each sequence's newest token, at most; 0: propose no drafts at all
  int drafting = 0;          // sequences to propose drafts for; fewer than could have some where only trying
  int depth = 0;             // drafts to propose for each of them
  float least = 0;           // drafts of less survival are not verified, though there is room
  int draft_size = 0;        // of the draft pass: its sequences, or with VerifyOptions::any_size its rows
  double expected_rows = 0;  // of `drafts`
  double expected_tokens = 0;
  double predicted_us = 0;
  [[nodiscard]] double rate() const { return predicted_us > 0 ? expected_tokens / predicted_us : 0; }
};

// The best budget for `sequences` of which `drafting` have `per_sequence` drafts each that bring what `curve` says. At
// most `drafts_most` drafts, at least one; 0 only when there are none to verify. Looks at all sizes, because cost has
// steps and the rate more than one maximum.
[[nodiscard]] VerifyBudget PlanBudget(const SurvivalCurve& curve, int sequences, int drafting, int per_sequence,
                                      int drafts_most, const VerifyCost& cost);

// Verify lengths: of all drafts those with the best survivals, `budget` of them or all. `survivals` has `per_sequence`
// entries a sequence, none growing; equal ones are taken from the front. What the device does, as an oracle and for
// backends that run on the host. `lengths` has one place a sequence.
// Less than `least` is not taken.
void ChooseRows(std::span<const float> survivals, int per_sequence, int budget, std::span<int> lengths,
                std::vector<float>& scratch, float least = 0);

// The best plan where steps may have any number of rows: how deep to draft, and from which survival on a draft is worth
// its row. That survival decides, not a count, so that a step verifies much where much is likely and nothing where
// nothing is: on nano, one sequence, reckoned as 1.31 against 1.15 times the rate. Cost is taken at the mean number of
// rows.
// Found drafts count alike: their rows cost the same. 0 drafts where there are none to verify.
[[nodiscard]] VerifyBudget PlanDepth(const SurvivalClasses& classes, const DraftLoad& load, int depth_most,
                                     const VerifyCost& cost);

struct VerifyOptions {
  int drafts = 5;  // proposed for a sequence, at most
  // Steps may have any number of rows and drafts any depth, at no other cost than that of the rows (a backend that does
  // not repeat recorded steps): plans are those of PlanDepth.
  bool any_size = false;
  // Gain below which drafting counts as not worth its trouble.
  double gain_least = 1.005;
  // Steps between trials of another budget: the cost of sizes that never run is not known. Doubles up to the second as
  // long as trials change nothing. Where no drafts are best, a trial is of an eighth of the sequences.
  int trial_steps = 8;
  int trial_steps_most = 256;
  // Steps of a trial while drafts wait: because none are predicted to be best, and because they were seen to lose. The
  // first drafts after a pause cost half as much again, so a single step would speak against them for ever.
  int waiting_steps_most = 256;  // the second, while drafts wait
  int trial_run = 1;
  int retry_run = 1;
  // By draft_size. Where depth is planned it is better too low for a small pass: that gets it tried.
  CostCurve::Prior draft_cost = {.base_us = 300, .row_us = 2};
};
// For a backend whose steps may have any size. The gain must pay for the head's rings as well, which steps beside it
// keep (on nano 3.6 % of a step).
[[nodiscard]] constexpr VerifyOptions AnySize(VerifyOptions options) {
  options.any_size = true;
  options.gain_least = 1.03;
  options.waiting_steps_most = 512;
  options.trial_run = 4;
  options.retry_run = 16;
  options.draft_cost = {.base_us = 100, .row_us = 100};
  return options;
}

// Of one sequence; plain data in the caller's hands.
struct QuenchState {
  float accepted = 0;  // mean accepted drafts of a step that had some
  float proposed = 0;  // steps with drafts, up to 32
  int rest = 0;        // steps left without drafts
  int next_rest = 16;
};

class VerifyPlanner {
 public:
  // `forward` outlives it.
  VerifyPlanner(const VerifyOptions& options, CostCurve& forward);

  // Budget of step `step` for so many decoding sequences, `drafting` of them not quenched, and at most so many rows.
  // Uses reports of steps up to step - 2. Found drafts want VerifyOptions::any_size.
  [[nodiscard]] VerifyBudget Next(StepId step, int sequences, int drafting, int rows_most,
                                  std::span<const float> found = {});

  // What a step came to: survivals of the drafts proposed in it, `per_sequence` for each that had some, and times.
  void Report(StepId step, std::span<const float> survivals, int per_sequence, const VerifyCost::Measured& measured);

  // Microseconds that a step with drafts took less than as many tokens without would have; negative when it lost.
  [[nodiscard]] double Saved(std::int64_t sequences, std::int64_t tokens, const VerifyCost::Measured& measured) const;

  // What a step without prompt rows came to, after Report: what drafts bring is not only predicted but seen, and where
  // steps with them have been slower for their tokens than steps without, they wait, whatever the prediction says, but
  // for trials. `drafting`: sequences that had drafts from a draft pass; steps in which few of many had say nothing
  // here. `found`: of the drafts that were verified, those that were found.
  void Judge(std::int64_t sequences, std::int64_t drafting, std::int64_t found, std::int64_t tokens,
             const VerifyCost::Measured& measured);

  // Steps before a trial in which drafts are made ready (a draft head's rings are kept), so that the trial finds them
  // as good as they are.
  static constexpr int kReadyBefore = 48;
  // Whether the next steps may propose drafts at all, and for the sequence.
  [[nodiscard]] bool DraftsSoon() const {
    return last_.drafting > 0 || !knows_survivals() || trial_left_ > 0 || trial_gap_ - since_trial_ <= kReadyBefore;
  }
  [[nodiscard]] static bool DraftsSoon(const QuenchState& sequence) { return sequence.rest <= kReadyBefore; }

  // Whether to propose drafts for the sequence in the next step. To be asked once a step for each decoding sequence.
  [[nodiscard]] bool Drafts(QuenchState& sequence) const;
  // Drafts of the sequence that were verified and accepted in a step.
  void Accepted(QuenchState& sequence, int verified, int accepted) const;
  // The same with the survivals of those that were verified, for what such survivals are worth.
  void Accepted(QuenchState& sequence, std::span<const float> survivals, int accepted);

 private:
  struct Seen {
    StepId step = -1;
    SurvivalCurve curve;
    SurvivalClasses classes;
  };
  // Tokens of steps, as plain steps in their time as predicted: of steps with a draft pass, of those with found drafts
  // alone, and of those without drafts.
  struct Worth {
    double drafted = 1, found = 1.1, plain = 1;  // found drafts are tried first
  };
  [[nodiscard]] static std::size_t WorthClass(std::int64_t sequences);
  // What so many drafts bring and cost.
  [[nodiscard]] VerifyBudget Priced(int drafts, const DraftLoad& load) const;
  // The same for plans of PlanDepth; `drafting` may be fewer than the load's.
  [[nodiscard]] VerifyBudget PricedDepth(int depth, float least, int drafting, const DraftLoad& load) const;
  // The best without a draft pass: none, or of the found ones those that pay.
  [[nodiscard]] VerifyBudget WithoutPass(const DraftLoad& load);
  // A trial beside `best`; `without`: that of WithoutPass, which counts how often it was asked.
  [[nodiscard]] VerifyBudget TryDepth(const VerifyBudget& best, const VerifyBudget& without, const DraftLoad& load);
  // The trial while drafts wait; `predicted`: the best that the prediction knows.
  [[nodiscard]] VerifyBudget TryWaiting(const VerifyBudget& predicted, const DraftLoad& load) const;
  [[nodiscard]] bool knows_survivals() const { return averaged_ > 0; }
  // Whether the last step was one of the first with drafts after a pause.
  [[nodiscard]] bool cold() const;
  [[nodiscard]] VerifyBudget Try(const VerifyBudget& best, const DraftLoad& load);

  VerifyOptions options_;
  VerifyCost cost_;
  SurvivalCurve average_;        // of reports that may be used for any step from now on
  SurvivalClasses classes_;      // the same; only one of the two is kept
  int averaged_ = 0;             // reports in it
  std::array<Seen, 4> waiting_;  // newer ones
  VerifyBudget last_;            // chosen for its own sake
  std::array<Worth, 16> worth_;  // by octave of the sequences
  int drafted_in_row_ = 0;       // steps with drafts since the last pause
  int plain_in_row_ = 0;         // steps without
  double row_price_ = 0;         // of a verified draft at the last budget
  double draft_price_ = 0;       // of drafting for one sequence
  int since_trial_ = 0;
  int trial_left_ = 0;  // steps of the trial that runs
  int trial_gap_;
  int trials_ = 0;
  int found_waits_ = 0;  // steps
};

}  // namespace galley::sched
