// SPDX-License-Identifier: Apache-2.0
// One step as plain data, from the scheduler to the executor, and its result back. A plan belongs to the scheduler and
// stays valid until the step is reported done or failed. The executor runs `ops` in order, then the decode rows, then
// the prefill rows, all on one stream, so a plan may rely on everything that earlier plans wrote.
#pragma once

#include <cstdint>
#include <vector>

#include "galley/base/strong_id.h"
#include "galley/kv/snapshot_store.h"
#include "galley/sched/request.h"

namespace galley::sched {

// Consecutive rows of one sequence.
struct SequenceRows {
  SequenceId sequence;
  RequestId request;
  int branch = 0;
  SlotId slot;
  // Prefill: exact. Decode: the first row is the newest token; with a step in flight its position is known only to the
  // device and `begin` is the least it can be.
  Position begin = 0;
  int rows = 0;             // decode: the newest token and the drafts that follow it, at most
  Position row_limit = 0;   // rows at or above it are dead
  Position write_from = 0;  // rows below it must not write history
  Position tail_from = 0;   // rows at or above it run the decoder layers
  Position encoder_floor = 0;
  Position decoder_floor = 0;
  int first_draw = 0;  // in StepPlan::draws; the last row's logits are drawn from once for each
  int draws = 0;

  [[nodiscard]] Position end() const { return begin + rows; }
};

// Entries [first, first + count) of a slot's block table are StepPlan::blocks[offset, offset + count).
struct TableUpdate {
  SlotId slot;
  int first = 0;
  int offset = 0;
  int count = 0;
};

// Copies of state, before the rows of the step.
struct StateOp {
  enum class Kind {
    kFork,     // slot `from` to slot `to`, block `from_block` to block `to_block`
    kSave,     // slot `from` and block `from_block` to `snapshot`, as of `position`
    kRestore,  // `snapshot` to slot `to` and block `to_block`
  };
  Kind kind = Kind::kFork;
  SequenceId sequence;  // for whom; fails with the step
  SlotId from;
  SlotId to;
  kv::SnapshotId snapshot;
  BlockId from_block;     // invalid: the position is a block border
  BlockId to_block;       // likewise
  Position position = 0;  // tokens that the copied state has seen
};

struct StepPlan {
  StepId id = -1;
  std::vector<StateOp> ops;
  std::vector<SequenceRows> decode;
  std::vector<SequenceRows> prefill;
  std::vector<SequenceId> draws;
  std::vector<TableUpdate> tables;
  std::vector<BlockId> blocks;
  int decode_rows = 0;
  int prefill_rows = 0;
  int prefill_work = 0;     // prefill rows, tail rows of a truncated prefill counted twice
  int short_of_blocks = 0;  // ready decodes left out because blocks come free only when a step in flight retires
  int over_capacity = 0;    // ready decodes left out because the step is full
  TimeUs predicted_us = 0;

  [[nodiscard]] bool empty() const { return ops.empty() && decode.empty() && prefill.empty(); }
  // Room for any step of so many sequences and rows, but for tables of prefixes that are found.
  void Reserve(int slots, int rows);
  void Reset(StepId step);
};

struct DrawResult {
  SequenceId sequence;
  int first = 0;      // in StepDone::token_ids
  int count = 0;      // accepted drafts and the token drawn after them: at least 1
  bool stop = false;  // the last of them ends the sequence
  int dropped = 0;    // tokens drawn behind the last, which the device went on from before the stop was found
};

struct StepDone {
  StepId step = -1;
  TimeUs elapsed_us = 0;          // device time; 0: unknown
  std::vector<DrawResult> draws;  // one for each of the plan's draws, in its order
  std::vector<TokenId> token_ids;
};

}  // namespace galley::sched
