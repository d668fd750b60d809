// SPDX-License-Identifier: Apache-2.0
#include "galley/engine/logit_rules.h"

#include <fmt/core.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "galley/base/range.h"

namespace galley::engine {
namespace {

constexpr double kBiasMax = 100, kPenaltyMax = 2, kRepetitionMax = 100;

Status CheckId(std::string_view field, TokenId id, int vocab_size) {
  if (id >= 0 && id < vocab_size) return {};
  return Err(ErrorCode::kInvalidArgument, fmt::format("id {} is outside the vocabulary of {} tokens", id, vocab_size),
             std::string(field));
}

void Set(std::span<std::uint32_t> mask, TokenId id) {
  mask[static_cast<std::size_t>(id) / 32] |= 1u << (id % 32);
}
void Unset(std::span<std::uint32_t> mask, TokenId id) {
  mask[static_cast<std::size_t>(id) / 32] &= ~(1u << (id % 32));
}
bool IsSet(std::span<const std::uint32_t> mask, TokenId id) {
  return (mask[static_cast<std::size_t>(id) / 32] >> (id % 32) & 1u) != 0;
}

}  // namespace

Status ValidateRules(const LogitRules& rules, int vocab_size) {
  RETURN_IF_ERROR(CheckRealRange("repetition_penalty", rules.repetition_penalty, 0.01, kRepetitionMax));
  RETURN_IF_ERROR(CheckRealRange("frequency_penalty", rules.frequency_penalty, -kPenaltyMax, kPenaltyMax));
  RETURN_IF_ERROR(CheckRealRange("presence_penalty", rules.presence_penalty, -kPenaltyMax, kPenaltyMax));
  for (const auto& [id, bias] : rules.bias) {
    RETURN_IF_ERROR(CheckId("logit_bias", id, vocab_size));
    RETURN_IF_ERROR(CheckRealRange("logit_bias", static_cast<double>(bias), -kBiasMax, kBiasMax));
  }
  for (const TokenId id : rules.allowed_ids) RETURN_IF_ERROR(CheckId("allowed_ids", id, vocab_size));
  for (const TokenId id : rules.banned_ids) RETURN_IF_ERROR(CheckId("banned_ids", id, vocab_size));
  return {};
}

void SortBias(LogitRules& rules) {
  std::ranges::stable_sort(rules.bias, {}, &std::pair<TokenId, float>::first);
  std::size_t kept = 0;
  for (const auto& [id, bias] : rules.bias) {
    if (kept > 0 && rules.bias[kept - 1].first == id) {
      rules.bias[kept - 1].second += bias;
    } else {
      rules.bias[kept++] = {id, bias};
    }
  }
  rules.bias.resize(kept);
}

std::vector<std::uint32_t> AllowedMask(const LogitRules& rules, int vocab_size) {
  if (rules.allowed_ids.empty() && rules.banned_ids.empty()) return {};
  std::vector<std::uint32_t> mask(backend::MaskWords(vocab_size), rules.allowed_ids.empty() ? ~0u : 0u);
  for (const TokenId id : rules.allowed_ids) Set(mask, id);
  for (const TokenId id : rules.banned_ids) Unset(mask, id);
  return mask;
}

void ChangeMemory::Reserve() {
  // What may come, and what has come.
  for (int i = 0; i < 2; ++i) static_cast<void>(TakeMask());
  TakeList().reserve(static_cast<std::size_t>(vocab_size_));
  Clear();
}

std::span<std::uint32_t> ChangeMemory::TakeMask() {
  if (masks_used_ == masks_.size()) masks_.emplace_back(backend::MaskWords(vocab_size_));
  return masks_[masks_used_++];
}

std::vector<backend::LogitChange>& ChangeMemory::TakeList() {
  if (lists_used_ == lists_.size()) lists_.emplace_back();
  std::vector<backend::LogitChange>& list = lists_[lists_used_++];
  list.clear();
  return list;
}

TokenUse::TokenUse(const LogitRules& rules, std::span<const TokenId> prompt, int vocab_size, int tokens_most)
    : counts_output_(rules.frequency_penalty != 0 || rules.presence_penalty != 0) {
  // Of all tokens at once, so that no step has to find memory for them.
  if (counts_output_) counts_.reserve(static_cast<std::size_t>(std::min(vocab_size, tokens_most)));
  if (rules.repetition_penalty == 1) return;
  seen_.resize(backend::MaskWords(vocab_size));
  for (const TokenId id : prompt) Set(seen_, id);
}

void TokenUse::AddTo(std::vector<Count>& counts, TokenId id) {
  const auto at = std::ranges::lower_bound(counts, id, {}, &Count::id);
  if (at != counts.end() && at->id == id) {
    ++at->count;
  } else {
    counts.insert(at, {.id = id, .count = 1});
  }
}

void TokenUse::Add(TokenId id) {
  if (!seen_.empty()) Set(seen_, id);
  if (counts_output_) AddTo(counts_, id);
}

void TokenUse::Fill(const LogitRules& rules, std::span<const TokenId> drafts, ChangeMemory& memory,
                    backend::RowChanges& changes) const {
  if (!seen_.empty()) {
    changes.repetition = static_cast<float>(rules.repetition_penalty);
    changes.repeated = seen_.data();
    if (!std::ranges::all_of(drafts, [this](TokenId id) { return IsSet(seen_, id); })) {
      const std::span<std::uint32_t> seen = memory.TakeMask();
      std::ranges::copy(seen_, seen.begin());
      for (const TokenId id : drafts) Set(seen, id);
      changes.repeated = seen.data();
    }
  }
  if (rules.bias.empty() && counts_.empty() && !(counts_output_ && !drafts.empty())) return;
  std::vector<backend::LogitChange>& list = memory.TakeList();
  auto bias = rules.bias.begin();
  auto count = counts_.begin();
  const auto append = [&](TokenId id, float added, int times) {
    const double penalty = times > 0 ? rules.frequency_penalty * times + rules.presence_penalty : 0;
    list.push_back({.id = id, .bias = added, .penalty = static_cast<float>(penalty)});
  };
  // Ascending, as both are.
  while (bias != rules.bias.end() || count != counts_.end()) {
    const bool biased = bias != rules.bias.end() && (count == counts_.end() || bias->first <= count->id);
    const TokenId id = biased ? bias->first : count->id;
    const float added = biased ? (bias++)->second : 0;
    append(id, added, count != counts_.end() && count->id == id ? (count++)->count : 0);
  }
  if (counts_output_) {
    for (std::size_t i = 0; i < drafts.size(); ++i) {
      const TokenId id = drafts[i];
      if (std::ranges::find(drafts.first(i), id) != drafts.begin() + static_cast<std::ptrdiff_t>(i)) continue;
      const auto before = std::ranges::lower_bound(counts_, id, {}, &Count::id);
      const auto times = static_cast<int>(std::ranges::count(drafts, id)) +
                         (before != counts_.end() && before->id == id ? before->count : 0);
      const auto at = std::ranges::lower_bound(list, id, {}, &backend::LogitChange::id);
      const bool known = at != list.end() && at->id == id;
      const double penalty = rules.frequency_penalty * times + rules.presence_penalty;
      const backend::LogitChange change{.id = id, .bias = known ? at->bias : 0, .penalty = static_cast<float>(penalty)};
      if (known) {
        *at = change;
      } else {
        list.insert(at, change);
      }
    }
  }
  changes.logits = list;
}

}  // namespace galley::engine
