// SPDX-License-Identifier: Apache-2.0
// A stand-in for a device that runs step plans and notices every mistake in them. Its "model" makes the history entry
// of a position a hash of all tokens up to it, read through the block table, and its tokens a hash of that entry, so a
// row that reads a wrong, stale or foreign block yields wrong tokens and is reported at once. Slots keep, for each ring
// row, which position it holds, so reading window rows that were never computed, were overwritten or are not yet exact
// is reported too. Beside each entry lies its flavour, a hash of where the runs began that computed it and all before
// it: what a bounded replay makes different although the tokens are the same. Owned by one simulated rank.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "galley/sched/scheduler.h"

namespace galley::sim {

// What the model is told to do with a request, and what it must produce.
struct Script {
  std::uint64_t seed = 0;  // of the draws
  int stop_one_in = 0;     // a drawn token ends a branch with this chance, 0: never
  // The device knows the stop (a token id) and accepts nothing behind it; else the host finds it (a string).
  bool stops_at_once = false;
};

// The entry of a position from the entry before it: a hash of the prefix.
[[nodiscard]] std::uint64_t NextEntry(std::uint64_t previous, TokenId token, Position position);
// The token that a branch draws from a row's entry, and whether it ends the branch.
struct Draw {
  TokenId token;
  bool stop;
};
[[nodiscard]] Draw DrawToken(const Script& script, int branch, std::uint64_t entry);
// Output of a branch from the prompt alone: the oracle for whatever scheduling did.
[[nodiscard]] std::vector<TokenId> ExpectedOutput(const Script& script, int branch, std::span<const TokenId> prompt,
                                                  int max_tokens);

class FakeDevice {
 public:
  using Complain = std::function<void(std::string)>;
  // `acceptance`: chance that a draft equals the model's own draw.
  FakeDevice(const sched::SchedulerOptions& options, double acceptance, std::uint64_t seed, Complain complain);

  // Runs the plan that `scheduler` has just made. The result is to be handed back in order, now or later.
  [[nodiscard]] sched::StepDone Run(const sched::StepPlan& plan, const sched::Scheduler& scheduler,
                                    const std::function<Script(RequestId)>& script);

  [[nodiscard]] std::int64_t encoder_rows() const { return encoder_rows_; }

 private:
  struct RingRow {
    Position position = -1;
    std::uint64_t entry = 0;
  };
  // Rows of one row set (encoder or decoder) that a slot remembers.
  struct Ring {
    std::vector<RingRow> rows;
    Position exact_from = 0;  // rows at or above it are what an undisturbed run computes
  };
  struct Slot {
    Ring encoder, decoder;
    std::vector<BlockId> table;
  };
  struct Snapshot {
    Ring encoder, decoder;
    std::vector<std::uint64_t> partial, partial_flavours;
    bool has_partial = false;
  };
  struct Live {  // what a device keeps of a decoding sequence
    Position length = 0;
    TokenId last = 0;
  };

  void Apply(const sched::StateOp& op);
  void RunPrefill(const sched::SequenceRows& rows, const sched::StepPlan& plan, const sched::Sequence& sequence,
                  const Script& script, sched::StepDone& done);
  void RunDecode(const sched::SequenceRows& rows, const sched::Sequence& sequence, const Script& script,
                 sched::StepDone& done);
  // Runs one row and returns its entry.
  std::uint64_t RunRow(const sched::SequenceRows& rows, const sched::Sequence& sequence, Position position,
                       TokenId token);
  // The newest and the oldest row of the window are there and belong to the sequence's prefix.
  void CheckWindow(const Ring& ring, const sched::SequenceRows& rows, Position position, Position floor,
                   const char* name);
  void Store(Ring& ring, Position position, std::uint64_t entry);
  // Checks the flavour of a replayed row, stores that of a row that writes history.
  void Flavour(const sched::SequenceRows& rows, const kv::RecordedStart& start, Position position);
  // Index in history_; nothing when the table is too short.
  [[nodiscard]] std::optional<std::size_t> Place(const sched::SequenceRows& rows, Position position);
  [[nodiscard]] std::uint64_t* Entry(const sched::SequenceRows& rows, Position position);
  [[nodiscard]] double Uniform();

  sched::SchedulerOptions options_;
  double acceptance_;
  std::uint64_t seed_;
  std::uint64_t draws_ = 0;
  Complain complain_;
  const sched::Scheduler* scheduler_ = nullptr;                   // during Run
  std::vector<std::uint64_t> history_;                            // [block][kBlockTokens]
  std::vector<std::uint64_t> flavours_;                           // of history_
  std::unordered_map<RequestId, std::uint64_t> prompt_flavours_;  // at its last token, when first drawn from
  std::vector<Slot> slots_;
  std::vector<Snapshot> snapshots_;
  std::unordered_map<sched::SequenceId, Live> live_;
  std::int64_t encoder_rows_ = 0;
};

}  // namespace galley::sim
