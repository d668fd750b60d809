// SPDX-License-Identifier: Apache-2.0
// Blocks that some sequence is computing, and who waits for them: requests that arrive together with a shared prefix do
// not all compute it. A promise ends when its block is published or its owner stops; either way the waiters are told
// and look again, so no wait depends on a promise being kept. Owned by one scheduler.
#pragma once

#include <algorithm>
#include <unordered_map>
#include <utility>
#include <vector>

#include "galley/kv/block_key.h"
#include "galley/sched/request.h"

namespace galley::sched {

class PromiseBoard {
 public:
  // The first to promise a block owns the promise.
  void Promise(const kv::BlockKey& key, SequenceId owner) { promises_.try_emplace(key, Entry{owner, {}}); }

  // Who is computing the block; invalid: nobody.
  [[nodiscard]] SequenceId owner(const kv::BlockKey& key) const {
    const auto it = promises_.find(key);
    return it == promises_.end() ? SequenceId() : it->second.owner;
  }

  // Requires a promise.
  void Wait(const kv::BlockKey& key, SequenceId waiter) { promises_.at(key).waiters.push_back(waiter); }
  void StopWaiting(const kv::BlockKey& key, SequenceId waiter) { std::erase(promises_.at(key).waiters, waiter); }

  // Ends the promise if `owner` made it, and returns who waited for it.
  [[nodiscard]] std::vector<SequenceId> Settle(const kv::BlockKey& key, SequenceId owner) {
    const auto it = promises_.find(key);
    if (it == promises_.end() || it->second.owner != owner) return {};
    std::vector<SequenceId> waiters = std::move(it->second.waiters);
    promises_.erase(it);
    return waiters;
  }

  [[nodiscard]] bool empty() const { return promises_.empty(); }

 private:
  struct Entry {
    SequenceId owner;
    std::vector<SequenceId> waiters;
  };
  std::unordered_map<kv::BlockKey, Entry> promises_;
};

}  // namespace galley::sched
