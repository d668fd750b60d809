// SPDX-License-Identifier: Apache-2.0
#include "galley/sched/options.h"

#include <fmt/core.h>

#include <limits>
#include <string_view>

namespace galley::sched {

Status SchedulerOptions::Validate() const {
  struct Range {
    std::string_view field;
    std::int64_t value, least, most;
  };
  constexpr std::int64_t kMany = std::numeric_limits<std::int32_t>::max() / 2;
  const Range ranges[] = {
      {"blocks", blocks, 1, kMany},
      {"slots", slots, 1, 1 << 20},
      {"snapshots", snapshots, 0, 1 << 20},
      {"drafts", drafts, 0, replay.backtrack},
      {"prefill_rows_min", prefill_rows_min, 1, kMany},
      // Room for one decode and one least chunk.
      {"step_rows_max", step_rows_max, std::int64_t{prefill_rows_min} + 1 + drafts, kMany},
      {"steps_in_flight_max", steps_in_flight_max, 1, 4},
      {"max_seq_len", max_seq_len, 2, kMany},
      {"itl_target_us", itl_target_us, 0, kMany},
      {"queue_max", queue_max, 1, kMany},
      {"queue_tokens_max", queue_tokens_max, 1, std::numeric_limits<std::int64_t>::max()},
      {"branches_max", branches_max, 1, 1 << 16},
      {"max_wait_us", max_wait_us, 1, std::numeric_limits<std::int64_t>::max() / 4},
      {"priority_step_us", priority_step_us, 0, kMany},
      {"share_wait_us", share_wait_us, 0, std::numeric_limits<std::int64_t>::max() / 4},
  };
  for (const Range& range : ranges) {
    if (range.value >= range.least && range.value <= range.most) continue;
    return Err(ErrorCode::kInvalidArgument,
               fmt::format("is {}; must be {} to {}", range.value, range.least, range.most), std::string(range.field));
  }
  return replay.Validate();
}

}  // namespace galley::sched
