// SPDX-License-Identifier: Apache-2.0
// Responses answers.
#include <fmt/format.h>

#include "galley/protocol/answer_internal.h"
#include "galley/protocol/patch_input.h"

namespace galley::protocol::internal {
namespace {

// What is being written.
enum class ItemKind { kNone, kReasoning, kMessage, kFunction, kCustom, kSearch };

class ResponsesWriter : public AnswerWriter {
 public:
  ResponsesWriter(const ParsedRequest& request, const AnswerOptions& options) : request_(request), options_(options) {}

  void Start(const ReadyInfo&, std::vector<AnswerEvent>& out) override {
    for (std::string_view name : {"response.created", "response.in_progress"})
      Add(name, {{"response", ResponseJson("in_progress", Json(), Json())}}, out);
  }

  void Event(const OutputEvent& event, std::vector<AnswerEvent>& out) override {
    switch (event.kind) {
      case OutputKind::kReasoning:
        if (kind_ != ItemKind::kReasoning) OpenReasoning(out);
        reasoned_ = reasoned_ || !event.text.empty();
        text_ += event.text;
        AddToPart("response.reasoning_text.delta", {{"delta", event.text}}, out);
        break;
      case OutputKind::kContent:
        Content(event, out);
        break;
      case OutputKind::kCallStart:
        OpenCall(event.text, out);
        break;
      case OutputKind::kCallArguments:
        Arguments(event.text, out);
        break;
    }
  }

  void End(const OutputResult& result, const AnswerUsage& usage, std::vector<AnswerEvent>& out) override {
    const bool incomplete = result.finish != Finish::kStop && !result.stop_sequence;
    Close(incomplete, false, out);
    Json details = Json::MakeObject({{"reasoning_tokens", usage.reasoning_tokens.value_or(0)}});
    // Not one of this API's members; the name is that of Chat Completions.
    if (usage.accepted_drafts > 0) details.Set("accepted_prediction_tokens", usage.accepted_drafts);
    usage_ = Json::MakeObject({{"input_tokens", usage.prompt_tokens},
                               {"input_tokens_details", Json::MakeObject({{"cached_tokens", usage.cached_tokens}})},
                               {"output_tokens", usage.completion_tokens},
                               {"output_tokens_details", std::move(details)},
                               {"total_tokens", usage.prompt_tokens + usage.completion_tokens}});
    status_ = incomplete ? "incomplete" : "completed";
    if (incomplete)
      details_ =
          Json::MakeObject({{"reason", result.finish == Finish::kLength ? "max_output_tokens" : "content_filter"}});
    Add(incomplete ? "response.incomplete" : "response.completed", {{"response", Response()}}, out);
  }

  void Fail(const AnswerFailure& failure, std::vector<AnswerEvent>& out) override {
    Close(true, false, out);
    status_ = "failed";
    Json response = Response();
    response.Set("error", Json::MakeObject({{"code", failure.code}, {"message", failure.message}}));
    Add("response.failed", {{"response", std::move(response)}}, out);
  }

  [[nodiscard]] Json Response() const override { return ResponseJson(status_, details_, usage_); }

 private:
  using Members = std::vector<std::pair<std::string_view, Json>>;

  // The members of every response object, in the order that the API documents; those of the request come from echo.
  [[nodiscard]] Json ResponseJson(std::string_view status, const Json& details, const Json& usage) const {
    const Json& echo = request_.echo;
    const auto echoed = [&](std::string_view key) {
      const Json* value = echo.Find(key);
      return value == nullptr ? Json() : *value;
    };
    const bool ended = status != "in_progress";
    Json output(Json::Array{});
    for (const Json& item : items_) output.Push(item);
    return Json::MakeObject({{"id", options_.id},
                             {"object", "response"},
                             {"created_at", options_.created_s},
                             {"status", status},
                             {"background", false},
                             {"completed_at", ended ? Json(options_.created_s) : Json()},
                             {"content_filters", Json()},
                             {"error", Json()},
                             {"frequency_penalty", 0.0},
                             {"incomplete_details", details},
                             {"instructions", echoed("instructions")},
                             {"max_output_tokens", echoed("max_output_tokens")},
                             {"max_tool_calls", Json()},
                             {"model", options_.model},
                             {"moderation", Json()},
                             {"output", std::move(output)},
                             {"parallel_tool_calls", true},
                             {"presence_penalty", 0.0},
                             {"previous_response_id", Json()},
                             {"prompt_cache_key", Json()},
                             {"prompt_cache_retention", Json()},
                             {"reasoning", echoed("reasoning")},
                             {"safety_identifier", Json()},
                             {"service_tier", "default"},
                             {"store", false},
                             {"temperature", echoed("temperature")},
                             {"text", echoed("text")},
                             {"tool_choice", echoed("tool_choice")},
                             {"tools", echoed("tools")},
                             {"top_logprobs", echoed("top_logprobs")},
                             {"top_p", echoed("top_p")},
                             {"truncation", "disabled"},
                             {"usage", usage},
                             {"user", echoed("user")},
                             {"metadata", Json(Json::Object{})}});
  }

