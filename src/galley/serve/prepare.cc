// SPDX-License-Identifier: Apache-2.0
#include "galley/serve/prepare.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>
#include <utility>

#include "galley/protocol/shape.h"
#include "galley/serve/constraint.h"
#include "galley/serve/foreign_members.h"

namespace galley::serve {
namespace {

using protocol::Get;
using protocol::Json;
using protocol::ParsedRequest;
using protocol::Protocol;
using protocol::Text;

constexpr std::size_t kPromptsMax = 256;
constexpr std::int64_t kEchoScoresMax = 1'000'000;  // some hundred megabytes of answer

// Whether the client wants a call and nothing else.
bool DemandsCall(Protocol protocol, const Json& body) {
  const Json& choice = Get(body, "tool_choice");
  if (protocol == Protocol::kMessages) return Text(choice, "type") == "any" || Text(choice, "type") == "tool";
  return protocol != Protocol::kCompletions && (Text(choice) == "required" || choice.is_object());
}

FieldLimits LimitsOf(const PrepareContext& context) {
  return {.options = context.options, .vocab_size = context.tokenizer.vocab_size(), .max_seq_len = context.max_seq_len};
}

// What the codec lets pass, as DeepSeek's service does, but what no client can have meant.
ApiResult<void> CheckSense(Protocol protocol, const Json& body) {
  if (protocol == Protocol::kCompletions && protocol::IsTrue(Get(body, "echo")) && !Text(body, "suffix").empty())
    return Refuse({.status = 400,
                   .message = "echo: with suffix the prompt is no text that could be shown; send one of them",
                   .param = "echo"});
  if (protocol == Protocol::kMessages && Get(body, "max_tokens").is_null())
    return Refuse({.status = 400, .message = "missing field `max_tokens`; give at least 1", .param = "max_tokens"});
  return {};
}

// Log probabilities of prompts are the one part of an answer that a short request makes as large as it likes.
ApiResult<void> CheckEcho(const std::vector<PreparedPrompt>& prompts) {
  std::int64_t scores = 0;
  for (const PreparedPrompt& prompt : prompts)
    scores += std::ssize(prompt.request.prompt_ids) * (prompt.request.prompt_logprobs + 1) * prompt.request.n;
  if (scores <= kEchoScoresMax) return {};
  return Refuse({.status = 400,
                 .message = fmt::format("the answer would have {} log probabilities of prompts, more than {}; ask for "
                                        "fewer alternatives, choices or prompts",
                                        scores, kEchoScoresMax),
                 .param = "logprobs"});
}

// The prompts of a Completions body that has several, as values for its member `prompt`, which is then null; none when
// there is one.
ApiResult<std::vector<Json>> SeveralPrompts(Protocol protocol, Json& body) {
  const std::span<const Json> elements = protocol::Elements(Get(body, "prompt"));
  std::vector<Json> prompts;
  if (protocol != Protocol::kCompletions || elements.size() < 2 || elements[0].is_number()) return prompts;
  if (elements.size() > kPromptsMax)
    return Refuse(
        {.status = 400,
         .message = fmt::format("prompt: {} prompts in one request are more than {}", elements.size(), kPromptsMax),
         .param = "prompt"});
  for (const Json& element : elements) {
    if (element.is_string() != elements[0].is_string() || (!element.is_string() && !element.is_array()))
      return Refuse({.status = 400,
                     .message = "prompt: texts, token ids and lists of token ids cannot be mixed",
                     .param = "prompt"});
    prompts.push_back(element.is_string() ? element : Json(Json::Array{element}));
  }
  body.Set("prompt", Json());
  return prompts;
}

engine::SamplingParams SamplingOf(const ParsedRequest& parsed, const SamplingFields& fields,
                                  const PrepareContext& context) {
  const protocol::Inference& inference = parsed.inference;
  const SamplingDefaults& defaults = context.options.defaults;
  const bool thinking = parsed.conversation.thinking;
  const bool raw = parsed.protocol == Protocol::kCompletions;
  engine::SamplingParams sampling;
  sampling.temperature = inference.temperature;
  sampling.top_p = inference.top_p;
  // The codec fixes the temperature while the model thinks, and V4.1's top_p where it does not (recipe 6).
  if (!fields.gave_temperature && (raw || !thinking))
    sampling.temperature = defaults.temperature.value_or(sampling.temperature);
  const bool fixed_top_p = !raw && !thinking && parsed.version == protocol::ModelVersion::kV41;
  if (!fields.gave_top_p && !fixed_top_p) sampling.top_p = defaults.top_p.value_or(sampling.top_p);
  sampling.top_k = fields.top_k;
  sampling.min_p = fields.min_p;
  sampling.seed = inference.seed.value_or(context.unseeded_seed);
  sampling.top_logprobs = inference.logprobs ? inference.top_logprobs.value_or(0) : -1;
  return sampling;
}

ApiResult<std::vector<TokenId>> PromptIds(ParsedRequest& parsed, const PrepareContext& context, std::string* text) {
  if (parsed.prompt_ids.empty()) {
    const protocol::Prompt prompt = protocol::RenderRequest(parsed, context.codec);
    auto ids = EncodePrompt(prompt, context.encoder);
    if (!ids) return Refuse(ids.error());
    if (text != nullptr) *text = prompt.text;
    return std::move(*ids);
  }
  std::vector<TokenId> ids;
  for (const std::uint32_t id : parsed.prompt_ids[0]) {
    if (id > 0x7FFFFFFF || !context.tokenizer.has_token(static_cast<TokenId>(id)))
      return Refuse({.status = 400,
                     .message = fmt::format("prompt: {} is not a token of this model, whose ids are below {}", id,
                                            context.tokenizer.vocab_size()),
                     .param = "prompt"});
    ids.push_back(static_cast<TokenId>(id));
  }
  // What an echo shows, and the log.
  if (auto decoded = context.tokenizer.Decode(ids)) {
    if (text != nullptr) *text = *decoded;
    if (parsed.echo_prompt) parsed.raw_prompt.text = std::move(*decoded);
  }
  return ids;
}

// Limits that must fit into the room behind the prompt: the model's usual one, and in Messages one beyond the context,
// which its clients send to models of every size.
void FitMaxTokens(const Json& body, const SamplingFields& fields, std::int64_t prompt_tokens,
                  const PrepareContext& context, ParsedRequest& parsed) {
  std::optional<std::uint32_t>& limit = parsed.inference.max_tokens;
  const auto room = static_cast<std::uint32_t>(std::max<std::int64_t>(context.max_seq_len - prompt_tokens, 1));
  if (!fields.gave_max_tokens && context.options.defaults.max_tokens && parsed.protocol != Protocol::kCompletions)
    limit = std::clamp(*context.options.defaults.max_tokens, 1u, room);
  const double given = Get(body, "max_tokens").is_number() ? Get(body, "max_tokens").AsDouble() : 0;
  if (parsed.protocol != Protocol::kMessages || given <= static_cast<double>(context.max_seq_len)) return;
  limit = room;
  parsed.warnings.push_back(fmt::format("max_tokens: {} is lowered to {}, what the context of {} tokens has room for",
                                        given, room, context.max_seq_len));
}

ApiResult<PreparedPrompt> PreparePrompt(Protocol protocol, Json body, const SamplingFields& fields,
                                        const PrepareContext& context) {
  // The codec takes one choice at a time; how many there are is the engine's affair.
  if (Get(body, "n").is_number()) body.Set("n", Json());
  auto parsed = protocol::ConvertBody(protocol, body, context.codec);
  if (!parsed) return Refuse(FromError(parsed.error()));
  if (DemandsCall(protocol, body) && parsed->conversation.tools.empty())
    return Refuse(
        {.status = 400, .message = "tool_choice demands a call, but there are no tools", .param = "tool_choice"});
  const auto constraint = ConstraintOf(*parsed, body, !fields.parallel_calls);
  if (!constraint) return Refuse(constraint.error());
  // The codec knows seeds where their APIs do.
  if (!parsed->inference.seed) parsed->inference.seed = fields.seed;
  parsed->parsing.keep_stop = fields.keep_stop;
  parsed->hide_reasoning = !fields.reasoning;
  PreparedPrompt prompt;
  prompt.parsed = std::make_unique<ParsedRequest>(std::move(*parsed));
  auto ids = PromptIds(*prompt.parsed, context, context.options.log_prompts ? &prompt.text : nullptr);
  if (!ids) return Refuse(ids.error());
  FitMaxTokens(body, fields, std::ssize(*ids), context, *prompt.parsed);
  const auto limit =
      protocol::ResolveMaxTokens(*prompt.parsed, ids->size(), static_cast<std::uint64_t>(context.max_seq_len));
  if (!limit) {
    ApiError error = FromError(limit.error());
    error.code = "context_length_exceeded";
    return Refuse(std::move(error));
  }
  if (std::cmp_greater(fields.min_tokens, *limit))
    return Refuse({.status = 400,
                   .message = fmt::format("min_tokens: {} are more than the {} tokens that the answer may have at most",
                                          fields.min_tokens, *limit),
                   .param = "min_tokens"});
  engine::EngineRequest& request = prompt.request;
  request.prompt_ids = std::move(*ids);
  request.sampling = SamplingOf(*prompt.parsed, fields, context);
  request.prompt_logprobs = fields.prompt_logprobs;
  if (prompt.parsed->echo_prompt)
    request.prompt_logprobs = std::max(request.prompt_logprobs, request.sampling.top_logprobs);
  request.banned_words = fields.banned_words;
  request.rules = fields.rules;
  request.max_tokens = static_cast<int>(*limit);
  request.min_tokens = fields.min_tokens;
  request.stop_ids = fields.stop_token_ids;
  // An answer that must go on never draws the end, so that it is as long as asked for and stays an answer.
  if (fields.ignore_eos)
    request.rules.banned_ids.push_back(context.eos_id);
  else
    request.stop_ids.push_back(context.eos_id);
  if (*constraint) {
    std::vector<std::string> warnings;
    auto compiled = context.engine.Compile(**constraint, warnings);
    if (!compiled) return Refuse(compiled.error());
    request.constraint = std::move(*compiled);
    for (const std::string& warning : warnings)
      prompt.parsed->warnings.push_back((*constraint)->param + ": " + warning);
  }
  request.n = fields.n;
  request.priority = fields.priority;
  request.use_cache = fields.use_cache;
  request.cache_salt = fmt::format("{}\n{}", context.salt, fields.cache_salt);
  if (context.salt.empty() && fields.cache_salt.empty()) request.cache_salt.clear();
  return prompt;
}

}  // namespace

ApiError NoSuchModel(std::string_view name, const ServiceOptions& options) {
  return {.status = 404,
          .message = fmt::format("The model `{}` does not exist; this server has {}", Shown(name),
                                 fmt::join(options.model_names, ", ")),
          .param = "model",
          .code = "model_not_found"};
}

ApiResult<void> CheckModel(const Json& body, const ServiceOptions& options) {
  const Json& model = Get(body, "model");
  if (model.is_null())
    return Refuse(
        {.status = 400,
         .message = fmt::format("missing field `model`; this server has {}", fmt::join(options.model_names, ", ")),
         .param = "model"});
  const auto& names = options.model_names;
  if (!model.is_string() || std::find(names.begin(), names.end(), Text(model)) != names.end()) return {};
  return Refuse(NoSuchModel(Text(model), options));
}

ApiResult<Json> ReadObject(std::string_view body, const ServiceOptions& options) {
  auto json = protocol::ReadBody(body, options.limits);
  if (!json) {
    ApiError error = FromError(json.error());
    if (body.size() > options.limits.body_bytes_max) error.status = 413;
    return Refuse(std::move(error));
  }
  if (!json->is_object())
    return Refuse({.status = 400, .message = fmt::format("the body must be a JSON object, not {}", json->type_name())});
  return std::move(*json);
}

protocol::CodecOptions CodecOptionsOf(const ServiceOptions& options, std::int64_t max_seq_len) {
  protocol::CodecOptions codec;
  const auto most = static_cast<std::uint32_t>(std::clamp<std::int64_t>(max_seq_len, 1, codec.thinking_max_tokens));
  codec.thinking_max_tokens = codec.non_thinking_max_tokens = most;
  codec.models.clear();
  for (const std::string& name : options.model_names) codec.models.emplace(name, protocol::ModelVersion::kV41);
  codec.default_thinking = options.default_thinking;
  codec.limits = options.limits;
  codec.keep_call_order = true;
  codec.continue_prefill = true;
  codec.enforce_any = true;
  codec.messages_format = true;
  codec.any_schema_root = true;
  codec.refuse_stateful = true;
  codec.refuse_builtin = true;
  codec.hide_markup = true;
  codec.render.keep_order = true;
  return codec;
}

ApiResult<std::vector<TokenId>> EncodePrompt(const protocol::Prompt& prompt, text::Encoder& encoder) {
  if (!prompt.images.empty())
    return Refuse({.status = 400, .message = "this server reads no images; leave them out", .code = "unsupported"});
  std::vector<text::ByteRange> ranges;
  ranges.reserve(prompt.special.size());
  for (const protocol::ByteRange& range : prompt.special) ranges.push_back({range.begin, range.end});
  auto ids = encoder.EncodeWithSpecialRanges(prompt.text, ranges);
  if (!ids) return Refuse(FromError(ids.error()));
  return std::move(*ids);
}

ApiResult<PreparedRequest> PrepareRequest(Protocol protocol, std::string_view body, const PrepareContext& context) {
  auto json = ReadObject(body, context.options);
  if (!json) return Refuse(json.error());
  if (auto checked = CheckModel(*json, context.options); !checked) return Refuse(checked.error());
  if (auto done = TranslateForeign(protocol, *json); !done) return Refuse(done.error());
  if (auto checked = CheckSense(protocol, *json); !checked) return Refuse(checked.error());
  auto fields = ReadSamplingFields(protocol, *json, LimitsOf(context));
  if (!fields) return Refuse(fields.error());
  const bool open_ai = protocol == Protocol::kChat || protocol == Protocol::kCompletions;
  if (fields->n > 1 && !open_ai)
    return Refuse({.status = 400, .message = "n: this API gives one answer", .param = "n"});
  if (fields->prompt_logprobs >= 0 && !open_ai)
    return Refuse({.status = 400, .message = "prompt_logprobs: this API tells none", .param = "prompt_logprobs"});
  PreparedRequest prepared;
  prepared.protocol = protocol;
  prepared.single_call = !fields->parallel_calls;
  prepared.timings = fields->timings;
  prepared.prompt_logprobs = fields->prompt_logprobs;
  auto several = SeveralPrompts(protocol, *json);
  if (!several) return Refuse(several.error());
  // The last one takes the body itself; before that there is one copy at a time, however large its other members are.
  const std::size_t count = std::max<std::size_t>(several->size(), 1);
  for (std::size_t i = 0; i < count; ++i) {
    Json one = i + 1 == count ? std::move(*json) : *json;
    if (!several->empty()) one.Set("prompt", std::move((*several)[i]));
    auto prompt = PreparePrompt(protocol, std::move(one), *fields, context);
    if (!prompt) return Refuse(prompt.error());
    prepared.prompts.push_back(std::move(*prompt));
  }
  if (auto checked = CheckEcho(prepared.prompts); !checked) return Refuse(checked.error());
  const ParsedRequest& first = *prepared.prompts.front().parsed;
  prepared.model = first.model;
  prepared.stream = first.stream;
  prepared.include_usage = first.include_usage;
  if (prepared.stream && prepared.prompt_logprobs >= 0)
    return Refuse({.status = 400,
                   .message = "prompt_logprobs stand in whole answers only; leave stream out",
                   .param = "prompt_logprobs"});
  return prepared;
}

ApiResult<std::int64_t> CountPromptTokens(Protocol protocol, std::string_view body, const PrepareContext& context) {
  auto json = ReadObject(body, context.options);
  if (!json) return Refuse(json.error());
  if (auto checked = CheckModel(*json, context.options); !checked) return Refuse(checked.error());
  if (auto done = TranslateForeign(protocol, *json); !done) return Refuse(done.error());
  if (auto fields = ReadSamplingFields(protocol, *json, LimitsOf(context)); !fields) return Refuse(fields.error());
  auto parsed = protocol::ConvertBody(protocol, *json, context.codec);
  if (!parsed) return Refuse(FromError(parsed.error()));
  auto ids = PromptIds(*parsed, context, nullptr);
  if (!ids) return Refuse(ids.error());
  return static_cast<std::int64_t>(ids->size());
}

}  // namespace galley::serve
