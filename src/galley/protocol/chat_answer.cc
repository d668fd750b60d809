// SPDX-License-Identifier: Apache-2.0
// Chat Completions and legacy Completions answers.
#include <algorithm>
#include <array>

#include "galley/protocol/answer_internal.h"

namespace galley::protocol::internal {
namespace {

Json UsageJson(const AnswerUsage& usage) {
  Json row = Json::MakeObject({{"prompt_tokens", usage.prompt_tokens},
                               {"completion_tokens", usage.completion_tokens},
                               {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
                               {"prompt_tokens_details", Json::MakeObject({{"cached_tokens", usage.cached_tokens}})}});
  Json details(Json::Object{});
  if (usage.reasoning_tokens) details.Set("reasoning_tokens", *usage.reasoning_tokens);
  if (usage.accepted_drafts > 0) details.Set("accepted_prediction_tokens", usage.accepted_drafts);
  if (!details.if_object()->empty()) row.Set("completion_tokens_details", std::move(details));
  row.Set("prompt_cache_hit_tokens", usage.cached_tokens);
  row.Set("prompt_cache_miss_tokens", std::max<std::int64_t>(0, usage.prompt_tokens - usage.cached_tokens));
  return row;
}

std::string_view FinishName(const OutputResult& result) {
  if (result.stop_sequence) return "stop";
  if (result.finish == Finish::kLength) return "length";
  if (result.finish == Finish::kContentFilter) return "content_filter";
  return result.calls > 0 ? "tool_calls" : "stop";
}

struct Call {
  std::string id;
  std::string name;
  std::string arguments;
};

class ChatWriter : public AnswerWriter {
 public:
  ChatWriter(const ParsedRequest& request, const AnswerOptions& options) : request_(request), options_(options) {}

  void Start(const ReadyInfo& ready, std::vector<AnswerEvent>& out) override {
    fingerprint_ = ready.fingerprint ? Json(*ready.fingerprint) : Json();
    Json delta = Json::MakeObject({{"role", "assistant"}});
    if (ShowsReasoning(request_))
      delta.Set("content", Json()).Set("reasoning_content", "");
    else
      delta.Set("content", "");
    if (thinking() && !ShowsReasoning(request_)) delta.Set("reasoning_content", Json());
    Chunk(std::move(delta), Json(), Json(), Json(), out);
  }

  void Event(const OutputEvent& event, std::vector<AnswerEvent>& out) override {
    Json delta(Json::Object{});
    Json logprobs;
    const std::optional<Json> entries = LogprobsJson(event.logprobs, request_.inference);
    const auto note = [&](std::string_view key, Json& all) {
      if (!entries) return;
      logprobs = Json::MakeObject({{key, *entries}});
      for (const Json& entry : *entries->if_array()) all.Push(entry);
    };
    switch (event.kind) {
      case OutputKind::kReasoning:
        reasoning_ += event.text;
        delta.Set("content", Json()).Set("reasoning_content", event.text);
        note("reasoning_content", reasoning_logprobs_);
        break;
      case OutputKind::kContent:
        content_ += event.text;
        delta.Set("content", event.text);
        if (thinking()) delta.Set("reasoning_content", Json());
        note("content", content_logprobs_);
        break;
      case OutputKind::kCallStart: {
        const int index = static_cast<int>(calls_.size());
        calls_.push_back({options_.call_id(index, thinking() && reasoning_.empty()), event.text, ""});
        delta.Set("tool_calls", Json(Json::Array{CallJson(index, "")}));
        break;
      }
      case OutputKind::kCallArguments:
        calls_.back().arguments += event.text;
        delta.Set("tool_calls",
                  Json(Json::Array{Json::MakeObject({{"index", static_cast<int>(calls_.size()) - 1},
                                                     {"function", Json::MakeObject({{"arguments", event.text}})}})}));
        break;
    }
    Chunk(std::move(delta), std::move(logprobs), Json(), Json(), out);
  }

  void End(const OutputResult& result, const AnswerUsage& usage, std::vector<AnswerEvent>& out) override {
    finish_ = FinishName(result);
    usage_ = UsageJson(usage);
    Json delta = Json::MakeObject({{"content", ""}});
    if (thinking()) delta.Set("reasoning_content", Json());
    Chunk(std::move(delta), Json(), Json(finish_), usage_, out);
  }

  void Fail(const AnswerFailure& failure, std::vector<AnswerEvent>& out) override {
    out.push_back(ErrorEvent(failure));
  }

  [[nodiscard]] Json Response() const override {
    Json message = Json::MakeObject({{"role", "assistant"}, {"content", content_}});
    if (ShowsReasoning(request_)) message.Set("reasoning_content", reasoning_);
    if (!calls_.empty()) {
      Json list(Json::Array{});
      for (std::size_t i = 0; i < calls_.size(); ++i) list.Push(CallJson(static_cast<int>(i), calls_[i].arguments));
      message.Set("tool_calls", std::move(list));
    }
    Json logprobs;
    if (!content_logprobs_.is_null()) logprobs.Set("content", content_logprobs_);
    if (!reasoning_logprobs_.is_null()) logprobs.Set("reasoning_content", reasoning_logprobs_);
    Json choice = Json::MakeObject({{"index", options_.choice_index},
                                    {"message", std::move(message)},
                                    {"logprobs", std::move(logprobs)},
                                    {"finish_reason", finish_}});
    Json response = Json::MakeObject({{"id", options_.id},
                                      {"object", "chat.completion"},
                                      {"created", options_.created_s},
                                      {"model", options_.model},
                                      {"choices", Json(Json::Array{})}});
    // An answer that failed before its end has no choice to show.
    if (!finish_.empty()) response.Set("choices", Json(Json::Array{std::move(choice)})).Set("usage", usage_);
    return response.Set("system_fingerprint", fingerprint_);
  }

 private:
  [[nodiscard]] bool thinking() const { return request_.conversation.thinking; }

  Json CallJson(int index, std::string_view arguments) const {
    const Call& call = calls_[static_cast<std::size_t>(index)];
    return Json::MakeObject({{"index", index},
                             {"id", call.id},
                             {"type", "function"},
                             {"function", Json::MakeObject({{"name", call.name}, {"arguments", arguments}})}});
  }

  void Chunk(Json delta, Json logprobs, Json finish, Json usage, std::vector<AnswerEvent>& out) const {
    Json choice = Json::MakeObject({{"index", options_.choice_index},
                                    {"delta", std::move(delta)},
                                    {"logprobs", std::move(logprobs)},
                                    {"finish_reason", std::move(finish)}});
    Json chunk = Json::MakeObject({{"id", options_.id},
                                   {"object", "chat.completion.chunk"},
                                   {"created", options_.created_s},
                                   {"model", options_.model},
                                   {"system_fingerprint", fingerprint_},
                                   {"choices", Json(Json::Array{std::move(choice)})}});
    // The last chunk always tells the usage; the others say that they do not where the client asked.
    const bool says_null = request_.include_usage || !request_.stream;
    if (!usage.is_null() || says_null) chunk.Set("usage", std::move(usage));
    out.push_back({"", std::move(chunk)});
  }

  const ParsedRequest& request_;
  const AnswerOptions& options_;
  Json fingerprint_;
  std::string content_;
  std::string reasoning_;
  std::vector<Call> calls_;
  Json content_logprobs_;
  Json reasoning_logprobs_;
  std::string finish_;
  Json usage_;
};

class CompletionsWriter : public AnswerWriter {
 public:
  CompletionsWriter(const ParsedRequest& request, const AnswerOptions& options)
      : request_(request), options_(options) {}

  void Start(const ReadyInfo& ready, std::vector<AnswerEvent>& out) override {
    fingerprint_ = ready.fingerprint ? Json(*ready.fingerprint) : Json();
    if (!request_.echo_prompt) return;
    const Prompt& prompt = request_.raw_prompt;
    const std::size_t begin = prompt.special.empty() ? 0 : prompt.special.front().end;
    Json logprobs;
    if (request_.inference.logprobs && !ready.echo.empty()) logprobs = Logprobs(ready.echo);
    Add(prompt.text.substr(begin), std::move(logprobs), out);
  }

  void Event(const OutputEvent& event, std::vector<AnswerEvent>& out) override {
    Json logprobs;
    if (request_.inference.logprobs && !event.logprobs.empty()) {
      std::vector<PromptToken> tokens;
      for (const Logprob& entry : event.logprobs) tokens.push_back({entry.bytes, entry.logprob, entry.top});
      logprobs = Logprobs(tokens);
    }
    Add(event.text, std::move(logprobs), out);
  }

  void End(const OutputResult& result, const AnswerUsage& usage, std::vector<AnswerEvent>& out) override {
    finish_ = FinishName(result);
    usage_ = UsageJson(usage);
    out.push_back({"", Row("", Json(), Json(finish_), usage_)});
  }

  void Fail(const AnswerFailure& failure, std::vector<AnswerEvent>& out) override {
    out.push_back(ErrorEvent(failure));
  }

  [[nodiscard]] Json Response() const override { return Row(text_, logprobs_, Json(finish_), usage_); }

 private:
  void Add(std::string_view text, Json logprobs, std::vector<AnswerEvent>& out) {
    text_ += text;
    const bool says_null = request_.include_usage;
    Json row = Row(text, logprobs, Json(), Json());
    if (says_null) row.Set("usage", Json());
    out.push_back({"", std::move(row)});
    if (!logprobs.is_null()) {
      for (std::string_view key : kLists)
        for (const Json& value : *logprobs.Find(key)->if_array()) List(key).Push(value);
    }
  }

  Json& List(std::string_view key) {
    if (logprobs_.Find(key) == nullptr) logprobs_.Set(key, Json(Json::Array{}));
    return *logprobs_.Find(key);
  }

  // Offsets are bytes into the whole text of the choice.
  Json Logprobs(const std::vector<PromptToken>& entries) const {
    const std::size_t wanted = request_.inference.top_logprobs.value_or(0);
    Json tokens(Json::Array{}), values(Json::Array{}), tops(Json::Array{}), offsets(Json::Array{});
    std::size_t offset = text_.size();
    for (const PromptToken& entry : entries) {
      tokens.Push(Json(TokenText(entry.bytes)));
      values.Push(entry.logprob ? Json(*entry.logprob) : Json());
      Json top(Json::Object{});
      for (std::size_t i = 0; i < entry.top.size() && i < wanted; ++i)
        top.Set(TokenText(entry.top[i].bytes), entry.top[i].logprob);
      // The token itself is always among them, so there may be one more than was asked for.
      if (entry.logprob) top.Set(TokenText(entry.bytes), *entry.logprob);
      tops.Push(entry.logprob ? std::move(top) : Json());
      offsets.Push(Json(std::uint64_t{offset}));
      offset += entry.bytes.size();
    }
    return Json::MakeObject({{kLists[0], std::move(tokens)},
                             {kLists[1], std::move(values)},
                             {kLists[2], std::move(tops)},
                             {kLists[3], std::move(offsets)}});
  }

  Json Row(std::string_view text, Json logprobs, Json finish, Json usage) const {
    Json choice = Json::MakeObject({{"text", text},
                                    {"index", options_.choice_index},
                                    {"logprobs", std::move(logprobs)},
                                    {"finish_reason", std::move(finish)}});
    Json row = Json::MakeObject({{"id", options_.id},
                                 {"object", "text_completion"},
                                 {"created", options_.created_s},
                                 {"model", options_.model},
                                 {"system_fingerprint", fingerprint_},
                                 {"choices", Json(Json::Array{std::move(choice)})}});
    if (!usage.is_null()) row.Set("usage", std::move(usage));
    return row;
  }

  static constexpr std::array<std::string_view, 4> kLists = {"tokens", "token_logprobs", "top_logprobs", "text_offset"};

  const ParsedRequest& request_;
  const AnswerOptions& options_;
  Json fingerprint_;
  std::string text_;
  Json logprobs_;
  std::string finish_;
  Json usage_;
};

}  // namespace

std::unique_ptr<AnswerWriter> MakeChatWriter(const ParsedRequest& request, const AnswerOptions& options) {
  return std::make_unique<ChatWriter>(request, options);
}

std::unique_ptr<AnswerWriter> MakeCompletionsWriter(const ParsedRequest& request, const AnswerOptions& options) {
  return std::make_unique<CompletionsWriter>(request, options);
}

}  // namespace galley::protocol::internal
