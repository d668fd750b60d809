// SPDX-License-Identifier: Apache-2.0
// Settings of the service. Plain data, fixed at creation.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "galley/base/error.h"
#include "galley/protocol/request.h"

namespace galley::serve {

// Sampling where neither the client nor the codec says anything, as in a model's generation_config.json.
struct SamplingDefaults {
  std::optional<double> temperature{};
  std::optional<double> top_p{};
  std::optional<int> top_k{};
  std::optional<double> min_p{};
  std::optional<double> repetition_penalty{};
  std::optional<std::uint32_t> max_tokens{};  // max_new_tokens
};
// Members with null or another meaning (eos_token_id, do_sample, …) are left alone. kInvalidArgument naming the member,
// the value and its limits; `where` names the file in it.
[[nodiscard]] Result<SamplingDefaults> ReadGenerationConfig(std::string_view json,
                                                            std::string_view where = "generation_config.json");

struct ServiceOptions {
  std::vector<std::string> model_names = {"model"};  // the first one names the model in answers to tools and pages
  std::string version = "0";                         // of the program
  SamplingDefaults defaults{};
  protocol::RequestLimits limits{};
  bool default_thinking = true;  // where a chat does not say
  double stream_start_s = 0;     // a stream whose request still waits begins after this long; 0: with its turn
  bool prefix_cache = true;      // where the request does not say
  int max_queue = 1024;          // requests that wait to be admitted; more are told to come back
  int n_max = 16;                // choices of one request
  int workers = 2;               // threads that write events
  bool log_prompts = false;
  std::function<void(std::string line)> log{};  // takes one JSON object a request; none: no log
  std::uint64_t seed = 0;                       // of ids and of seeds that clients leave out
  std::string page{};                           // HTML of GET /; empty: 404
  std::string info{};                           // JSON object: what /server_info says about model, engine and options
};

}  // namespace galley::serve
