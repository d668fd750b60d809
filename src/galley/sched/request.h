// SPDX-License-Identifier: Apache-2.0
// What goes into the scheduler and what comes out: requests, and per request a report of its start, its tokens and
// exactly one terminal event for each branch. Plain data; times are microseconds of the caller's clock.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "galley/base/error.h"
#include "galley/base/strong_id.h"
#include "galley/kv/block_cache.h"
#include "galley/kv/block_key.h"
#include "galley/kv/replay.h"

namespace galley::sched {

using TimeUs = std::int64_t;
using StepId = std::int64_t;

// Place of a sequence in the scheduler. Reused only when neither the sequence nor a step in flight can name it.
using SequenceId = StrongId<struct SequenceIdTag>;

struct Request {
  RequestId id;  // unique among live requests
  std::vector<TokenId> prompt;
  kv::KeyChain keys;  // kv::MakeKeyChain of the prompt, salt included; made by the submitter, off the rank thread
  int max_tokens = 1;
  int n = 1;                                   // branches that share the prompt
  int priority = 0;                            // higher first; one level is worth SchedulerOptions::priority_step_us
  TimeUs max_wait_us = 0;                      // longest wait for the first row; 0: the scheduler's default
  TimeUs deadline_us = 0;                      // absolute end of the whole request; 0: none
  bool use_cache = true;                       // false: neither finds nor leaves blocks
  bool prompt_logprobs = false;                // every prompt row runs all layers, so no prefix hit
  std::vector<Position> snapshot_points = {};  // ascending, within the prompt: where the next turn will match
  bool snapshot_at_end = false;                // the next turn will contain the output
};

enum class FinishReason {
  kStop,       // the model ended, or a stop condition of the engine was met
  kLength,     // max_tokens
  kCancelled,  // by the client
  kError,      // see Finished::error
};
[[nodiscard]] std::string_view Label(FinishReason reason);

// How a request began: emitted once, when its first rows are planned.
struct Started {
  RequestId request;
  TimeUs waited_us = 0;
  kv::StartKind kind = kv::StartKind::kCold;
  Position cached_tokens = 0;                // history found in the cache
  Position replayed_tokens = 0;              // of those, computed again to rebuild state
  kv::HitLimit limit = kv::HitLimit::kNone;  // why no more were found
};

struct Tokens {
  RequestId request;
  int branch = 0;
  int first = 0;  // in OutputBatch::token_ids
  int count = 0;
};

struct Finished {
  RequestId request;
  int branch = 0;
  FinishReason reason = FinishReason::kStop;
  bool request_done = true;  // no branch of the request is left
  Error error = {};          // with kError
};

// Events since the last Clear. Of one branch, Started comes before Tokens and those before Finished.
struct OutputBatch {
  std::vector<Started> started;
  std::vector<Tokens> tokens;
  std::vector<TokenId> token_ids;
  std::vector<Finished> finished;

  void Clear() {
    started.clear();
    tokens.clear();
    token_ids.clear();
    finished.clear();
  }
};

}  // namespace galley::sched
