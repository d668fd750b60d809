// SPDX-License-Identifier: Apache-2.0
// A sequence inside the scheduler: what it knows in every state, and a variant of states each of which owns exactly the
// resources that are legal in it. Leaving a state therefore gives up its resources, or hands them over explicitly.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "galley/kv/block_cache.h"
#include "galley/kv/replay.h"
#include "galley/kv/slot_pool.h"
#include "galley/kv/snapshot_store.h"
#include "galley/sched/request.h"

namespace galley::sched {

// Order of service: smaller first. Fixed at arrival, and later windows come after earlier ones, so nobody can be
// overtaken for ever. Within a window, which is what one priority level is worth, the earliest deadline comes first.
struct OrderKey {
  TimeUs window = 0;           // of the virtual arrival
  TimeUs deadline = 0;         // without one: after all that have one
  TimeUs virtual_arrival = 0;  // arrival less what the priority is worth
  std::int64_t number = 0;     // of the request, by arrival
  int branch = 0;
  friend constexpr auto operator<=>(const OrderKey&, const OrderKey&) = default;
};

// Slot and blocks of a running sequence, and how far they are filled.
struct Held {
  kv::SlotRef slot;
  std::vector<kv::BlockRef> table;
  int published = 0;          // leading blocks of the table that are published, shared, or given up as private
  int sent = 0;               // leading entries of the table that the device knows
  Position computed = 0;      // history below it is complete and belongs to committed tokens
  Position restart_from = 0;  // lowest row that a snapshot of the slot can restart from
  Position encoder_floor = 0;
  Position decoder_floor = 0;
  int promised_from = 0;  // blocks [promised_from, promised_to) of the chain are promised to others
  int promised_to = 0;
};

// In the queue; owns nothing.
struct Waiting {};
// Waits for a block that another sequence computes; owns nothing.
struct AwaitingPrefix {
  kv::BlockKey key;
  TimeUs expires_us = 0;
  Position owner_computed = 0;  // the other one's progress when the wait began or was last renewed
};
struct PrefillWork {
  kv::PrefillPlan plan;
  std::size_t pass = 0;  // in plan.passes
  Position next = 0;     // next row to plan

  [[nodiscard]] const kv::PrefillPass& current() const { return plan.passes[pass]; }
  [[nodiscard]] bool in_last_pass() const { return pass + 1 == plan.passes.size(); }
};
struct Prefilling {
  Held held;
  std::unique_ptr<PrefillWork> work;  // never null; apart, so that the other states are not made larger by it
};
struct Decoding {
  Held held;
};
// Lost its slot and blocks; back in the queue as soon as no step in flight can add tokens. Owns nothing.
struct Preempted {};
// Its terminal event is out; only steps in flight still name it. Owns nothing.
struct Ended {};

using State = std::variant<Waiting, AwaitingPrefix, Prefilling, Decoding, Preempted, Ended>;

struct RequestRecord {
  Request request;
  TimeUs arrival_us = 0;
  std::vector<SequenceId> branches;  // that exist and have not ended
  bool forked = false;               // all branches exist
  bool started = false;              // Started is out
};

// A step reads and writes the first kHotBytes of every decoding sequence and nothing behind them: planning time is
// mostly the wait for these lines once the sequences exceed a processor's near caches.
struct alignas(64) Sequence {
  SequenceId id;
  int branch = 0;
  RequestId request;
  // Rows and copies of this sequence in flight or waiting for the next plan, by step, and the fewest and most tokens
  // they can add.
  int steps_in_flight = 0;
  int pending_least = 0;
  int pending_most = 0;
  int place = -1;  // in the list of running sequences of its state
  StepId last_planned = -1;
  Position limit = 0;           // tokens at which max_tokens ends it
  std::vector<TokenId> tokens;  // prompt and committed output
  State state;

  RequestRecord* owner = nullptr;  // null once ended
  OrderKey order;
  kv::KeyChain keys;                       // of full blocks of tokens, as far as they were needed
  std::optional<kv::RecordedStart> start;  // from the first admission on
  bool no_share = false;                   // a wait for another's block ran out
  int known_hits = 0;                      // hint for BlockCache::Probe
  std::optional<TimeUs> wait_timer;        // first row due
  std::optional<TimeUs> deadline_timer;    // end due
  std::optional<TimeUs> share_timer;       // look again at an AwaitingPrefix

  static constexpr std::size_t kHotBytes = 192;

  [[nodiscard]] Position length() const { return static_cast<Position>(tokens.size()); }
  [[nodiscard]] Position generated() const { return length() - static_cast<Position>(owner->request.prompt.size()); }
  template <typename S>
  [[nodiscard]] bool in() const {
    return std::holds_alternative<S>(state);
  }
  // Slot and blocks; null in states that own none.
  [[nodiscard]] Held* held() {
    if (auto* prefilling = std::get_if<Prefilling>(&state)) return &prefilling->held;
    if (auto* decoding = std::get_if<Decoding>(&state)) return &decoding->held;
    return nullptr;
  }
  [[nodiscard]] const Held* held() const { return const_cast<Sequence*>(this)->held(); }
};

static_assert(offsetof(Sequence, owner) <= Sequence::kHotBytes, "what a step touches must stay together");

// Asks for the cache lines of a sequence that a step touches, some sequences before it is its turn.
inline void Prefetch(const Sequence* sequence) {
  for (std::size_t offset = 0; offset < Sequence::kHotBytes; offset += 64) {
    __builtin_prefetch(reinterpret_cast<const char*>(sequence) + offset, 1);
  }
}
// The same for the place of the next token; reads the sequence, so it goes behind Prefetch.
inline void PrefetchTokens(const Sequence* sequence) {
  __builtin_prefetch(sequence->tokens.data() + sequence->tokens.size(), 1);
}
inline constexpr std::size_t kPrefetchDistance = 8;        // sequences ahead
inline constexpr std::size_t kPrefetchTokensDistance = 4;  // less, because it waits for the sequence

[[nodiscard]] std::string_view StateLabel(const State& state);

}  // namespace galley::sched
