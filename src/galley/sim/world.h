// SPDX-License-Identifier: Apache-2.0
// One configuration of a simulation and its traffic. Internal to the simulator.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "galley/base/rng.h"
#include "galley/sched/scheduler.h"
#include "galley/sim/fake_device.h"
#include "galley/sim/simulator.h"

namespace galley::sim {

class Dice {
 public:
  explicit Dice(std::uint64_t seed) : seed_(seed) {}
  std::uint64_t Bits() { return MixBits(seed_ ^ MixBits(count_++)); }
  // Uniform in [low, high].
  std::int64_t Between(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(Bits() % static_cast<std::uint64_t>(high - low + 1));
  }
  int Int(int low, int high) { return static_cast<int>(Between(low, high)); }
  bool Chance(double p) { return static_cast<double>(Bits() >> 11) * 0x1p-53 < p; }

 private:
  std::uint64_t seed_;
  std::uint64_t count_ = 0;
};

class World {
 public:
  World(const SimOptions& options, std::uint64_t seed, SimReport& report);
  // One group step. With `draining`, nothing new arrives.
  void Step(bool draining);
  [[nodiscard]] bool Idle() const;
  // Ledgers and pools when nothing is left, and statistics into the report.
  void Close();

 private:
  // A conversation whose next turn comes when the last one has ended.
  struct Chat {
    int turns_left = 0;
    bool thinks = false;  // the next prompt drops the output's first half
    std::uint64_t salt = 0;
  };
  struct Job {
    Script script;
    std::vector<TokenId> prompt;
    int max_tokens = 0;
    int n = 1;
    std::optional<Chat> chat;
    std::vector<std::vector<TokenId>> outputs;
    std::vector<bool> ended;
    bool started = false;
    std::int64_t arrived_step = 0;
  };
  struct Ready {  // to decode
    sched::SequenceId id;
    sched::OrderKey order;  // which tells a sequence from a later one in the same place
  };
  struct InFlight {
    sched::StepDone done;
    bool fails;
  };
  struct Rank {
    std::unique_ptr<sched::Scheduler> scheduler;
    std::unique_ptr<FakeDevice> device;
    std::deque<InFlight> in_flight;
    std::map<RequestId, Job> jobs;  // ordered: a random pick must not depend on a hash
    std::vector<int> left_out;      // by sequence: steps in a row without room for it
    int prefill_waits = 0;          // steps in a row with prompt work and no permission
    // The oldest running sequence and the step that it was last in, and for how many steps that has been so.
    std::pair<sched::OrderKey, sched::StepId> oldest_seen;
    int oldest_idle = 0;
    std::int64_t last_end = 0;  // step in which a branch ended last
  };

  [[nodiscard]] static sched::SchedulerOptions RandomOptions(Dice& dice);
  void Complain(std::string what);
  void Arrive(Rank& rank);
  void Submit(Rank& rank, std::vector<TokenId> prompt, std::optional<Chat> chat);
  void Disturb(Rank& rank);
  // Plans and runs one step; returns its device time.
  sched::TimeUs PlanAndRun(Rank& rank, bool may_prefill, sched::RankRows& rows);
  void CheckDecodeFloor(Rank& rank, const std::vector<Ready>& ready, const sched::StepPlan* plan);
  void CheckProgress(Rank& rank);
  void CheckChunk(const Rank& rank, const sched::StepPlan& plan);
  void CompleteOldest(Rank& rank);
  void Collect(Rank& rank);
  void CheckOutput(const Job& job, int branch, sched::FinishReason reason);
  void NextTurn(Rank& rank, const Job& job);
  void CheckLedger(Rank& rank);
  void Digest(std::uint64_t value) { report_.digest = MixBits(report_.digest ^ value); }

  const SimOptions& options_;
  SimReport& report_;
  Dice dice_;
  sched::SchedulerOptions settings_;
  sched::VoteOptions vote_;
  double fault_rate_;
  double cancel_rate_;
  int load_;  // live requests per rank that arrivals aim at
  int families_;
  int prompt_max_;
  int output_max_;
  std::vector<Rank> ranks_;
  sched::TimeUs now_ = 0;
  std::int64_t step_ = 0;
  std::int64_t next_request_ = 0;
};

}  // namespace galley::sim
