// SPDX-License-Identifier: Apache-2.0
#include "galley/serve/foreign_members.h"

#include <fmt/format.h>

#include <algorithm>

#include "galley/protocol/shape.h"

namespace galley::serve {
namespace {

using protocol::Get;
using protocol::Json;
using protocol::Protocol;
using protocol::Text;

constexpr unsigned Bit(Protocol protocol) {
  return 1u << static_cast<unsigned>(protocol);
}
constexpr unsigned kChat = Bit(Protocol::kChat), kCompletions = Bit(Protocol::kCompletions),
                   kResponses = Bit(Protocol::kResponses), kMessages = Bit(Protocol::kMessages);
constexpr unsigned kAll = kChat | kCompletions | kResponses | kMessages;

constexpr ForeignMember kMembers[] = {
    // How tokens are drawn and texts are read.
    {kAll, "use_beam_search", false, "answers are drawn token by token; n gives several"},
    {kAll, "logits_processors", false, "use logit_bias, allowed_token_ids or bad_words"},
    {kAll, "custom_logit_processor", false, "use logit_bias, allowed_token_ids or bad_words"},
    {kAll, "stop_regex", false, "use stop, or hold the whole answer to a regex"},
    {kAll, "truncate_prompt_tokens", false, "nothing is cut off a prompt; send a shorter one"},
    {kAll, "skip_special_tokens", true, "control tokens are never shown"},
    {kAll, "thinking_token_budget", false, "use reasoning_effort, and max_tokens for all of the output"},
    {kAll, "thinking_budget", false, "use reasoning_effort, and max_tokens for all of the output"},
    {kAll, "guided_whitespace_pattern", false, "blanks in JSON are what its grammar allows"},
    {kAll, "lora_path", false, "there are no adapters; leave it out"},
    {kAll, "lora_request", false, "there are no adapters; leave it out"},
    {kAll, "session_params", false, "every request holds its whole conversation"},
    {kAll, "return_hidden_states", false, "only tokens and their log probabilities are told"},
    {kAll, "return_tokens_as_token_ids", false, "tokens are told as text; /tokenize gives ids"},
    {kAll, "return_token_ids", false, "tokens are told as text; /tokenize gives ids"},
    {kAll, "prompt_embeds", false, "give the prompt as text or as token ids"},
    {kAll, "input_embeds", false, "give the prompt as text or as token ids"},
    {kAll, "separate_reasoning", true, "reasoning always stands apart; include_reasoning: false leaves it out"},
    {kChat, "add_generation_prompt", true, "use continue_final_message, or prefix in the last message"},
    {kChat, "add_special_tokens", false, "the chat format begins with its own"},
    {kCompletions, "add_special_tokens", true, "give the prompt as token ids, which are taken as they are"},
    {kChat, "echo", false, "only Completions shows the prompt again"},
    {kChat, "documents", false, "put them into a message"},
    {kAll, "chat_template", false, "the model's own chat format is built in"},
    {kAll, "functions", false, "use tools"},
    {kAll, "function_call", false, "use tool_choice"},
    {kAll, "audio", false, "answers are text"},
    {kAll, "web_search_options", false, "this server runs no tools of its own"},
    {kAll, "mcp_servers", false, "this server runs no tools of its own"},
    {kResponses, "conversation", false, "nothing is stored; send the whole conversation in input"},
    {kResponses, "prompt", false, "nothing is stored; send instructions and input"},
    {kMessages, "container", false, "this server runs no tools of its own"},
    // What another API calls differently.
    {kChat | kCompletions | kMessages, "max_output_tokens", false, "this API has max_tokens"},
    {kChat | kCompletions | kMessages, "max_new_tokens", false, "this API has max_tokens"},
    {kCompletions | kMessages, "max_completion_tokens", false, "this API has max_tokens"},
    {kCompletions, "messages", false, "chats go to /v1/chat/completions"},
    {kCompletions, "tools", false, "tools go to /v1/chat/completions"},
    {kResponses, "max_tokens", false, "this API has max_output_tokens"},
    {kResponses, "max_completion_tokens", false, "this API has max_output_tokens"},
    {kResponses, "max_new_tokens", false, "this API has max_output_tokens"},
    {kResponses, "messages", false, "this API has input"},
    {kResponses, "stop", false, "this API has no stop sequences; Chat Completions has"},
    {kResponses, "response_format", false, "this API has text.format"},
    {kResponses, "reasoning_effort", false, "this API has reasoning.effort"},
    {kResponses, "thinking", false, "this API has reasoning.effort"},
    {kResponses, "enable_thinking", true, "this API has reasoning.effort"},
    {kResponses, "chat_template_kwargs", false, "this API has reasoning.effort"},
    {kMessages, "stop", false, "this API has stop_sequences"},
    {kChat | kCompletions, "stop_sequences", false, "this API has stop"},
    {kResponses, "stop_sequences", false, "this API has no stop sequences; Chat Completions has"},
    {kCompletions, "top_logprobs", false, "this API has logprobs, a number"},
    {kResponses, "logprobs", false, "this API has top_logprobs"},
    {kMessages, "logprobs", false, "this API tells none; Chat Completions does"},
    {kMessages, "top_logprobs", false, "this API tells none; Chat Completions does"},
    {kMessages, "response_format", false, "this API has output_config.format"},
    {kMessages, "reasoning_effort", false, "this API has output_config.effort"},
    {kMessages, "enable_thinking", true, "this API has thinking"},
    {kMessages, "chat_template_kwargs", false, "this API has thinking"},
};

tl::unexpected<ApiError> Wrong(std::string_view member, std::string message) {
  return Refuse({.status = 400, .message = std::move(message), .param = std::string(member)});
}

bool SaysNothing(const Json& value, bool neutral) {
  if (value.is_bool()) return protocol::IsTrue(value) == neutral;
  const bool empty = (value.is_string() && Text(value).empty()) || (value.is_array() && value.if_array()->empty()) ||
                     (value.is_object() && value.if_object()->empty());
  return value.is_null() || empty;
}

ApiResult<void> RefuseOthers(Protocol protocol, const Json& body) {
  for (const ForeignMember& member : kMembers) {
    if ((member.apis & Bit(protocol)) == 0 || SaysNothing(Get(body, member.name), member.neutral)) continue;
    return Refuse({.status = 400,
                   .message = fmt::format("{} is not supported: {}", member.name, member.instead),
                   .param = std::string(member.name),
                   .code = "unsupported_parameter"});
  }
  const Json& modalities = Get(body, "modalities");
  if (!modalities.is_null() && !modalities.is_array())
    return Wrong("modalities", fmt::format("modalities must be a list, as [\"text\"], not {}", modalities.type_name()));
  for (const Json& modality : protocol::Elements(modalities))
    if (Text(modality) != "text")
      return Wrong("modalities", fmt::format("modalities: {} is not supported: answers are text", DumpJson(modality)));
  return {};
}

// vLLM's and SGLang's switches for thinking, as the codec spells them: at the top, or among the template's arguments.
ApiResult<void> TranslateThinking(Json& body) {
  const auto take = [&](const Json& holder, std::string_view name) -> ApiResult<void> {
    const Json& value = Get(holder, name);
    if (value.is_null()) return {};
    if (!value.is_bool())
      return Wrong(name, fmt::format("{} must be true or false, not {}", name, Shown(DumpJson(value))));
    const bool on = protocol::IsTrue(value);
    if (Get(body, "thinking").is_null())
      body.Set("thinking", Json::MakeObject({{"type", on ? "enabled" : "disabled"}}));
    return {};
  };
  const Json given = Get(body, "chat_template_kwargs");
  if (!given.is_null() && !given.is_object())
    return Wrong("chat_template_kwargs", fmt::format("chat_template_kwargs must be an object, as "
                                                     "{{\"enable_thinking\": false}}, not {}",
                                                     given.type_name()));
  for (const std::string_view name : {"thinking", "enable_thinking"})
    if (auto taken = take(given, name); !taken) return taken;
  if (auto taken = take(body, "enable_thinking"); !taken) return taken;
  if (const Json& effort = Get(given, "reasoning_effort"); !effort.is_null() && Get(body, "reasoning_effort").is_null())
    body.Set("reasoning_effort", effort);
  return {};
}

ApiResult<void> TranslateMessages(Json& body) {
  Json* messages = body.Find("messages");
  Json::Array* list = messages == nullptr ? nullptr : messages->if_array();
  const Json go_on = Get(body, "continue_final_message");
  if (!go_on.is_null() && !go_on.is_bool())
    return Wrong("continue_final_message", "continue_final_message: give true or false");
  if (list == nullptr) return {};
  for (std::size_t i = 0; i < list->size(); ++i) {
    Json& message = (*list)[i];
    // The word of newer clients for what the model knows as system.
    if (Text(message, "role") == "developer") message.Set("role", "system");
    if (!Get(message, "function_call").is_null())
      return Wrong("messages", fmt::format("messages[{}].function_call is not supported: use tool_calls", i));
  }
  if (!protocol::IsTrue(go_on)) return {};
  if (list->empty() || Text(list->back(), "role") != "assistant")
    return Wrong("continue_final_message", "continue_final_message: the last message must be the assistant's");
  list->back().Set("prefix", true);
  if (Json* prompt = body.Find("add_generation_prompt")) *prompt = Json();
  return {};
}

// OpenAI's API takes one of the two, since they are two names of one limit.
ApiResult<void> OneLimit(const Json& body) {
  const Json &old_name = Get(body, "max_tokens"), &new_name = Get(body, "max_completion_tokens");
  if (old_name.is_null() || new_name.is_null() || old_name == new_name) return {};
  return Wrong("max_completion_tokens",
               fmt::format("max_tokens is {} and max_completion_tokens {}; they are one limit, so give one of them",
                           DumpJson(old_name), DumpJson(new_name)));
}

// Other servers take structural tags as a response_format, and Chat's response_format for Completions too.
ApiResult<void> TranslateFormat(Protocol protocol, Json& body) {
  const Json format = Get(body, "response_format");
  const std::string_view type = Text(format, "type");
  const bool is_tag = type == "structural_tag";
  if (format.is_null() || type == "text" || (protocol == Protocol::kChat && !is_tag)) return {};
  Json wanted;
  if (type == "json_object") wanted = Json::MakeObject({{"json_object", true}});
  if (type == "json_schema") wanted = Json::MakeObject({{"json", Get(Get(format, "json_schema"), "schema")}});
  if (type == "regex") wanted = Json::MakeObject({{"regex", Get(format, "regex")}});
  if (is_tag) wanted = Json::MakeObject({{"structural_tag", format}});
  if (wanted.is_object() && wanted.if_object()->front().value.is_null())
    return Wrong("response_format", fmt::format("response_format of type {0} has no {0}{1}", type,
                                                type == "json_schema" ? ".schema" : ""));
  if (wanted.is_null())
    return Wrong(
        "response_format",
        "response_format must be an object whose type is text, json_object, json_schema, regex or structural_tag");
  if (!Get(body, "structured_outputs").is_null())
    return Wrong("response_format", "response_format and structured_outputs both constrain the answer; give one");
  wanted.Set(std::string(kAskedAs), "response_format");
  body.Set("response_format", Json());
  body.Set("structured_outputs", std::move(wanted));
  return {};
}

// The older name of Messages' output_config.format.
ApiResult<void> TranslateOutputFormat(Json& body) {
  const Json format = Get(body, "output_format");
  Json config = Get(body, "output_config");
  if (format.is_null() || !(config.is_null() || config.is_object())) return {};
  if (!Get(config, "format").is_null())
    return Wrong("output_format", "output_format and output_config.format are two names of one form; give one");
  config.Set("format", format);
  body.Set("output_format", Json());
  body.Set("output_config", std::move(config));
  return {};
}

}  // namespace

std::span<const ForeignMember> ForeignMembers() {
  return kMembers;
}

ApiResult<void> TranslateForeign(Protocol protocol, Json& body) {
  if (protocol == Protocol::kChat) {
    if (auto done = TranslateThinking(body); !done) return done;
    if (auto done = TranslateMessages(body); !done) return done;
    if (auto done = OneLimit(body); !done) return done;
  }
  if (protocol == Protocol::kChat || protocol == Protocol::kCompletions)
    if (auto done = TranslateFormat(protocol, body); !done) return done;
  if (protocol == Protocol::kMessages)
    if (auto done = TranslateOutputFormat(body); !done) return done;
  return RefuseOthers(protocol, body);
}

}  // namespace galley::serve
