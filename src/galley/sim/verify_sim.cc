// SPDX-License-Identifier: Apache-2.0
#include "galley/sim/verify_sim.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "galley/base/rng.h"
#include "galley/sched/options.h"
#include "galley/sched/verify_plan.h"

namespace galley::sim {
namespace {

constexpr int kDrafts = 5;
constexpr int kSequenceSteps = 150;  // mean life of a sequence
// Part by which drafts get less likely with each position.
constexpr double kFade = 0.1;

double Sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

// Every number depends on what it is for alone (step, sequence, draft), so that all policies meet the same luck.
class VerifyWorld {
 public:
  explicit VerifyWorld(const VerifyCase& setting) : setting_(setting) {
    for (int i = 0; i < setting.sequences; ++i) logits_.push_back(Renewed(0, i));
  }

  // Survivals of the step's drafts, `depth` a sequence.
  void Draft(int step, const std::vector<int>& sequences, int depth = kDrafts) {
    depth_ = depth;
    survivals_.clear();
    confidences_.clear();
    for (const int index : sequences) {
      const double mood =
          logits_[static_cast<std::size_t>(index)] + setting_.traffic.spread * Normal(kMood, step, index);
      for (int i = 0; i < depth; ++i) {
        const double noise = 0.5 * setting_.traffic.spread * Normal(kNoise, step, index * kDrafts + i);
        confidences_.push_back(static_cast<float>(Sigmoid(mood - kFade * i + noise)));
      }
    }
    survivals_ = confidences_;
    const auto each = static_cast<std::size_t>(depth);
    for (std::size_t i = 0; i < survivals_.size(); i += each)
      sched::ToSurvivals(std::span(survivals_).subspan(i, each));
  }

  // Accepted drafts of the i-th sequence that Draft was asked for.
  [[nodiscard]] int Accept(int step, int sequence, std::size_t i, int verified) const {
    int accepted = 0;
    while (accepted < verified &&
           Uniform(kAccept, step, sequence * kDrafts + accepted) <
               static_cast<double>(
                   confidences_[i * static_cast<std::size_t>(depth_) + static_cast<std::size_t>(accepted)])) {
      ++accepted;
    }
    return accepted;
  }

  [[nodiscard]] sched::VerifyCost::Measured Time(int step, int rows, int drafting, int depth) const {
    const DeviceModel& device = setting_.device;
    const int size = device.any_size ? drafting * depth : drafting;  // of the draft pass, as the planner counts
    double forward = device.base_us + device.row_us * std::max(0.0, rows - device.flat_rows);
    if (device.tile_rows > 0) forward += device.tile_us * std::ceil(rows / device.tile_rows);
    const double draft =
        drafting > 0 ? device.draft_us + device.draft_row_us * size / (device.any_size ? kDrafts : 1) : 0;
    // Five per cent either way, and now and then a step that takes three times as long.
    const double noise = Uniform(kHiccup, step, 0) < 0.002 ? 3 : 0.95 + 0.1 * Uniform(kTime, step, 0);
    return {.rows = rows,
            .drafting = size,
            .forward_us = forward * noise,
            .sampler_us = device.sampler_row_us * rows * (0.95 + 0.1 * Uniform(kTime, step, 1)),
            .draft_us = draft * (0.95 + 0.1 * Uniform(kTime, step, 2))};
  }

  // Sequences that end make room for others; `renewed` is told which.
  template <typename Renewals>
  void Renew(int step, Renewals renewed) {
    for (int i = 0; i < setting_.sequences; ++i) {
      if (Uniform(kEnd, step, i) >= 1.0 / kSequenceSteps) continue;
      logits_[static_cast<std::size_t>(i)] = Renewed(step + 1, i);
      renewed(i);
    }
  }

  [[nodiscard]] const std::vector<float>& survivals() const { return survivals_; }

 private:
  enum What { kMood, kNoise, kAccept, kHiccup, kTime, kEnd, kQuality, kKind };

  [[nodiscard]] double Uniform(What what, int step, int index) const {
    const auto key = static_cast<std::uint64_t>(step) << 24 ^ static_cast<std::uint64_t>(index) << 4 ^ what;
    return static_cast<double>(MixBits(setting_.seed ^ MixBits(key)) >> 11) * 0x1p-53;
  }
  // The sum of four uniform numbers, scaled to a variance of one.
  [[nodiscard]] double Normal(What what, int step, int index) const {
    const auto key = static_cast<std::uint64_t>(step) << 24 ^ static_cast<std::uint64_t>(index) << 4 ^ what;
    const std::uint64_t bits = MixBits(setting_.seed ^ MixBits(key));
    double sum = 0;
    for (int part = 0; part < 4; ++part) sum += static_cast<double>(bits >> (16 * part) & 0xFFFF) / 65536;
    return (sum - 2) * std::sqrt(3.0);
  }
  [[nodiscard]] double Renewed(int step, int index) const {
    const double quality =
        Uniform(kKind, step, index) < 0.5 ? setting_.traffic.quality_low : setting_.traffic.quality_high;
    return std::log(quality / (1 - quality)) + 0.3 * Normal(kQuality, step, index);
  }

