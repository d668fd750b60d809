// SPDX-License-Identifier: Apache-2.0
// Which rows a prompt, a prompt with a prefix hit or a resumed sequence has to compute, and what each row may write.
// Pure arithmetic on positions (rows are positions here); units are tokens. docs/kv.md derives the formulas.
//
// Encoder rows run the layers that write history; tail rows, and only they, run the decoder layers as well. A model
// without the split (V4) has encoder_layers = layers and no truncation: then every row is a tail row.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "galley/base/error.h"
#include "galley/base/strong_id.h"
#include "galley/kv/lineage.h"

namespace galley::kv {

enum class ReplayMode {
  kBounded,  // one window of rows before the hit's end: constant cost, approximate, the model was trained for it
  kExact,    // as many rows as make the state bit-identical to a cold run's
};

enum class Truncation {
  kOff,      // every row runs all layers
  kCompact,  // only the last `keep` rows of a prompt run the decoder layers
};

struct ReplaySpec {
  int window = 128;         // rows that an attention layer sees directly
  int backtrack = 5;        // rows that rejected drafts can take back
  int encoder_layers = 20;  // layers before the decoder
  int layers = 40;
  ReplayMode mode = ReplayMode::kBounded;
  Truncation truncation = Truncation::kCompact;
  int keep = 140;  // tail rows of a prompt under kCompact

  [[nodiscard]] bool truncates() const { return truncation == Truncation::kCompact; }
  // Rows after a restart until the state of the layers that history depends on no longer depends on the restart: each
  // layer adds the window - 1 rows before its own.
  [[nodiscard]] int exact_warm_rows() const { return (window - 1) * (truncates() ? encoder_layers : layers); }
  [[nodiscard]] int warm_rows() const { return mode == ReplayMode::kExact ? exact_warm_rows() : window; }
  // The same for the decoder layers.
  [[nodiscard]] int decoder_warm_rows() const { return (window - 1) * (layers - encoder_layers); }
  // Rows before a snapshot's position from which a restored sequence may have to restart.
  [[nodiscard]] int snapshot_depth() const { return truncates() ? keep : backtrack; }
  // kInvalidArgument naming field, value and limit.
  [[nodiscard]] Status Validate() const;
};

// Goes into the root of block keys: history computed after bounded replays is not mixed with exact history.
[[nodiscard]] std::string_view NumericClass(const ReplaySpec& spec);

enum class StartKind { kCold, kBounded, kExact, kSnapshot };
[[nodiscard]] std::string_view Label(StartKind kind);

// A saved slot that fits the prompt.
struct SnapshotPoint {
  Position position = 0;       // tokens that the saved state has seen
  Position restart_from = 0;   // lowest row that may be recomputed from it
  Position encoder_floor = 0;  // window rows below it do not exist in it
  Lineage lineage = {};        // of the history that belongs to it; kBounded only
};

// What a sequence records at its first admission. It never moves, so that a resumed sequence computes the same values.
struct RecordedStart {
  StartKind kind = StartKind::kCold;
  Position prompt_length = 0;
  Position hit = 0;           // history below it was there already
  Position tail_start = 0;    // first row that runs the decoder
  Position replay_start = 0;  // first row computed
  Lineage lineage = {};       // of its history, its own start last; kBounded only, empty when all is as if cold
};

// A run of consecutive rows [begin, end). The rows' windows hold nothing below the floors.
struct PrefillPass {
  Position begin = 0;
  Position end = 0;
  Position write_from = 0;  // rows below it must not write history: they replay, and the blocks are shared
  Position tail_from = 0;   // rows at or above it run the decoder layers
  Position encoder_floor = 0;
  Position decoder_floor = 0;
};

struct PrefillPlan {
  StartKind kind = StartKind::kCold;
  Position hit = 0;           // history below it comes from blocks that others computed
  Position restored = 0;      // tokens that the snapshot to restore has seen; 0: none is restored
  Position restart_from = 0;  // lowest row that a snapshot of this sequence can restart from
  // One pass, and before it one for each origin of history that a resumed sequence must rebuild, evicted meanwhile.
  std::vector<PrefillPass> passes = {};

  [[nodiscard]] std::int64_t encoder_rows() const;
  [[nodiscard]] std::int64_t decoder_rows() const;
  [[nodiscard]] std::int64_t replayed_rows() const;  // of the encoder rows, those that write no history
};

struct PromptFacts {
  Position length = 0;    // >= 1
  Position hit = 0;       // whole blocks, <= length
  bool all_rows = false;  // prompt logprobs: no truncation; requires hit = 0 and no snapshot
  Lineage found = {};     // of the hit's blocks; kBounded only
  std::optional<SnapshotPoint> snapshot = {};
  // First position that will be saved as a snapshot; replay starts early enough that it can be restored anywhere.
  std::optional<Position> save_at = {};
};

[[nodiscard]] RecordedStart RecordStart(const ReplaySpec& spec, const PromptFacts& facts);
[[nodiscard]] PrefillPlan PlanStart(const ReplaySpec& spec, const PromptFacts& facts);

// Whether starting from the snapshot computes no more rows than starting from the facts' hit.
[[nodiscard]] bool SnapshotPays(const ReplaySpec& spec, const PromptFacts& facts);

// A sequence that was preempted with `length` tokens known (prompt and generated) and finds `hit` tokens cached, all of
// the recorded lineage. The values computed are those of the run that was interrupted.
[[nodiscard]] PrefillPlan PlanResume(const ReplaySpec& spec, const RecordedStart& start, Position length, Position hit);

}  // namespace galley::kv
