// SPDX-License-Identifier: Apache-2.0
// Settings of one scheduler. The memory plan decides the counts; the rest has defaults that suit a server.
#pragma once

#include <cstdint>

#include "galley/base/error.h"
#include "galley/kv/replay.h"
#include "galley/sched/cost_curve.h"
#include "galley/sched/request.h"

namespace galley::sched {

struct SchedulerOptions {
  // Memory, from the plan made at start.
  int blocks = 0;
  int slots = 0;      // sequences that can run at once
  int snapshots = 0;  // places for saved slots; 0: off

  int step_rows_max = 8192;            // rows of one step, decode and prefill together
  int drafts = 0;                      // tokens that a decode step may verify beside the newest one
  int steps_in_flight_max = 2;         // 1: synchronous
  std::int64_t max_seq_len = 1 << 20;  // prompt and output of one sequence

  TimeUs itl_target_us = 50'000;  // predicted step time that prefill chunks are cut to while sequences decode
  int prefill_rows_min = 128;     // a chunk is never cut below this

  int queue_max = 4096;                      // requests waiting to start; more are refused
  std::int64_t queue_tokens_max = 16 << 20;  // prompt tokens waiting to start
  int branches_max = 128;                    // n of one request
  TimeUs max_wait_us = 600'000'000;          // default of Request::max_wait_us
  TimeUs priority_step_us = 10'000'000;      // one priority level counts as this much earlier arrival
  TimeUs share_wait_us = 2'000'000;          // wait for a block that another computes, without progress of that one

  kv::ReplaySpec replay = {};
  // One rank of a flagship model on one GPU, roughly; corrected from the first steps on.
  CostCurve::Prior decode_cost = {.base_us = 8'000, .row_us = 20};
  CostCurve::Prior prefill_cost = {.base_us = 4'000, .row_us = 25};

  // Sequences that can decode in one step: prompts always keep room for the least chunk.
  [[nodiscard]] int decode_capacity() const { return (step_rows_max - prefill_rows_min) / (1 + drafts); }
  // Steps that a ready decode can be left out of for lack of room in the step.
  [[nodiscard]] int decode_wait_bound() const { return (slots + decode_capacity() - 1) / decode_capacity() - 1; }

  // kInvalidArgument naming field, value and limit.
  [[nodiscard]] Status Validate() const;
};

}  // namespace galley::sched