  const VerifyCase& setting_;
  std::vector<double> logits_;
  std::vector<float> confidences_, survivals_;
  int depth_ = kDrafts;  // of these
};

double Total(const sched::VerifyCost::Measured& measured) {
  return measured.forward_us + measured.sampler_us + measured.draft_us;
}

double FixedThroughput(const VerifyCase& setting, int drafts) {
  VerifyWorld world(setting);
  std::vector<int> everyone;
  for (int i = 0; i < setting.sequences && drafts > 0; ++i) everyone.push_back(i);
  double us = 0;
  std::int64_t tokens = 0;
  for (int step = 0; step < setting.steps; ++step) {
    world.Draft(step, everyone);
    tokens += setting.sequences;
    for (std::size_t i = 0; i < everyone.size(); ++i) tokens += world.Accept(step, everyone[i], i, drafts);
    us += Total(world.Time(step, setting.sequences * (1 + drafts), static_cast<int>(everyone.size()), drafts));
    world.Renew(step, [](int) {});
  }
  return static_cast<double>(tokens) / us * 1e6;
}

double PlannedThroughput(const VerifyCase& setting) {
  VerifyWorld world(setting);
  // Nothing is known of the device: the curve begins at the scheduler's own guess.
  sched::CostCurve curve(sched::SchedulerOptions().decode_cost);
  sched::VerifyOptions options{.drafts = kDrafts, .any_size = setting.device.any_size};
  if (options.any_size) options = sched::AnySize(options);
  sched::VerifyPlanner planner(options, curve);
  std::vector<sched::QuenchState> quench(static_cast<std::size_t>(setting.sequences));
  struct Done {
    sched::StepId step;
    std::vector<float> survivals;
    int depth;
    std::int64_t drafting, tokens;
    sched::VerifyCost::Measured measured;
  };
  std::optional<Done> in_flight;
  double us = 0;
  std::int64_t tokens = 0;
  std::vector<int> drafting, lengths;
  std::vector<float> scratch;
  for (int step = 0; step < setting.steps; ++step) {
    drafting.clear();
    for (int i = 0; i < setting.sequences; ++i) {
      if (planner.Drafts(quench[static_cast<std::size_t>(i)])) drafting.push_back(i);
    }
    const sched::VerifyBudget budget =
        planner.Next(step, setting.sequences, static_cast<int>(drafting.size()), setting.sequences * (1 + kDrafts));
    // The step before has ended by now.
    if (in_flight) {
      planner.Report(in_flight->step, in_flight->survivals, in_flight->depth, in_flight->measured);
      planner.Judge(setting.sequences, in_flight->drafting, 0, in_flight->tokens, in_flight->measured);
    }
    if (static_cast<int>(drafting.size()) > budget.drafting) {
      // As the executor does: another part each time.
      std::rotate(drafting.begin(), drafting.begin() + step % static_cast<int>(drafting.size()), drafting.end());
      drafting.resize(static_cast<std::size_t>(budget.drafting));
    }
    const int depth = std::max(budget.depth, 1);
    world.Draft(step, drafting, depth);
    lengths.assign(drafting.size(), 0);
    sched::ChooseRows(world.survivals(), depth, budget.drafts, lengths, scratch, budget.least);
    const std::int64_t tokens_before = tokens;
    tokens += setting.sequences;
    int rows = setting.sequences;
    for (std::size_t i = 0; i < drafting.size(); ++i) {
      const int accepted = world.Accept(step, drafting[i], i, lengths[i]);
      planner.Accepted(quench[static_cast<std::size_t>(drafting[i])],
                       std::span(world.survivals())
                           .subspan(i * static_cast<std::size_t>(depth), static_cast<std::size_t>(lengths[i])),
                       accepted);
      tokens += accepted;
      rows += lengths[i];
    }
    in_flight = Done{step,
                     world.survivals(),
                     depth,
                     static_cast<std::int64_t>(drafting.size()),
                     tokens - tokens_before,
                     world.Time(step, rows, static_cast<int>(drafting.size()), depth)};
    us += Total(in_flight->measured);
    world.Renew(step, [&](int i) { quench[static_cast<std::size_t>(i)] = {}; });
  }
  return static_cast<double>(tokens) / us * 1e6;
}

}  // namespace

std::vector<DeviceModel> VerifyDevices() {
  return {
      // Memory-bound up to some rows, then compute-bound.
      {"gpu", 8000, 192, 28, 0, 0, 450, 1.5, 0.8},
      // The same in tiles of 64 rows.
      {"gpu-tiles", 7000, 0, 0, 64, 1400, 450, 1.5, 0.8},
      // Every row costs.
      {"cpu", 4000, 0, 1100, 0, 0, 500, 150, 15, true},
      // One row costs nearly as much as a few.
      {"cpu-flat", 20'000, 0, 400, 0, 0, 1500, 60, 15, true},
  };
}

std::vector<TrafficModel> VerifyTraffic() {
  return {
      {"likely", 0.85, 0.9, 0.7},
      {"mixed", 0.25, 0.9, 0.7},
      {"unlikely", 0.2, 0.35, 0.7},
  };
}

std::vector<int> VerifyLoads() {
  return {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024};
}

VerifyCase VerifyCaseOf(const DeviceModel& device, const TrafficModel& traffic, int load, std::uint64_t seed) {
  return {.device = device, .traffic = traffic, .sequences = load, .steps = load > 64 ? 1000 : 2000, .seed = seed};
}

double VerifyThroughput(const VerifyCase& setting, int drafts) {
  return drafts == kPlanned ? PlannedThroughput(setting) : FixedThroughput(setting, drafts);
}

VerifyOutcome CompareVerify(const VerifyCase& setting) {
  VerifyOutcome outcome;
  for (int drafts = 0; drafts <= kDrafts; ++drafts) {
    const double rate = VerifyThroughput(setting, drafts);
    if (drafts == 0) outcome.none = rate;
    if (rate <= outcome.best_fixed) continue;
    outcome.best_fixed = rate;
    outcome.best_length = drafts;
  }
  outcome.planned = VerifyThroughput(setting, kPlanned);
  return outcome;
}

}  // namespace galley::sim