  void Add(std::string_view name, Members&& members, std::vector<AnswerEvent>& out) {
    Json data = Json::MakeObject({{"type", name}});
    for (auto& [key, value] : members) data.Set(key, std::move(value));
    data.Set("sequence_number", sequence_++);
    out.push_back({std::string(name), std::move(data)});
  }
  void AddToItem(std::string_view name, Members members, std::vector<AnswerEvent>& out) {
    members.emplace_back("item_id", *item_.Find("id"));
    members.emplace_back("output_index", static_cast<int>(items_.size()));
    Add(name, std::move(members), out);
  }
  void AddToPart(std::string_view name, Members members, std::vector<AnswerEvent>& out) {
    members.emplace_back("content_index", 0);
    AddToItem(name, std::move(members), out);
  }

  [[nodiscard]] std::string ItemId(std::string_view prefix) const {
    return fmt::format("{}_{}_{}", prefix, options_.id, items_.size());
  }

  void OpenItem(ItemKind kind, Json item, std::vector<AnswerEvent>& out) {
    kind_ = kind;
    item_ = std::move(item);
    text_.clear();
    logprobs_ = Json(Json::Array{});
    Add("response.output_item.added", {{"item", item_}, {"output_index", static_cast<int>(items_.size())}}, out);
  }

  void OpenReasoning(std::vector<AnswerEvent>& out) {
    Close(false, false, out);
    OpenItem(ItemKind::kReasoning,
             Json::MakeObject({{"type", "reasoning"},
                               {"id", ItemId("rs")},
                               {"status", "in_progress"},
                               {"content", Json(Json::Array{})},
                               {"summary", Json(Json::Array{})},
                               {"encrypted_content", fmt::format("{}-{}", options_.id, items_.size())}}),
             out);
    AddToPart("response.content_part.added", {{"part", ReasoningPart()}}, out);
  }

  void Content(const OutputEvent& event, std::vector<AnswerEvent>& out) {
    if (kind_ != ItemKind::kMessage) {
      Close(false, false, out);
      OpenItem(ItemKind::kMessage,
               Json::MakeObject({{"type", "message"},
                                 {"id", ItemId("msg")},
                                 {"status", "in_progress"},
                                 {"role", "assistant"},
                                 {"phase", "final_answer"},
                                 {"content", Json(Json::Array{})}}),
               out);
      AddToPart("response.content_part.added", {{"part", TextPart()}}, out);
    }
    text_ += event.text;
    const Json entries = LogprobsJson(event.logprobs, request_.inference).value_or(Json(Json::Array{}));
    for (const Json& entry : *entries.if_array()) logprobs_.Push(entry);
    AddToPart("response.output_text.delta", {{"delta", event.text}, {"logprobs", entries}}, out);
  }

