// SPDX-License-Identifier: Apache-2.0
#include "galley/sched/vote.h"

#include <fmt/core.h>

#include <algorithm>

#include "galley/base/math.h"

namespace galley::sched {

Result<Permission> Vote(std::span<const RankSummary> summaries, const VoteOptions& options) {
  if (summaries.empty()) return Err(ErrorCode::kInvalidArgument, "a vote needs at least one rank", "summaries");
  bool all = true, any_waited = false;
  for (const RankSummary& rank : summaries) {
    if (rank.step != summaries.front().step) {
      return Err(ErrorCode::kInvalidArgument,
                 fmt::format("one rank is at step {} and another at step {}; ranks must vote on the same step",
                             summaries.front().step, rank.step),
                 "summaries");
    }
    all = all && rank.prefill_work;
    any_waited = any_waited || (rank.prefill_work && rank.prefill_waited_steps >= options.any_wait_steps);
  }
  if (any_waited) return Permission{.prefill = true, .point = VotePoint::kAny};
  if (all && summaries.front().step % options.all_period == 0) {
    return Permission{.prefill = true, .point = VotePoint::kAll};
  }
  return Permission{};
}

StepShape AgreeOnShape(std::span<const RankRows> rows, const VoteOptions& options) {
  StepShape shape;
  for (const RankRows& rank : rows) {
    shape.decode_rows = std::max(shape.decode_rows, rank.decode);
    shape.prefill_rows = std::max(shape.prefill_rows, rank.prefill);
  }
  shape.prefilled = shape.prefill_rows > 0;
  if (shape.decode_rows > 0 && !options.decode_sizes.empty()) {
    const auto size = std::ranges::lower_bound(options.decode_sizes, shape.decode_rows);
    shape.decode_rows =
        size != options.decode_sizes.end() ? *size : RoundUp(shape.decode_rows, options.decode_sizes.back());
  }
  shape.prefill_rows = RoundUp(shape.prefill_rows, options.prefill_multiple);
  return shape;
}

}  // namespace galley::sched
