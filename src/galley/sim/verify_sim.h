// SPDX-License-Identifier: Apache-2.0
// Verify-length planning against synthetic devices and traffic: tokens per second of the real planner, of fixed verify
// lengths and of no speculation, on a virtual clock. The planner knows nothing of the device but the times of its
// steps, and sees confidences two steps late, as in production. Pure; equal options give equal results.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace galley::sim {

// How long steps take. Times in microseconds.
struct DeviceModel {
  std::string_view name;
  double base_us, flat_rows, row_us;  // forward: base, and row_us for each row beyond flat_rows
  double tile_rows, tile_us;          // and tile_us for each begun tile of rows; tile_rows 0: none
  double draft_us, draft_row_us;      // draft pass, and its part for each sequence with all drafts
  double sampler_row_us;
  bool any_size = false;  // steps may have any number of rows, and drafts any depth: a shallower one costs less
};

// How likely drafts are: each sequence has a quality of its own, which each step and draft varies.
struct TrafficModel {
  std::string_view name;
  double quality_low, quality_high;  // sequences alternate between the two
  double spread;                     // of the logit, from step to step
};

[[nodiscard]] std::vector<DeviceModel> VerifyDevices();
[[nodiscard]] std::vector<TrafficModel> VerifyTraffic();
[[nodiscard]] std::vector<int> VerifyLoads();

struct VerifyCase {
  DeviceModel device;
  TrafficModel traffic;
  int sequences = 1;
  int steps = 2000;
  std::uint64_t seed = 1;
};

// As in the table of docs/scheduler.md.
[[nodiscard]] VerifyCase VerifyCaseOf(const DeviceModel& device, const TrafficModel& traffic, int load,
                                      std::uint64_t seed);

inline constexpr int kPlanned = -1;
// Tokens a second with `drafts` verified drafts a sequence, or with the planner (kPlanned), from its first step on.
[[nodiscard]] double VerifyThroughput(const VerifyCase& setting, int drafts);

struct VerifyOutcome {
  double none = 0;        // tokens a second without speculation
  double best_fixed = 0;  // of lengths 0 to 5, in hindsight
  int best_length = 0;
  double planned = 0;

  [[nodiscard]] double over_none() const { return planned / none; }
  [[nodiscard]] double over_best() const { return planned / best_fixed; }
};
[[nodiscard]] VerifyOutcome CompareVerify(const VerifyCase& setting);

}  // namespace galley::sim
