// SPDX-License-Identifier: Apache-2.0
// Snapshots: copies of a slot (and of the partial block that goes with it) kept warm at positions that the next turn of
// a conversation will match. The store knows which places of a fixed budget hold what; the bytes live wherever the
// backend keeps that place, in device or in host memory. A place is free, saving (reserved, its copy not known to be
// complete), or ready; readers pin a ready place until their copy is done. Least recently used places make room.
// Owned by the rank thread; outlives its handles.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "galley/base/strong_id.h"
#include "galley/kv/block_key.h"
#include "galley/kv/replay.h"

namespace galley::kv {

using SnapshotId = StrongId<struct SnapshotIdTag>;

class SnapshotStore;

// Pins a snapshot while something reads it. Move-only.
class SnapshotRef {
 public:
  SnapshotRef() = default;
  SnapshotRef(SnapshotRef&& other) noexcept : store_(std::exchange(other.store_, nullptr)), id_(other.id_) {}
  SnapshotRef& operator=(SnapshotRef&& other) noexcept {
    std::swap(store_, other.store_);
    std::swap(id_, other.id_);
    return *this;
  }
  ~SnapshotRef();
  [[nodiscard]] SnapshotId id() const { return id_; }

 private:
  friend class SnapshotStore;
  SnapshotRef(SnapshotStore* store, SnapshotId id) : store_(store), id_(id) {}

  SnapshotStore* store_ = nullptr;
  SnapshotId id_;
};

class SnapshotStore {
 public:
  // `places` = the budget divided by the bytes of one slot and one block; 0 turns snapshots off.
  explicit SnapshotStore(int places);
  ~SnapshotStore();
  SnapshotStore(const SnapshotStore&) = delete;
  SnapshotStore& operator=(const SnapshotStore&) = delete;

  [[nodiscard]] int total() const { return static_cast<int>(places_.size()); }
  [[nodiscard]] int ready() const { return ready_; }
  [[nodiscard]] int saving() const { return saving_; }

  // A place for the state after `point.position` tokens, evicting the least recently used snapshot if need be. Nothing
  // when this very state is kept already, or every place is being saved or read. The caller must Commit or Abandon it.
  [[nodiscard]] std::optional<SnapshotId> Reserve(const KeyChain& chain, std::span<const TokenId> tokens,
                                                  const SnapshotPoint& point);
  void Commit(SnapshotId id);
  void Abandon(SnapshotId id);

  // The longest ready snapshot, at `least` tokens or more, whose tokens are a prefix of `tokens` and whose full blocks
  // are among the first `hit_blocks` of the chain.
  [[nodiscard]] std::optional<SnapshotPoint> Find(const KeyChain& chain, std::span<const TokenId> tokens,
                                                  int hit_blocks, Position least) const;
  // Pins the snapshot that Find described.
  [[nodiscard]] SnapshotRef Pin(const KeyChain& chain, std::span<const TokenId> tokens, Position position);

  // Drops everything that nobody reads or saves.
  void Clear();

 private:
  friend class SnapshotRef;
  enum class Phase { kFree, kSaving, kReady };
  struct Place {
    Phase phase = Phase::kFree;
    int readers = 0;
    std::uint64_t last_use = 0;
    BlockKey key;                  // of the last full block, or the root
    std::vector<TokenId> partial;  // tokens after it
    SnapshotPoint point;
  };

  // The place that holds exactly these tokens up to `position`, in any phase but kFree; -1: none.
  [[nodiscard]] int FindExact(const KeyChain& chain, std::span<const TokenId> tokens, Position position) const;
  void Free(int place);

  std::vector<Place> places_;
  std::unordered_multimap<BlockKey, int> by_key_;
  std::uint64_t clock_ = 0;
  int ready_ = 0;
  int saving_ = 0;
};

}  // namespace galley::kv
