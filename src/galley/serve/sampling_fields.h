// SPDX-License-Identifier: Apache-2.0
// Members of request bodies that steer the engine: numbers and lists that the codec does not know or only checks, in
// the spellings of OpenAI, vLLM and SGLang. All of them are checked here, before the codec, so that each error has the
// client's own name, its value and the limit. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "galley/engine/engine.h"
#include "galley/protocol/json.h"
#include "galley/protocol/request.h"
#include "galley/serve/api_error.h"
#include "galley/serve/number_range.h"
#include "galley/serve/service_options.h"

namespace galley::serve {

struct SamplingFields {
  int n = 1;
  int top_k = 0;
  double min_p = 0;
  engine::LogitRules rules;
  int min_tokens = 0;
  std::vector<TokenId> stop_token_ids;
  bool ignore_eos = false;
  int priority = 0;  // higher goes first
  std::string cache_salt;
  bool use_cache = true;
  bool timings = false;        // add a member `timings` to the answer
  bool parallel_calls = true;  // false: at most one call
  bool keep_stop = false;      // the stop sequence is part of the answer
  bool reasoning = true;       // false: the answer leaves it out
  int prompt_logprobs = -1;    // alternatives for each token of the prompt; -1: not asked for
  std::vector<std::string> banned_words;
  std::optional<std::uint64_t> seed;
  bool gave_temperature = false;
  bool gave_top_p = false;
  bool gave_max_tokens = false;
};

struct FieldLimits {
  const ServiceOptions& options;
  int vocab_size = 0;
  std::int64_t max_seq_len = 0;
};

// A number that a body may have.
struct NumberMember {
  enum class Most { kStated, kContext, kChoices };

  unsigned apis;  // bits of 1 << Protocol
  NumberRange range;
  void (*set)(SamplingFields& fields, double value);  // null: the codec reads it
  Most most = Most::kStated;                          // what the range's upper end is
};
[[nodiscard]] std::span<const NumberMember> NumberMembers();
[[nodiscard]] NumberRange RangeOf(const NumberMember& member, const FieldLimits& limits);

[[nodiscard]] ApiResult<SamplingFields> ReadSamplingFields(protocol::Protocol protocol, const protocol::Json& body,
                                                           const FieldLimits& limits);

}  // namespace galley::serve
