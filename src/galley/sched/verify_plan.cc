// SPDX-License-Identifier: Apache-2.0
#include "galley/sched/verify_plan.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <tuple>

#include "galley/base/check.h"
#include "galley/kv/index.h"

namespace galley::sched {
namespace {

// Weight of the newest step in the average of survivals. Less means less noise where few sequences run.
constexpr double kNewest = 0.05;
constexpr double kNewestPooled = 0.02;
// Survival from which on a trial verifies drafts where none are best.
constexpr float kTrialLeast = 0.5F;
// Weight of the newest step in the correction of the cost curve, and in the machine's speed.
constexpr double kCorrectionStep = 0.2, kSpeedStep = 0.1;
// Of the sequences that could have drafts one in so many gets some in a trial where none is best.
constexpr int kTrialPart = 8;
// No part of a step takes longer, in microseconds.
constexpr double kLongest = 3.6e9;
// Steps between trials, at most, while drafts gain less than the second of these.
constexpr int kComparedEvery = 64;
constexpr double kClear = 1.25;
// Worth of steps with drafts, of that of steps without, below which they wait, and weight of the newest of either.
constexpr double kWorthLeast = 0.97, kWorthStep = 1.0 / 32;
// The first steps with drafts find nothing of the draft head in the caches when there were none for so many steps.
constexpr int kColdSteps = 2, kPauseSteps = 8;
// Found drafts whose worth is less than this of that of steps without are tried once in so many steps: few rows of many
// sequences gain little where they gain, and what is seen errs by about as much.
constexpr double kFoundWorthLeast = 1.01;
constexpr int kFoundTrialSteps = 32;
// While drafts wait, each trial comes after so many times the steps of the one before: what makes it ready costs too.
constexpr int kWaitingGrows = 4;
// A budget that is better by this factor is another one.
constexpr double kChanged = 1.04;

}  // namespace

void ToSurvivals(std::span<float> confidences) {
  float survival = 1;
  for (float& confidence : confidences) {
    survival = confidence >= 0 && confidence <= 1 ? survival * confidence : 0;
    confidence = survival;
  }
}

SurvivalCurve SurvivalCurve::Of(std::span<const float> survivals, int per_sequence) {
  // Survivals in classes of 1/1024: the order within a class does not matter, and a step costs no sort.
  constexpr int kClasses = 1024;
  std::array<int, kClasses> count{};
  std::array<double, kClasses> sum{};
  for (const float given : survivals) {
    const float survival = given >= 0 && given <= 1 ? given : 0;  // NaN has no class
    const auto place = kv::Idx(std::min(static_cast<int>(survival * kClasses), kClasses - 1));
    ++count[place];
    sum[place] += static_cast<double>(survival);
  }
  SurvivalCurve curve;
  curve.empty_ = survivals.empty();
  const auto total = static_cast<double>(survivals.size());
  const double sequences = total / per_sequence;
  double drafts = 0, tokens = 0;
  int point = 1;
  for (std::size_t place = kClasses; place-- > 0;) {
    if (count[place] == 0) continue;
    const double end = drafts + count[place], mean = sum[place] / count[place];
    for (; point <= kPoints && total * point / kPoints <= end + 1e-9; ++point) {
      curve.gain_[kv::Idx(point)] = (tokens + (total * point / kPoints - drafts) * mean) / sequences;
    }
    drafts = end;
    tokens += sum[place];
  }
  return curve;
}

void SurvivalCurve::Blend(const SurvivalCurve& newer, double part) {
  if (newer.empty_) return;
  if (empty_) part = 1;
  empty_ = false;
  for (std::size_t i = 0; i < gain_.size(); ++i) gain_[i] += part * (newer.gain_[i] - gain_[i]);
}

double SurvivalCurve::Gain(double part) const {
  const double at = std::clamp(part, 0.0, 1.0) * kPoints;
  const auto below = std::min(static_cast<int>(at), kPoints - 1);
  const double rest = at - below;
  return gain_[kv::Idx(below)] * (1 - rest) + gain_[kv::Idx(below + 1)] * rest;
}

double VerifyCost::Total(double forward_us, double rows, std::int64_t drafting) const {
  const double draft_us = draft_.Predict(drafting);
  return forward_us * correction_ + draft_us * (speed_apart_ ? correction_ : 1) + sampler_row_us_ * rows;
}

double VerifyCost::Predict(std::int64_t rows, std::int64_t drafting) const {
  return Total(forward_->Predict(rows), static_cast<double>(rows), drafting);
}

double VerifyCost::PredictMean(double rows, std::int64_t drafting) const {
  const double below = std::floor(rows), rest = rows - below;
  const auto whole = static_cast<std::int64_t>(below);
  const double forward = forward_->Predict(whole) * (1 - rest) + (rest > 0 ? forward_->Predict(whole + 1) * rest : 0);
  return Total(forward, rows, drafting);
}

void VerifyCost::Observe(const Measured& measured) {
  const auto known = [](double us) { return us > 0 && us < kLongest; };  // NaN is not
  if (measured.rows > 0 && known(measured.forward_us) && !speed_apart_) {
    forward_->Observe(measured.rows, measured.forward_us);
    // The curve has taken its part already; what is left is what all sizes have in common now and had not before.
    const double ratio = std::clamp(measured.forward_us / forward_->Predict(measured.rows), 0.8, 1.25);
    correction_ += kCorrectionStep * (ratio - correction_);
  } else if (measured.rows > 0 && known(measured.forward_us)) {
    // What all sizes have in common is told apart from what this one costs, or sizes that did not run for a while would
    // look cheap whenever the machine is slow, and be chosen.
    const double ratio = measured.forward_us / (forward_->Predict(measured.rows) * correction_);
    if (ratio > 0) correction_ *= 1 + kSpeedStep * (std::clamp(ratio, 0.8, 1.25) - 1);
    correction_ = std::clamp(correction_, 0.05, 20.0);
    forward_->Observe(measured.rows, measured.forward_us / correction_);
  }
  if (measured.rows > 0 && known(measured.sampler_us)) {
    const double each = measured.sampler_us / static_cast<double>(measured.rows);
    sampler_row_us_ = sampler_seen_ ? sampler_row_us_ + 0.1 * (each - sampler_row_us_) : each;
    sampler_seen_ = true;
  }
  if (measured.drafting > 0 && known(measured.draft_us))
    draft_.Observe(measured.drafting, measured.draft_us / (speed_apart_ ? correction_ : 1));
}

VerifyBudget PlanBudget(const SurvivalCurve& curve, int sequences, int drafting, int per_sequence, int drafts_most,
                        const VerifyCost& cost) {
  const int all = drafting * per_sequence;
  const int most = std::min(drafts_most, all);
  VerifyBudget best;
  if (curve.empty() || most < 1) return best;
  const auto offer = [&](int drafts) {
    const double gain = drafting * curve.Gain(static_cast<double>(drafts) / all);
    const VerifyBudget budget{.drafts = drafts,
                              .drafting = drafting,
                              .depth = per_sequence,
                              .draft_size = drafting,
                              .expected_rows = static_cast<double>(drafts),
                              .expected_tokens = sequences + gain,
                              .predicted_us = cost.Predict(sequences + drafts, drafting)};
    if (best.drafts == 0 || budget.rate() > best.rate()) best = budget;
  };
  // Gain and cost are linear between the points of the one and the knots of the other, so the rate has its extremes
  // there.
  constexpr int kFew = 64;
  for (int drafts = 1; drafts <= std::min(kFew, most); ++drafts) offer(drafts);
  for (int point = 1; most > kFew && point <= SurvivalCurve::kPoints; ++point) {
    const auto drafts = static_cast<int>(std::int64_t{all} * point / SurvivalCurve::kPoints);
    if (drafts >= 1 && drafts <= most) offer(drafts);
  }
  for (int knot = 0; most > kFew && knot < CostCurve::kKnots; ++knot) {
    const std::int64_t drafts = CostCurve::KnotRows(knot) - sequences;
    if (drafts >= 1 && drafts <= most) offer(static_cast<int>(drafts));
  }
  offer(most);
  return best;
}

FoundDrafts FoundDrafts::Of(std::span<const float> survivals) {
  FoundDrafts found;
  for (const float survival : survivals) {
    if (!(survival > 0 && survival <= 1)) continue;  // of no use
    const auto at = kv::Idx(SurvivalClasses::ClassOf(survival));
    ++found.count;
    found.rows[at] += 1;
    found.gain[at] += static_cast<double>(survival);
  }
  return found;
}

VerifyBudget PlanDepth(const SurvivalClasses& classes, const DraftLoad& load, int depth_most, const VerifyCost& cost) {
  VerifyBudget best;
  if (load.drafts_most < 1) return best;
  // Rows and tokens of what is found and of each drafting sequence's first `depth` drafts, by class.
  std::array<double, SurvivalClasses::kClasses> rows = load.found.rows, gain = load.found.gain;
  const int deepest = load.drafting < 1 ? 0 : std::min(depth_most, classes.places());
  for (int depth = load.found.count > 0 ? 0 : 1; depth <= deepest; ++depth) {
    const int drafting = depth > 0 ? load.drafting : 0;
    double rows_above = 0, gain_above = 0;
    for (int at = SurvivalClasses::kClasses - 1; at >= 0; --at) {
      if (depth > 0) {
        rows[kv::Idx(at)] += drafting * classes.Rows(depth - 1, at);
        gain[kv::Idx(at)] += drafting * classes.Gain(depth - 1, at);
      }
      if (rows[kv::Idx(at)] < 1e-6) continue;
      rows_above += rows[kv::Idx(at)];
      gain_above += gain[kv::Idx(at)];
      const double verified = std::min(rows_above, static_cast<double>(load.drafts_most));
      const VerifyBudget budget{.drafts = std::min(drafting * depth + load.found.count, load.drafts_most),
                                .drafting = drafting,
                                .depth = depth,
                                .least = SurvivalClasses::Lowest(at),
                                .draft_size = drafting * depth,
                                .expected_rows = verified,
                                .expected_tokens = load.sequences + gain_above * verified / rows_above,
                                .predicted_us = cost.PredictMean(load.sequences + verified, drafting * depth)};
      if (best.drafts == 0 || budget.rate() > best.rate()) best = budget;
    }
  }
  return best;
}

void ChooseRows(std::span<const float> survivals, int per_sequence, int budget, std::span<int> lengths,
                std::vector<float>& scratch, float lowest) {
  CHECK(survivals.size() == lengths.size() * kv::Idx(per_sequence)) << survivals.size() << " " << lengths.size();
  std::ranges::fill(lengths, 0);
  const auto total = static_cast<int>(survivals.size());
  const int taken = std::clamp(budget, 0, total);
  if (taken == 0) return;
  // The smallest survival that is taken; ties go to the front, so that every device chooses alike.
  scratch.assign(survivals.begin(), survivals.end());
  std::ranges::nth_element(scratch, scratch.begin() + taken - 1, std::greater<>());
  const float least = std::max(scratch[kv::Idx(taken - 1)], lowest);
  int ties = taken - static_cast<int>(std::ranges::count_if(survivals, [&](float s) { return s > least; }));
  // A sequence's survivals do not grow, so what is taken of it is its front.
  for (int i = 0; i < total; ++i) {
    const float survival = survivals[kv::Idx(i)];
    if (survival > least || (survival == least && ties-- > 0)) ++lengths[kv::Idx(i / per_sequence)];
  }
}

VerifyPlanner::VerifyPlanner(const VerifyOptions& options, CostCurve& forward)
    : options_(options), cost_(forward, options.draft_cost, options.any_size), trial_gap_(options.trial_steps) {}

VerifyBudget VerifyPlanner::Next(StepId step, int sequences, int drafting, int rows_most,
                                 std::span<const float> found) {
  CHECK(found.empty() || options_.any_size) << "found drafts where steps have few sizes";
  for (Seen& seen : waiting_) {
    if (seen.step < 0 || seen.step > step - 2) continue;
    ++averaged_;
    average_.Blend(seen.curve, std::max(kNewest, 1.0 / averaged_));
    classes_.Blend(seen.classes, std::max(kNewestPooled, 1.0 / averaged_));
    seen.step = -1;
  }
  DraftLoad load{.sequences = sequences, .drafting = drafting, .found = FoundDrafts::Of(found)};
  load.drafts_most = std::min(rows_most - sequences, drafting * options_.drafts + load.found.count);
  const VerifyBudget without = WithoutPass(load);
  ++since_trial_;
  if (load.drafts_most < 1 || drafting < 1) return without;
  VerifyBudget best = options_.any_size
                          ? PlanDepth(classes_, load, options_.drafts, cost_)
                          : PlanBudget(average_, sequences, drafting, options_.drafts, load.drafts_most, cost_);
  const VerifyBudget predicted =
      best.drafting == 0 || best.rate() < without.rate() * options_.gain_least ? without : best;
  const Worth& worth = worth_[WorthClass(sequences)];
  const bool seen_to_lose = options_.any_size && worth.drafted < kWorthLeast * worth.plain;
  best = seen_to_lose ? without : predicted;
  // What was best before is clearly worse now: something has changed, so it is worth trying more often again.
  const VerifyBudget before = !options_.any_size   ? Priced(std::min(last_.drafts, load.drafts_most), load)
                              : last_.drafting > 0 ? PricedDepth(last_.depth, last_.least, drafting, load)
                                                   : without;
  if (best.rate() > kChanged * before.rate()) trial_gap_ = options_.trial_steps;
  last_ = best;
  if (best.drafting > 0) {
    const double undrafted_us = cost_.PredictMean(sequences + best.expected_rows, 0);
    draft_price_ = (best.predicted_us - undrafted_us) / drafting;
    if (best.expected_rows > 0) row_price_ = (undrafted_us - cost_.Predict(sequences, 0)) / best.expected_rows;
    trial_left_ = 0;
  }
  if (trial_left_ > 0) {
    since_trial_ = 0;
    --trial_left_;
    return TryWaiting(predicted, load);
  }
  if (since_trial_ < trial_gap_ && knows_survivals()) return best;
  since_trial_ = 0;
  // Where drafts gain little, a step without is what they must be measured against.
  const bool doubtful = options_.any_size && best.drafting > 0 && best.rate() < kClear * without.rate();
  const bool waits = options_.any_size && best.drafting == 0;
  const int gap_most = doubtful ? kComparedEvery : waits ? options_.waiting_steps_most : options_.trial_steps_most;
  trial_gap_ = std::min(trial_gap_ * (waits ? kWaitingGrows : 2), std::max(gap_most, options_.trial_steps));
  if (!options_.any_size) return Try(best, load);
  if (best.drafting > 0) return TryDepth(best, without, load);
  trial_left_ = (predicted.drafting > 0 ? options_.retry_run : options_.trial_run) - 1;
  return TryWaiting(predicted, load);
}

VerifyBudget VerifyPlanner::WithoutPass(const DraftLoad& load) {
  const VerifyBudget none = Priced(0, load);
  if (load.found.count == 0) return none;
  const VerifyBudget found = PlanDepth({}, {load.sequences, 0, load.drafts_most, load.found}, 0, cost_);
  if (found.drafts == 0 || found.rate() < none.rate() * options_.gain_least) return none;
  const Worth& worth = worth_[WorthClass(load.sequences)];
  if (worth.found >= kFoundWorthLeast * worth.plain || ++found_waits_ % kFoundTrialSteps == 0) return found;
  return none;
}

VerifyBudget VerifyPlanner::Priced(int drafts, const DraftLoad& load) const {
  const int drafting = drafts > 0 ? load.drafting : 0;
  VerifyBudget budget{.drafts = drafts,
                      .drafting = drafting,
                      .depth = drafts > 0 ? options_.drafts : 0,
                      .draft_size = drafting,
                      .expected_rows = static_cast<double>(drafts),
                      .expected_tokens = static_cast<double>(load.sequences),
                      .predicted_us = cost_.Predict(load.sequences + drafts, drafting)};
  if (drafts > 0)
    budget.expected_tokens += drafting * average_.Gain(static_cast<double>(drafts) / (drafting * options_.drafts));
  return budget;
}

VerifyBudget VerifyPlanner::PricedDepth(int depth, float least, int drafting, const DraftLoad& load) const {
  VerifyBudget budget{.drafts = std::min(drafting * depth + load.found.count, load.drafts_most),
                      .drafting = drafting,
                      .depth = depth,
                      .least = least,
                      .draft_size = drafting * depth,
                      .expected_tokens = static_cast<double>(load.sequences)};
  for (int at = 0; at < SurvivalClasses::kClasses; ++at) {
    if (SurvivalClasses::Lowest(at) < least) continue;
    budget.expected_rows += load.found.rows[kv::Idx(at)];
    budget.expected_tokens += load.found.gain[kv::Idx(at)];
    for (int place = 0; place < std::min(depth, classes_.places()); ++place) {
      budget.expected_rows += drafting * classes_.Rows(place, at);
      budget.expected_tokens += drafting * classes_.Gain(place, at);
    }
  }
  budget.predicted_us = cost_.PredictMean(load.sequences + budget.expected_rows, budget.draft_size);
  return budget;
}

// What should gain and was seen to lose is done again as it would be done. Where nothing should gain, all depths of a
// few sequences, but of their drafts only what is likely: a trial that is likely to lose must not cost what drafting
// for everybody does.
VerifyBudget VerifyPlanner::TryWaiting(const VerifyBudget& predicted, const DraftLoad& load) const {
  if (predicted.drafting > 0) return predicted;
  return PricedDepth(options_.drafts, kTrialLeast, std::max(1, load.drafting / kTrialPart), load);
}

// None and another depth in turn.
VerifyBudget VerifyPlanner::TryDepth(const VerifyBudget& best, const VerifyBudget& without, const DraftLoad& load) {
  const int number = trials_++;
  if (number % 2 == 0) return without;
  // The deepest one every other time: it is the only one that says how likely its last drafts are.
  const int depth = number % 4 == 1 ? options_.drafts : 1 + number / 4 % options_.drafts;
  // And a little less likely ones than pay, so that it is seen whether they do.
  return PricedDepth(depth, best.least * 0.75F, load.drafting, load);
}

// Another size in turn: none, half, double. Where none is best, a few rows of a few sequences: a trial that is likely
// to lose must not cost what drafting for everybody does.
VerifyBudget VerifyPlanner::Try(const VerifyBudget& best, const DraftLoad& load) {
  if (best.drafts == 0) {
    DraftLoad few = load;
    few.drafting = std::max(1, load.drafting / kTrialPart);
    return Priced(std::clamp(load.sequences / 2, 1, std::min(load.drafts_most, few.drafting * options_.drafts)), few);
  }
  const std::array other = {0, best.drafts / 2, best.drafts * 2};
  const int drafts = other[static_cast<std::size_t>(trials_++) % other.size()];
  return Priced(std::clamp(drafts, 0, load.drafts_most), load);
}

void VerifyPlanner::Report(StepId step, std::span<const float> survivals, int per_sequence,
                           const VerifyCost::Measured& measured) {
  // The first draft passes after a pause find nothing of the head in the caches, and a trial has few others.
  plain_in_row_ = measured.drafting > 0 ? 0 : plain_in_row_ + 1;
  if (plain_in_row_ >= kPauseSteps) drafted_in_row_ = 0;
  if (measured.drafting > 0) ++drafted_in_row_;
  VerifyCost::Measured told = measured;
  if (cold()) told.draft_us = 0;
  cost_.Observe(told);
  if (survivals.empty()) return;
  Seen* place = &waiting_.front();
  for (Seen& seen : waiting_) {
    if (seen.step < place->step) place = &seen;
  }
  *place = {.step = step, .curve = {}, .classes = {}};
  if (options_.any_size) {
    place->classes = SurvivalClasses::Of(survivals, per_sequence);
  } else {
    place->curve = SurvivalCurve::Of(survivals, per_sequence);
  }
}

double VerifyPlanner::Saved(std::int64_t sequences, std::int64_t tokens, const VerifyCost::Measured& measured) const {
  if (sequences < 1) return 0;
  const double steps = static_cast<double>(tokens) / static_cast<double>(sequences);
  return steps * cost_.Predict(sequences, 0) - measured.forward_us - measured.sampler_us - measured.draft_us;
}

std::size_t VerifyPlanner::WorthClass(std::int64_t sequences) {
  const auto octave = static_cast<std::size_t>(std::bit_width(static_cast<std::uint64_t>(sequences)));
  return std::min(octave, std::tuple_size_v<decltype(worth_)> - 1);
}

void VerifyPlanner::Judge(std::int64_t sequences, std::int64_t drafting, std::int64_t found, std::int64_t tokens,
                          const VerifyCost::Measured& measured) {
  const double us = measured.forward_us + measured.sampler_us + measured.draft_us;
  if (sequences < 1 || !(measured.forward_us > 0 && us < kLongest)) return;
  const double plain_us = cost_.Predict(sequences, 0);
  const double seen = std::min(static_cast<double>(tokens) / static_cast<double>(sequences) * plain_us / us, 8.0);
  Worth& worth = worth_[WorthClass(sequences)];
  if (drafting == 0) {
    double& of = found > 0 ? worth.found : worth.plain;
    of += kWorthStep * (seen - of);
  } else if (!cold() && drafting * 2 >= sequences && found == 0) {
    worth.drafted += kWorthStep * (seen - worth.drafted);
  }
}

bool VerifyPlanner::cold() const {
  return options_.any_size && drafted_in_row_ > 0 && drafted_in_row_ <= kColdSteps;
}

bool VerifyPlanner::Drafts(QuenchState& sequence) const {
  if (sequence.rest == 0) return true;
  --sequence.rest;
  return false;
}

void VerifyPlanner::Accepted(QuenchState& sequence, std::span<const float> survivals, int accepted) {
  for (std::size_t i = 0; i < survivals.size(); ++i) classes_.Verified(survivals[i], static_cast<int>(i) < accepted);
  Accepted(sequence, static_cast<int>(survivals.size()), accepted);
}

// Drafting pays for a sequence when the tokens it brings are worth more, at the step's rate, than its share of the
// draft pass and the rows that verify it.
void VerifyPlanner::Accepted(QuenchState& sequence, int verified, int accepted) const {
  constexpr float kWindow = 32;
  constexpr int kRestMost = 512;
  sequence.proposed = std::min(sequence.proposed + 1, kWindow);
  sequence.accepted += (static_cast<float>(accepted) - sequence.accepted) / sequence.proposed;
  if (sequence.proposed < 12 || last_.drafting == 0) return;
  const double price = draft_price_ + verified * row_price_;
  if (sequence.accepted >= 0.8 * last_.rate() * price) {
    sequence.next_rest = 16;
    return;
  }
  sequence.rest = sequence.next_rest;
  sequence.next_rest = std::min(sequence.next_rest * 2, kRestMost);
  // Three quarters of what it takes to decide again.
  sequence.proposed = 9;
}

}  // namespace galley::sched
