// SPDX-License-Identifier: Apache-2.0
// Agreement of ranks on what a step carries. Each attention-data-parallel rank has its own scheduler, but the ranks
// meet inside the layers, so all of them must know whether a step has prefill rows and how many rows it is padded to.
// Both rounds are pure functions that every rank evaluates on the same summaries, so no rank leads. docs/scheduler.md.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "galley/base/error.h"

namespace galley::sched {

struct VoteOptions {
  int all_period = 1;       // every so many steps is an ALL point; >= 1
  int any_wait_steps = 16;  // a rank that has waited so long makes any step an ANY point; >= 1
  // Decode rows are padded to the next of these (ascending), above the last to its next multiple.
  std::vector<int> decode_sizes = {1, 2, 4, 8, 16, 32, 64, 128, 256};
  int prefill_multiple = 128;
};

// First round: before planning.
struct RankSummary {
  std::int64_t step = 0;         // of the group; equal on all ranks
  bool prefill_work = false;     // the rank has prompt rows that it could run now
  int prefill_waited_steps = 0;  // steps in a row that it had some and was not allowed to
};

enum class VotePoint { kNone, kAll, kAny };
struct Permission {
  bool prefill = false;
  VotePoint point = VotePoint::kNone;
};

// kInvalidArgument when there are no summaries or they are of different steps.
[[nodiscard]] Result<Permission> Vote(std::span<const RankSummary> summaries, const VoteOptions& options);

// Second round: after planning, what each rank really scheduled.
struct RankRows {
  int decode = 0;
  int prefill = 0;
};
struct StepShape {
  int decode_rows = 0;     // padded, the same on every rank; 0: no rank decodes
  int prefill_rows = 0;    // padded; 0: the step has no prefill launch
  bool prefilled = false;  // some rank scheduled prompt rows: waiting counters may start over
};
[[nodiscard]] StepShape AgreeOnShape(std::span<const RankRows> rows, const VoteOptions& options);

}  // namespace galley::sched
