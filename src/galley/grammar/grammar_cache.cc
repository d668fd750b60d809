// SPDX-License-Identifier: Apache-2.0
#include "galley/grammar/grammar_cache.h"

#include <fmt/format.h>

namespace galley::grammar {

std::string GrammarCache::KeyOf(std::string_view kind, const JsonValue& spec, const std::vector<Marker>& markers,
                                const CompileOptions& options, const Vocabulary* vocabulary) {
  std::string key = fmt::format("{}|{}|{}{}{}{}|{}|", kind, static_cast<const void*>(vocabulary),
                                static_cast<int>(options.whitespace), options.any_order, options.plain_numbers,
                                options.lenient, options.limits.Text());
  for (const Marker& marker : markers) key += fmt::format("{}={}|", JsonQuote(marker.text), marker.token);
  return key + JsonText(spec);
}

std::size_t GrammarCache::BytesOf(const Entry& entry) {
  const std::size_t own = sizeof(Entry) + 2 * entry.key.size();
  if (!entry.result) return own + entry.result.error().message.size();
  return own + (entry.program_bytes ? entry.program_bytes() : entry.result->program->bytes());
}

void GrammarCache::Shrink() {
  stats_.bytes = 0;
  for (Entry& entry : entries_) {
    entry.bytes = BytesOf(entry);  // lexemes grow while they are used
    stats_.bytes += entry.bytes;
  }
  while (stats_.bytes > bytes_max_ && entries_.size() > 1) {
    stats_.bytes -= entries_.back().bytes;
    index_.erase(entries_.back().key);
    entries_.pop_back();
  }
  stats_.entries = entries_.size();
}

std::optional<Compiled<Grammar>> GrammarCache::Find(std::string_view key) {
  const auto found = index_.find(key);
  if (found == index_.end()) {
    ++stats_.misses;
    return std::nullopt;
  }
  ++stats_.hits;
  entries_.splice(entries_.begin(), entries_, found->second);
  return entries_.front().result;
}

void GrammarCache::Put(std::string key, Compiled<Grammar> result, std::function<std::size_t()> program_bytes) {
  if (index_.find(key) != index_.end()) return;
  entries_.push_front({std::move(key), std::move(result), std::move(program_bytes), 0});
  index_.emplace(entries_.front().key, entries_.begin());
  Shrink();
}

}  // namespace galley::grammar
