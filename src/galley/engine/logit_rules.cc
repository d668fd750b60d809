// SPDX-License-Identifier: Apache-2.0
#include "galley/engine/logit_rules.h"

#include <fmt/core.h>

#include <limits>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace galley::engine {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();
constexpr double kBiasMax = 100, kPenaltyMax = 2, kRepetitionMax = 100;

Status CheckNumber(std::string_view field, double value, double low, double high) {
  if (value >= low && value <= high) return {};  // NaN fails
  return Err(ErrorCode::kInvalidArgument, fmt::format("{} is outside [{}, {}]", value, low, high), std::string(field));
}

Status CheckId(std::string_view field, TokenId id, int vocab_size) {
  if (id >= 0 && id < vocab_size) return {};
  return Err(ErrorCode::kInvalidArgument, fmt::format("id {} is outside the vocabulary of {} tokens", id, vocab_size),
             std::string(field));
}

float& At(std::span<float> logits, TokenId id) {
  return logits[static_cast<std::size_t>(id)];
}

void KeepOnly(const std::vector<TokenId>& allowed, std::span<float> logits) {
  std::vector<bool> keep(logits.size());
  for (const TokenId id : allowed) keep[static_cast<std::size_t>(id)] = true;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (!keep[i]) logits[i] = kNever;
  }
}

void Repeat(float penalty, std::span<const TokenId> prompt, std::span<const TokenId> output, std::span<float> logits) {
  std::vector<bool> seen(logits.size());
  for (const auto tokens : {prompt, output}) {
    for (const TokenId id : tokens) {
      if (seen[static_cast<std::size_t>(id)]) continue;
      seen[static_cast<std::size_t>(id)] = true;
      float& logit = At(logits, id);
      logit = logit > 0 ? logit / penalty : logit * penalty;
    }
  }
}

}  // namespace

Status ValidateRules(const LogitRules& rules, int vocab_size) {
  RETURN_IF_ERROR(CheckNumber("repetition_penalty", rules.repetition_penalty, 0.01, kRepetitionMax));
  RETURN_IF_ERROR(CheckNumber("frequency_penalty", rules.frequency_penalty, -kPenaltyMax, kPenaltyMax));
  RETURN_IF_ERROR(CheckNumber("presence_penalty", rules.presence_penalty, -kPenaltyMax, kPenaltyMax));
  for (const auto& [id, bias] : rules.bias) {
    RETURN_IF_ERROR(CheckId("logit_bias", id, vocab_size));
    RETURN_IF_ERROR(CheckNumber("logit_bias", static_cast<double>(bias), -kBiasMax, kBiasMax));
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
                std::span<const TokenId> banned_stop_ids, std::span<float> logits) {
  if (!rules.allowed_ids.empty()) KeepOnly(rules.allowed_ids, logits);
  for (const TokenId id : rules.banned_ids) At(logits, id) = kNever;
  for (const TokenId id : banned_stop_ids) At(logits, id) = kNever;
  for (const auto& [id, bias] : rules.bias) At(logits, id) += bias;
  if (rules.repetition_penalty != 1) Repeat(static_cast<float>(rules.repetition_penalty), prompt, output, logits);
  if (rules.frequency_penalty == 0 && rules.presence_penalty == 0) return;
  std::unordered_map<TokenId, int> counts;
  for (const TokenId id : output) ++counts[id];
  for (const auto& [id, count] : counts) {
    At(logits, id) -= static_cast<float>(rules.frequency_penalty * count + rules.presence_penalty);
  }
}

}  // namespace galley::engine
