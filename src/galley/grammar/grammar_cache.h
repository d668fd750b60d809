// SPDX-License-Identifier: Apache-2.0
// Compiled grammars by what they were compiled from, the least recently used dropped beyond a number of bytes. Refusals
// are kept too: a client that repeats a bad request should not cost a compile each time. One owner, which serialises
// the calls, and may compile on several threads between Find() and Put().
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "galley/grammar/compile.h"

namespace galley::grammar {

class GrammarCache {
 public:
  explicit GrammarCache(std::size_t bytes_max) : bytes_max_(bytes_max) {}

  // The same for what CompileKind would compile to the same. Matchers keep their grammar alive after it is dropped.
  [[nodiscard]] static std::string KeyOf(std::string_view kind, const JsonValue& spec,
                                         const std::vector<Marker>& markers, const CompileOptions& options,
                                         const Vocabulary* vocabulary);
  [[nodiscard]] std::optional<Compiled<Grammar>> Find(std::string_view key);
  // `program_bytes` tells how large the program is, for callers that run it on another thread; without it the cache
  // looks at the program itself.
  void Put(std::string key, Compiled<Grammar> result, std::function<std::size_t()> program_bytes = {});

  struct Stats {
    std::uint64_t hits = 0;
    std::uint64_t misses = 0;
    std::size_t entries = 0;
    std::size_t bytes = 0;
  };
  [[nodiscard]] const Stats& stats() const { return stats_; }

 private:
  struct Entry {
    std::string key;
    Compiled<Grammar> result;
    std::function<std::size_t()> program_bytes;
    std::size_t bytes = 0;
  };
  [[nodiscard]] static std::size_t BytesOf(const Entry& entry);
  void Shrink();

  std::size_t bytes_max_;
  std::list<Entry> entries_;  // most recently used first
  std::unordered_map<std::string_view, std::list<Entry>::iterator> index_;
  Stats stats_;
};

}  // namespace galley::grammar
