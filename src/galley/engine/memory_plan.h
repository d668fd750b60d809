// SPDX-License-Identifier: Apache-2.0
// The memory that an engine takes, decided before anything is loaded: weights, workspace of the largest step, history
// blocks, slots, snapshots. A pure function of the config and the options; LoadedModel takes exactly this. Bytes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "galley/backend/weight_place.h"
#include "galley/base/error.h"
#include "galley/model/config.h"
#include "galley/model/dsv4/model.h"
#include "galley/model/dsv4/state.h"

namespace galley::engine {

using backend::WeightPlace;

struct MemoryOptions {
  model::ModelOptions model;
  int blocks = 0;
  int slots = 0;
  int snapshots = 0;
  bool own_memory = false;  // the device has memory of its own, beside the process's
  WeightPlace experts = WeightPlace::kDevice, engram = WeightPlace::kDevice;
  std::int64_t expert_memory = 0;        // main memory for experts on disk
  std::int64_t expert_cache = 0;         // device memory for experts that are elsewhere: DeviceOptions::expert_cache
  std::int64_t recorded_step_bytes = 0;  // that a backend may take for decode steps it records and replays
  bool reads_weights_ahead = false;      // the backend can leave experts on disk and asks for rows before it needs them
  // That a backend takes while it loads weights, and how much of it is not main memory.
  std::int64_t load_bytes = 0, load_device_bytes = 0;
  model::RewindRows rewind = {};   // deepens slots and snapshots
  std::int64_t grammar_cache = 0;  // for compiled grammars that are kept
};

enum class MemoryKind {
  kWeights,    // as the checkpoint holds them, by part of the model that is loaded
  kTables,     // small arrays that the model computes at start
  kWorkspace,  // activations and logits of the largest step
  kBlocks,     // history
  kSlots,      // state of running sequences
  kSnapshots,  // saved slots, each with a partial block
  kGrammars,   // compiled and kept, at most
};
[[nodiscard]] std::string_view Label(MemoryKind kind);

// The workspace of steps of so many rows.
struct StepRows {
  int rows = 0;
  std::int64_t bytes = 0;
};

struct MemoryItem {
  MemoryKind kind = MemoryKind::kWeights;
  std::string name;
  std::int64_t count = 1;
  std::int64_t each = 0;
  std::string remedy = {};  // what takes weights out of this memory, as advice; empty: nothing does
  bool on_device = false;   // in a memory of its own (MemoryPlan::own_memory)
  // Of weights that an option makes smaller: what, and which; what a remedy or such an option leaves.
  std::string_view lowers = {}, lowered_by = {};
  std::int64_t least = 0;
  std::vector<StepRows> smaller = {};  // of a workspace: with fewer rows, most first
  [[nodiscard]] std::int64_t bytes() const { return count * each; }
};

// What a step moves where the device has memory of its own (plan_speed.h). Bytes.
struct StepSpeed {
  int rows = 0;
  double device_bytes = 0, link_bytes = 0, disk_bytes = 0;

  // The device waits for the link; the disk is read while experts that have come are copied.
  [[nodiscard]] double seconds() const;
  [[nodiscard]] std::string_view limit() const;  // "device memory", "PCIe", "disk"
};

struct MemoryPlan {
  std::vector<MemoryItem> items;
  std::int64_t tokens = 0;         // that the blocks hold
  std::vector<std::string> notes;  // what will be slow, and why
  std::vector<StepSpeed> speeds;   // of decode steps and of the largest, where the device has memory of its own
  bool own_memory = false;         // items are in two memories
  std::int64_t device_limit = 0;   // bytes of the device's own memory that may be used; 0: not known

  [[nodiscard]] std::int64_t total() const;
  [[nodiscard]] std::int64_t BytesOf(MemoryKind kind) const;
  [[nodiscard]] std::int64_t DeviceBytes() const;  // in a memory of the device's own
  [[nodiscard]] std::int64_t HostBytes() const { return total() - DeviceBytes(); }
  // False: a device is planned for that has a memory of its own, of which the size is not known.
  [[nodiscard]] bool ChecksDevice() const { return !own_memory || device_limit > 0; }
  // kResourceExhausted when what is in main memory exceeds `limit`, or what is on the device its limit, with the total,
  // the limit, and what to lower to which value.
  [[nodiscard]] Status Fits(std::int64_t limit) const;
};

// Places on the device in which chosen experts of other memories lie; none when kernels read them where they are.
[[nodiscard]] MemoryItem ExpertCacheOf(const model::Config& config, const MemoryOptions& options);

// Parts of all routed experts, the draft head's among them, that have no copy on the device, and none in main memory
// either, so that they are read from disk. What is on the device is taken to be in main memory's store as well.
struct MissingExperts {
  double device = 0, main_memory = 0;
};
[[nodiscard]] MissingExperts MissingShares(const model::Config& config, const MemoryOptions& options);

// Fewer routed experts than this cannot be held: they run in groups of up to half of their memory, and a group is one
// expert at least.
inline constexpr std::int64_t kExpertsLeast = 4;
// Bytes that one expert takes of the memory for experts on disk.
[[nodiscard]] std::int64_t ExpertRoomOf(const model::Config& config);

// Memory for experts on disk when none is given: half of `limit`, or what everything else leaves of it when that is
// less, but as much as kExpertsLeast need. Errors: those of PlanMemory.
[[nodiscard]] Result<std::int64_t> ExpertMemoryThatFits(const model::Config& config, MemoryOptions options,
                                                        std::int64_t limit);

// Errors: those of Model::PlanMemory.
[[nodiscard]] Result<MemoryPlan> PlanMemory(const model::Config& config, const MemoryOptions& options);

// `asked` bytes, or with 0 what the process may use.
[[nodiscard]] std::int64_t MemoryLimit(std::int64_t asked);

// What is slow when a plan, allowed by a larger limit, exceeds what the process may use; empty when it does not, or
// when the device has memory of its own: what it reads of the process's is pinned.
[[nodiscard]] std::string BeyondMemoryNote(const MemoryPlan& plan, std::int64_t usable);

// A table for people, with the limit it is compared to; and one JSON object.
[[nodiscard]] std::string ToText(const MemoryPlan& plan, std::int64_t limit);
[[nodiscard]] std::string ToJson(const MemoryPlan& plan, std::int64_t limit);

}  // namespace galley::engine
