// SPDX-License-Identifier: Apache-2.0
// Body of a generation request → prompts as token ids and what the engine must do with them. A function of
// its arguments; called on the thread that took the request.
#pragma once

#include <memory>
#include <vector>

#include "galley/engine/engine.h"
#include "galley/protocol/request.h"
#include "galley/serve/api_error.h"
#include "galley/serve/engine_port.h"
#include "galley/serve/sampling_fields.h"
#include "galley/serve/service_options.h"
#include "galley/text/tokenizer.h"

namespace galley::serve {

// One prompt with its choices.
struct PreparedPrompt {
  std::unique_ptr<protocol::ParsedRequest> parsed;  // answers refer to it
  engine::EngineRequest request;                    // n is the number of choices
  std::string text;                                 // of the prompt, only when the log wants it
};

struct PreparedRequest {
  protocol::Protocol protocol = protocol::Protocol::kChat;
  std::string model;  // as the client wrote it
  bool stream = false;
  bool include_usage = false;
  bool single_call = false;  // no further call after the first
  bool timings = false;
  int prompt_logprobs = -1;  // alternatives that the answer tells for each token of the prompt; -1: none of it
  std::vector<PreparedPrompt> prompts;  // several only for Completions
};

struct PrepareContext {
  const ServiceOptions& options;
  const protocol::CodecOptions& codec;
  const text::Tokenizer& tokenizer;
  text::Encoder& encoder;  // of this thread, for the time
  EnginePort& engine;      // compiles constraints
  std::int64_t max_seq_len = 0;
  TokenId eos_id = 0;
  std::string_view salt{};          // of the client's key
  std::uint64_t unseeded_seed = 0;  // for requests without a seed
};

// `max_seq_len` bounds what max_tokens may be.
[[nodiscard]] protocol::CodecOptions CodecOptionsOf(const ServiceOptions& options, std::int64_t max_seq_len);

[[nodiscard]] ApiResult<PreparedRequest> PrepareRequest(protocol::Protocol protocol, std::string_view body,
                                                        const PrepareContext& context);

// Tokens of a request's prompt (count_tokens, input_tokens).
[[nodiscard]] ApiResult<std::int64_t> CountPromptTokens(protocol::Protocol protocol, std::string_view body,
                                                        const PrepareContext& context);

// 404 that names the model and those that there are.
[[nodiscard]] ApiError NoSuchModel(std::string_view name, const ServiceOptions& options);
// The body's model, if it is text, must be one of the server's.
[[nodiscard]] ApiResult<void> CheckModel(const protocol::Json& body, const ServiceOptions& options);

// The body as an object: 413 for one that is too large, else 400.
[[nodiscard]] ApiResult<protocol::Json> ReadObject(std::string_view body, const ServiceOptions& options);

// Ids of a rendered prompt. Pictures are refused.
[[nodiscard]] ApiResult<std::vector<TokenId>> EncodePrompt(const protocol::Prompt& prompt, text::Encoder& encoder);

}  // namespace galley::serve
