// SPDX-License-Identifier: Apache-2.0
// Members of request bodies that steer the engine and that the codec does not know or only checks: penalties, bias,
// top_k, stop token ids, priority and so on, in the spellings of OpenAI, vLLM and SGLang. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "galley/engine/engine.h"
#include "galley/protocol/json.h"
#include "galley/serve/api_error.h"
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

// Errors name the member, the value and its limits. `vocab_size` bounds token ids.
[[nodiscard]] ApiResult<SamplingFields> ReadSamplingFields(const protocol::Json& body, const ServiceOptions& options,
                                                           int vocab_size);

}  // namespace galley::serve
