// SPDX-License-Identifier: Apache-2.0
#include "galley/engine/logit_rules.h"

#include <fmt/core.h>

#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include "galley/base/range.h"

namespace galley::engine {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();
constexpr double kBiasMax = 100, kPenaltyMax = 2, kRepetitionMax = 100;

Status CheckId(std::string_view field, TokenId id, int vocab_size) {
  if (id >= 0 && id < vocab_size) return {};
  return Err(ErrorCode::kInvalidArgument, fmt::format("id {} is outside the vocabulary of {} tokens", id, vocab_size),
             std::string(field));
}

float& At(std::span<float> logits, TokenId id) {
  return logits[static_cast<std::size_t>(id)];
}

void Clear(std::span<const TokenId> ids, TokenCounts& counts) {
  for (const TokenId id : ids) counts[static_cast<std::size_t>(id)] = 0;
}

void KeepOnly(std::span<const TokenId> allowed, std::span<float> logits, TokenCounts& keep) {
  for (const TokenId id : allowed) keep[static_cast<std::size_t>(id)] = 1;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (keep[i] == 0) logits[i] = kNever;
  }
  Clear(allowed, keep);
}

void Repeat(float penalty, std::span<const TokenId> prompt, std::span<const TokenId> output, std::span<float> logits,
            TokenCounts& seen) {
  for (const auto tokens : {prompt, output}) {
    for (const TokenId id : tokens) {
      if (seen[static_cast<std::size_t>(id)]++ > 0) continue;
      float& logit = At(logits, id);
      logit = logit > 0 ? logit / penalty : logit * penalty;
    }
  }
  Clear(prompt, seen);
  Clear(output, seen);
}

// Subtracts once for each token of the output, which has no counts left behind it.
void Penalise(const LogitRules& rules, std::span<const TokenId> output, std::span<float> logits, TokenCounts& counts) {
  for (const TokenId id : output) ++counts[static_cast<std::size_t>(id)];
  for (const TokenId id : output) {
    const int count = std::exchange(counts[static_cast<std::size_t>(id)], 0);
    if (count == 0) continue;
    At(logits, id) -= static_cast<float>(rules.frequency_penalty * count + rules.presence_penalty);
  }
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

bool HasRules(const LogitRules& rules) {
  return !rules.bias.empty() || !rules.allowed_ids.empty() || !rules.banned_ids.empty() ||
         rules.repetition_penalty != 1 || rules.frequency_penalty != 0 || rules.presence_penalty != 0;
}

void ApplyRules(const LogitRules& rules, std::span<const TokenId> prompt, std::span<const TokenId> output,
                std::span<const TokenId> banned_stop_ids, std::span<float> logits, TokenCounts& counts) {
  counts.resize(logits.size());
  if (!rules.allowed_ids.empty()) KeepOnly(rules.allowed_ids, logits, counts);
  for (const TokenId id : rules.banned_ids) At(logits, id) = kNever;
  for (const TokenId id : banned_stop_ids) At(logits, id) = kNever;
  for (const auto& [id, bias] : rules.bias) At(logits, id) += bias;
  if (rules.repetition_penalty != 1)
    Repeat(static_cast<float>(rules.repetition_penalty), prompt, output, logits, counts);
  if (rules.frequency_penalty != 0 || rules.presence_penalty != 0) Penalise(rules, output, logits, counts);
}

}  // namespace galley::engine
