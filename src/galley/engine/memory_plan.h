// SPDX-License-Identifier: Apache-2.0
// The memory that an engine takes, decided before anything is loaded: weights, workspace of the largest step, history
// blocks, slots, snapshots. A pure function of the config and the options; LoadedModel takes exactly this. Bytes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "galley/base/error.h"
#include "galley/model/config.h"
#include "galley/model/dsv4/model.h"
#include "galley/model/dsv4/state.h"

namespace galley::engine {

struct MemoryOptions {
  model::ModelOptions model;
  int blocks = 0;
  int slots = 0;
  int snapshots = 0;
  std::int64_t expert_memory = -1;       // for routed experts when they stay on disk; -1: all are in memory
  std::int64_t recorded_step_bytes = 0;  // that a backend may take for decode steps it records and replays
  bool on_host = true;                   // in the memory of the process
  bool reads_weights_ahead = false;      // the backend can leave experts on disk and asks for rows before it needs them
  std::int64_t load_bytes = 0;           // that a backend takes while it loads weights
  bool engram_on_disk = false;           // rows of its tables are read when tokens ask for them
  model::RewindRows rewind = {};         // deepens slots and snapshots
  std::int64_t grammar_cache = 0;        // for compiled grammars that are kept
};

enum class MemoryKind {
  kWeights,    // as the checkpoint holds them, by part of the model
  kTables,     // small arrays that the model computes at start
  kWorkspace,  // activations and logits of the largest step
  kBlocks,     // history
  kSlots,      // state of running sequences
  kSnapshots,  // saved slots, each with a partial block
  kGrammars,   // compiled and kept, at most
};
[[nodiscard]] std::string_view Label(MemoryKind kind);

struct MemoryItem {
  MemoryKind kind = MemoryKind::kWeights;
  std::string name;
  std::int64_t count = 1;
  std::int64_t each = 0;
  std::string remedy = {};  // what takes weights out of memory, as advice; empty: nothing does
  [[nodiscard]] std::int64_t bytes() const { return count * each; }
};

struct MemoryPlan {
  std::vector<MemoryItem> items;
  std::int64_t tokens = 0;         // that the blocks hold
  std::vector<std::string> notes;  // what will be slow, and why
  bool on_host = true;             // in the memory of the process

  [[nodiscard]] std::int64_t total() const;
  [[nodiscard]] std::int64_t BytesOf(MemoryKind kind) const;
  // kResourceExhausted when the total exceeds `limit`, with the total, the limit, and what to lower to which value.
  [[nodiscard]] Status Fits(std::int64_t limit) const;
};

// Errors: those of Model::PlanMemory.
[[nodiscard]] Result<MemoryPlan> PlanMemory(const model::Config& config, const MemoryOptions& options);

// `asked` bytes, or with 0 what the process may use.
[[nodiscard]] std::int64_t MemoryLimit(std::int64_t asked);

// What is slow when a plan, allowed by a larger limit, exceeds what the process may use; empty when it does not, or
// when its weights are elsewhere (MemoryPlan::on_host).
[[nodiscard]] std::string BeyondMemoryNote(const MemoryPlan& plan, std::int64_t usable);

// A table for people, with the limit it is compared to; and one JSON object.
[[nodiscard]] std::string ToText(const MemoryPlan& plan, std::int64_t limit);
[[nodiscard]] std::string ToJson(const MemoryPlan& plan, std::int64_t limit);

}  // namespace galley::engine
