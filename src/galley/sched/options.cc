// SPDX-License-Identifier: Apache-2.0
#include "galley/sched/options.h"

#include <fmt/core.h>

#include <array>
#include <limits>
#include <string_view>

namespace galley::sched {

Status SchedulerOptions::Validate() const {
  struct Range {
    std::string_view field;
    std::int64_t value, least, most;
  };
  constexpr std::int64_t kMany = std::numeric_limits<std::int32_t>::max() / 2;
  const std::array ranges = {
      Range{"blocks", blocks, 1, kMany},
      Range{"slots", slots, 1, 1 << 20},
      Range{"snapshots", snapshots, 0, 1 << 20},
      Range{"drafts", drafts, 0, replay.backtrack},
      Range{"prefill_rows_min", prefill_rows_min, 1, kMany},
      // Room for one decode and one least chunk.
      Range{"step_rows_max", step_rows_max, std::int64_t{prefill_rows_min} + 1 + drafts, kMany},
      Range{"steps_in_flight_max", steps_in_flight_max, 1, 4},
      Range{"max_seq_len", max_seq_len, 2, kMany},
      Range{"itl_target_us", itl_target_us, 0, kMany},
      Range{"queue_max", queue_max, 1, kMany},
      Range{"queue_tokens_max", queue_tokens_max, 1, std::numeric_limits<std::int64_t>::max()},
      Range{"branches_max", branches_max, 1, 1 << 16},
      Range{"max_wait_us", max_wait_us, 1, std::numeric_limits<std::int64_t>::max() / 4},
      Range{"priority_step_us", priority_step_us, 0, kMany},
      Range{"share_wait_us", share_wait_us, 0, std::numeric_limits<std::int64_t>::max() / 4},
  };
  for (const Range& range : ranges) {
    if (range.value >= range.least && range.value <= range.most) continue;
    return Err(ErrorCode::kInvalidArgument,
               fmt::format("is {}; must be {} to {}", range.value, range.least, range.most), std::string(range.field));
  }
  return replay.Validate();
}

}  // namespace galley::sched
