// SPDX-License-Identifier: Apache-2.0
#include "galley/kv/snapshot_store.h"

#include <algorithm>

#include "galley/base/check.h"
#include "galley/kv/index.h"

namespace galley::kv {
namespace {

bool StartsWith(std::span<const TokenId> tokens, std::span<const TokenId> prefix) {
  return tokens.size() >= prefix.size() && std::equal(prefix.begin(), prefix.end(), tokens.begin());
}

}  // namespace

SnapshotRef::~SnapshotRef() {
  if (store_ != nullptr) --store_->places_[Idx(id_.value)].readers;
}

SnapshotStore::SnapshotStore(int places) : places_(Idx(places)) {}

SnapshotStore::~SnapshotStore() {
  for (const Place& place : places_) CHECK(place.readers == 0) << "a snapshot is still pinned";
}

int SnapshotStore::FindExact(const KeyChain& chain, std::span<const TokenId> tokens, Position position) const {
  const int block = static_cast<int>(position / kBlockTokens);
  const auto partial =
      tokens.subspan(static_cast<std::size_t>(block) * kBlockTokens, static_cast<std::size_t>(position % kBlockTokens));
  const auto [first, last] = by_key_.equal_range(chain.parent(block));
  for (auto it = first; it != last; ++it) {
    const Place& place = places_[Idx(it->second)];
    if (place.point.position == position && std::ranges::equal(place.partial, partial)) return it->second;
  }
  return -1;
}

std::optional<SnapshotId> SnapshotStore::Reserve(const KeyChain& chain, std::span<const TokenId> tokens,
                                                 const SnapshotPoint& point) {
  if (places_.empty()) return std::nullopt;
  if (const int same = FindExact(chain, tokens, point.position); same >= 0) {
    places_[Idx(same)].last_use = ++clock_;
    // A snapshot that restarts deeper serves more prompts; one that is no deeper need not be copied again, unless the
    // history that belongs to it has been computed anew by others.
    Place& place = places_[Idx(same)];
    const bool as_good = place.point.restart_from <= point.restart_from && place.point.lineage == point.lineage;
    if (place.phase == Phase::kSaving || place.readers > 0 || as_good) return std::nullopt;
    Free(same);
  }
  int best = -1;
  for (int index = 0; index < total(); ++index) {
    const Place& place = places_[Idx(index)];
    if (place.phase == Phase::kSaving || place.readers > 0) continue;
    if (best < 0 || place.last_use < places_[Idx(best)].last_use) best = index;
  }
  if (best < 0) return std::nullopt;
  if (places_[Idx(best)].phase == Phase::kReady) Free(best);
  Place& place = places_[Idx(best)];
  const int block = static_cast<int>(point.position / kBlockTokens);
  const auto partial = tokens.subspan(static_cast<std::size_t>(block) * kBlockTokens,
                                      static_cast<std::size_t>(point.position % kBlockTokens));
  place.phase = Phase::kSaving;
  place.key = chain.parent(block);
  place.partial.assign(partial.begin(), partial.end());
  place.point = point;
  place.last_use = ++clock_;
  by_key_.emplace(place.key, best);
  ++saving_;
  return SnapshotId(best);
}

void SnapshotStore::Commit(SnapshotId id) {
  Place& place = places_[Idx(id.value)];
  CHECK(place.phase == Phase::kSaving) << "snapshot " << id.value;
  place.phase = Phase::kReady;
  --saving_;
  ++ready_;
}

void SnapshotStore::Abandon(SnapshotId id) {
  CHECK(places_[Idx(id.value)].phase == Phase::kSaving) << "snapshot " << id.value;
  Free(id.value);
}

void SnapshotStore::Free(int index) {
  Place& place = places_[Idx(index)];
  const auto [first, last] = by_key_.equal_range(place.key);
  by_key_.erase(std::find_if(first, last, [&](const auto& entry) { return entry.second == index; }));
  --(place.phase == Phase::kSaving ? saving_ : ready_);
  place.phase = Phase::kFree;
  place.last_use = 0;
  place.partial.clear();
}

std::optional<SnapshotPoint> SnapshotStore::Find(const KeyChain& chain, std::span<const TokenId> tokens, int hit_blocks,
                                                 Position least) const {
  if (ready_ == 0) return std::nullopt;
  for (int block = hit_blocks; block >= 0; --block) {
    if (Position{block} * kBlockTokens + kBlockTokens <= least) break;
    const auto rest = tokens.subspan(static_cast<std::size_t>(block) * kBlockTokens);
    std::optional<SnapshotPoint> best;
    const auto [first, last] = by_key_.equal_range(chain.parent(block));
    for (auto it = first; it != last; ++it) {
      const Place& place = places_[Idx(it->second)];
      if (place.phase != Phase::kReady || place.point.position < std::max<Position>(least, 1)) continue;
      if (!StartsWith(rest, place.partial)) continue;
      if (!best || place.point.position > best->position) best = place.point;
    }
    if (best) return best;
  }
  return std::nullopt;
}

SnapshotRef SnapshotStore::Pin(const KeyChain& chain, std::span<const TokenId> tokens, Position position) {
  const int index = FindExact(chain, tokens, position);
  CHECK(index >= 0 && places_[Idx(index)].phase == Phase::kReady) << "no snapshot at position " << position;
  places_[Idx(index)].last_use = ++clock_;
  ++places_[Idx(index)].readers;
  return SnapshotRef(this, SnapshotId(index));
}

void SnapshotStore::Clear() {
  for (int index = 0; index < total(); ++index) {
    if (places_[Idx(index)].phase == Phase::kReady && places_[Idx(index)].readers == 0) Free(index);
  }
}

}  // namespace galley::kv