  void OpenCall(const std::string& name, std::vector<AnswerEvent>& out) {
    Close(false, true, out);
    const std::string call_id = options_.call_id(calls_++, request_.conversation.thinking && !reasoned_);
    if (name == "apply_patch" && request_.custom_apply_patch) {
      patch_ = PatchInput();
      OpenItem(ItemKind::kCustom,
               Json::MakeObject({{"type", "custom_tool_call"},
                                 {"id", ItemId("ctc")},
                                 {"status", "in_progress"},
                                 {"call_id", call_id},
                                 {"name", name},
                                 {"input", ""}}),
               out);
    } else if (name == "tool_search" && request_.client_tool_search) {
      OpenItem(ItemKind::kSearch,
               Json::MakeObject({{"type", "tool_search_call"},
                                 {"id", ItemId("tsc")},
                                 {"status", "in_progress"},
                                 {"call_id", call_id},
                                 {"execution", "client"},
                                 {"arguments", Json(Json::Object{})}}),
               out);
    } else {
      const auto space = request_.namespaces.find(name);
      const bool qualified = space != request_.namespaces.end();
      Json item = Json::MakeObject({{"type", "function_call"},
                                    {"id", ItemId("fc")},
                                    {"status", "in_progress"},
                                    {"call_id", call_id},
                                    {"name", qualified ? space->second.second : name}});
      if (qualified) item.Set("namespace", space->second.first);
      item.Set("arguments", "");
      OpenItem(ItemKind::kFunction, std::move(item), out);
    }
  }

  void Arguments(const std::string& text, std::vector<AnswerEvent>& out) {
    if (kind_ == ItemKind::kFunction) {
      text_ += text;
      AddToItem("response.function_call_arguments.delta", {{"delta", text}}, out);
    } else if (kind_ == ItemKind::kSearch) {
      text_ += text;
    } else if (const std::optional<std::string> input = patch_.Push(text)) {
      text_ += *input;
      AddToItem("response.custom_tool_call_input.delta", {{"delta", *input}}, out);
    }
  }

  [[nodiscard]] Json ReasoningPart() const { return Json::MakeObject({{"type", "reasoning_text"}, {"text", text_}}); }
  [[nodiscard]] Json TextPart() const {
    return Json::MakeObject(
        {{"type", "output_text"}, {"annotations", Json(Json::Array{})}, {"logprobs", logprobs_}, {"text", text_}});
  }

  void Close(bool incomplete, bool before_call, std::vector<AnswerEvent>& out) {
    switch (kind_) {
      case ItemKind::kNone:
        return;
      case ItemKind::kReasoning: {
        AddToPart("response.reasoning_text.done", {{"text", text_}}, out);
        AddToPart("response.content_part.done", {{"part", ReasoningPart()}}, out);
        item_.Set("content", Json(Json::Array{ReasoningPart()}));
        break;
      }
      case ItemKind::kMessage:
        AddToPart("response.output_text.done", {{"logprobs", logprobs_}, {"text", text_}}, out);
        AddToPart("response.content_part.done", {{"part", TextPart()}}, out);
        if (before_call) item_.Set("phase", "commentary");
        item_.Set("content", Json(Json::Array{TextPart()}));
        break;
      case ItemKind::kFunction:
        AddToItem("response.function_call_arguments.done", {{"arguments", text_}}, out);
        item_.Set("arguments", text_);
        break;
      case ItemKind::kCustom:
        AddToItem("response.custom_tool_call_input.done", {{"input", text_}}, out);
        item_.Set("input", text_);
        break;
      case ItemKind::kSearch:
        if (const Result<Json> arguments = ParseJson(text_)) item_.Set("arguments", *arguments);
        break;
    }
    item_.Set("status", incomplete ? "incomplete" : "completed");
    Add("response.output_item.done", {{"item", item_}, {"output_index", static_cast<int>(items_.size())}}, out);
    items_.push_back(std::move(item_));
    kind_ = ItemKind::kNone;
  }

  const ParsedRequest& request_;
  const AnswerOptions& options_;
  std::int64_t sequence_ = 0;
  std::vector<Json> items_;  // closed
  ItemKind kind_ = ItemKind::kNone;
  Json item_;
  std::string text_;  // of the open item
  Json logprobs_;
  PatchInput patch_;
  bool reasoned_ = false;
  int calls_ = 0;
  std::string status_ = "in_progress";
  Json details_;
  Json usage_;
};

}  // namespace

std::unique_ptr<AnswerWriter> MakeResponsesWriter(const ParsedRequest& request, const AnswerOptions& options) {
  return std::make_unique<ResponsesWriter>(request, options);
}

}  // namespace galley::protocol::internal
