// SPDX-License-Identifier: Apache-2.0
// `galley generate`: one prompt, one answer.
#include <fmt/core.h>

#include "answer.h"
#include "command.h"
#include "files.h"
#include "galley/protocol/json.h"
#include "galley/text/utf8.h"
#include "grammar_options.h"
#include "interrupt.h"
#include "prompt.h"

namespace galley::app {
namespace {

using protocol::Json;

struct Rule {
  std::string_view option;
  std::string_view other;
  std::string_view message;
};

constexpr Rule kConflicts[] = {
    {"ids", "prompt-file", "the prompt is given twice"},
    {"ids", "raw", "token ids are always continued as they are"},
    {"ids", "special", "token ids need no spellings"},
    {"ids", "system", "token ids are continued as they are, without a chat around them"},
    {"ids", "thinking", "token ids are continued as they are, without a chat around them"},
    {"raw", "system", "a raw text has no chat around it"},
    {"raw", "thinking", "a raw text has no chat around it"},
};

constexpr Rule kNeeds[] = {
    {"special", "raw", "text inside a chat never becomes control tokens"},
    {"logprobs", "json", "log-probabilities are part of the JSON object"},
};

bool Given(const options::Values& values, std::string_view name) {
  return values.source(name) == options::Source::kCommandLine;
}

Status CheckCombination(const Context& context) {
  const options::Values& values = context.values;
  for (const Rule& rule : kConflicts) {
    if (Given(values, rule.option) && Given(values, rule.other)) {
      return Err(ErrorCode::kInvalidArgument, fmt::format("cannot go together with --{}: {}", rule.other, rule.message),
                 fmt::format("--{}", rule.option));
    }
  }
  for (const Rule& rule : kNeeds) {
    if (Given(values, rule.option) && !Given(values, rule.other)) {
      return Err(ErrorCode::kInvalidArgument, fmt::format("needs --{}: {}", rule.other, rule.message),
                 fmt::format("--{}", rule.option));
    }
  }
  if (Given(values, "ids") && !context.arguments.empty()) {
    return Err(ErrorCode::kInvalidArgument, "the prompt is given twice; leave out the arguments", "--ids");
  }
  return {};
}

// The prompt before a model is there to tokenize it.
struct Prompt {
  std::string text;
  std::vector<TokenId> ids;  // of --ids; then there is no text
};

Result<Prompt> ReadPrompt(Context& context) {
  Prompt prompt;
  if (Given(context.values, "ids")) {
    ASSIGN_OR_RETURN(prompt.ids, ReadIds(context));
  } else {
    ASSIGN_OR_RETURN(prompt.text, ReadText(context, /*strip_newline=*/true));
  }
  if (prompt.text.empty() && prompt.ids.empty()) {
    return Err(ErrorCode::kInvalidArgument, "the prompt is empty; say something");
  }
  return prompt;
}

Result<std::vector<TokenId>> Encode(const options::Values& values, Prompt prompt, const engine::Generator& generator) {
  if (!prompt.ids.empty()) return std::move(prompt.ids);
  if (values.Bool("raw")) {
    const auto added = values.Bool("special") ? text::AddedTokens::kMatch : text::AddedTokens::kAsText;
    return EncodeRaw(prompt.text, generator.config().bos_token_id, added, generator.tokenizer());
  }
  protocol::Conversation conversation = ConversationOf(values);
  protocol::Message message;
  message.role = protocol::Role::kUser;
  message.content = std::move(prompt.text);
  conversation.messages.push_back(std::move(message));
  return EncodeConversation(conversation, generator.tokenizer());
}

Json IdsJson(std::span<const TokenId> ids) {
  return Json(Json::Array(ids.begin(), ids.end()));
}

std::string SpellingOf(const text::Tokenizer& tokenizer, TokenId id) {
  return text::ReplaceInvalidUtf8(tokenizer.TokenBytes(id).value_or(""));
}

Json LogprobsJson(const engine::GenerateResult& result, const text::Tokenizer& tokenizer) {
  Json list(Json::Array{});
  for (const engine::GeneratedToken& token : result.tokens) {
    Json alternatives(Json::Array{});
    for (const engine::TokenLogprob& other : token.alternatives) {
      alternatives.Push(Json::MakeObject({{"id", other.id},
                                          {"token", SpellingOf(tokenizer, other.id)},
                                          {"logprob", static_cast<double>(other.logprob)}}));
    }
    list.Push(Json::MakeObject({{"id", token.id},
                                {"token", SpellingOf(tokenizer, token.id)},
                                {"logprob", static_cast<double>(token.logprob)},
                                {"top", std::move(alternatives)}}));
  }
  return list;
}

std::string AnswerJson(const Answer& answer, std::span<const TokenId> prompt_ids, const AnswerSettings& settings,
                       bool thinking, const text::Tokenizer& tokenizer) {
  std::vector<TokenId> ids;
  for (const engine::GeneratedToken& token : answer.result.tokens) ids.push_back(token.id);
  Json object = Json::MakeObject({{"prompt_ids", IdsJson(prompt_ids)}, {"ids", IdsJson(ids)}});
  if (thinking) object.Set("reasoning", answer.reasoning);
  object.Set("text", answer.text);
  object.Set("finish_reason", Name(answer.result.finish));
  if (answer.stop_index) object.Set("stop", settings.stops.strings()[*answer.stop_index]);
  object.Set("seed", settings.sampling.seed);
  if (settings.sampling.top_logprobs >= 0) object.Set("logprobs", LogprobsJson(answer.result, tokenizer));
  object.Set("timings", Json::MakeObject({{"prompt_tokens", static_cast<std::int64_t>(prompt_ids.size())},
                                          {"answer_tokens", static_cast<std::int64_t>(ids.size())},
                                          {"prefill_s", answer.result.timings.prefill_s},
                                          {"decode_s", answer.result.timings.decode_s}}));
  return protocol::DumpJson(object) + "\n";
}

}  // namespace

Result<int> RunGenerate(Context& context) {
  Terminal& terminal = context.terminal;
  const options::Values& values = context.values;
  RETURN_IF_ERROR(CheckCombination(context));
  ASSIGN_OR_RETURN(AnswerSettings settings, ReadAnswerSettings(values));
  if (values.Has("logprobs")) settings.sampling.top_logprobs = static_cast<int>(values.Int("logprobs"));
  ASSIGN_OR_RETURN(Prompt prompt, ReadPrompt(context));
  ASSIGN_OR_RETURN(std::optional<AskedGrammar> asked, ReadAskedGrammar(values));
  const bool json = values.Bool("json");
  const bool thinking = values.Bool("thinking") && !values.Bool("raw") && prompt.ids.empty();

  ASSIGN_OR_RETURN(const std::filesystem::path model_dir, ModelDir(context));
  RETURN_IF_ERROR(CheckWeights(context, model_dir));
  ASSIGN_OR_RETURN(const engine::GeneratorOptions generator_options, ReadGeneratorOptions(context, model_dir));
  ASSIGN_OR_RETURN(auto generator, context.make_generator(generator_options));
  AnswerRequest request;
  ASSIGN_OR_RETURN(request.prompt_ids, Encode(values, std::move(prompt), *generator));
  request.thinking = thinking;
  if (asked) {
    ASSIGN_OR_RETURN(request.constraint, MakeConstraint(std::move(*asked), *generator, thinking));
  }

  const Interrupt interrupt;
  AnswerPrinter printer(terminal, context.environment);
  if (!json) request.on_text = [&](Part part, std::string_view text) { printer.Print(part, text); };
  request.on_prefill = PrefillProgress(terminal, values.Int("prefill-chunk"));
  request.cancelled = [&] { return interrupt.requested() || terminal.output_closed() || !terminal.write_status(); };

  ASSIGN_OR_RETURN(const Answer answer, GenerateAnswer(*generator, settings, request));
  printer.End();
  if (json) terminal.Write(AnswerJson(answer, request.prompt_ids, settings, thinking, generator->tokenizer()));
  if (request.constraint != nullptr && answer.result.finish == engine::FinishReason::kLength)
    terminal.Complain("the answer was cut off by --max-tokens before it was what was asked for");
  if (values.Bool("show-timings")) terminal.Note(TimingsLine(request.prompt_ids.size(), answer.result));
  // This waits for the step that runs; a second interrupt still ends the process.
  generator.reset();
  const bool cancelled = answer.result.finish == engine::FinishReason::kCancelled;
  return cancelled && interrupt.requested() ? Info(ErrorCode::kCancelled).exit_code : kExitOk;
}

}  // namespace galley::app
