// SPDX-License-Identifier: Apache-2.0
// Messages answers.
#include <algorithm>

#include "galley/protocol/answer_internal.h"

namespace galley::protocol::internal {
namespace {

class MessagesWriter : public AnswerWriter {
 public:
  MessagesWriter(const ParsedRequest& request, const AnswerOptions& options) : request_(request), options_(options) {}

  void Start(const ReadyInfo& ready, std::vector<AnswerEvent>& out) override {
    usage_ = UsageJson({ready.prompt_tokens, ready.cached_tokens});
    Json message = Message();
    message.Set("stop_reason", Json()).Set("stop_sequence", Json());
    Add("message_start", {{"message", std::move(message)}}, out);
    // The thinking block opens at once, even if it stays empty.
    if (ShowsReasoning(request_))
      Open(Json::MakeObject({{"type", "thinking"}, {"thinking", ""}, {"signature", ""}}), out);
  }

  void Event(const OutputEvent& event, std::vector<AnswerEvent>& out) override {
    switch (event.kind) {
      case OutputKind::kReasoning:
        if (open_ != "thinking")
          Open(Json::MakeObject({{"type", "thinking"}, {"thinking", ""}, {"signature", ""}}), out);
        reasoned_ = reasoned_ || !event.text.empty();
        Delta("thinking_delta", "thinking", event.text, out);
        break;
      case OutputKind::kContent:
        if (open_ != "text") Open(Json::MakeObject({{"type", "text"}, {"text", ""}}), out);
        Delta("text_delta", "text", event.text, out);
        break;
      case OutputKind::kCallStart: {
        const bool no_thinking = request_.conversation.thinking && !reasoned_;
        Open(Json::MakeObject({{"type", "tool_use"},
                               {"id", options_.call_id(calls_++, no_thinking)},
                               {"name", event.text},
                               {"input", Json(Json::Object{})}}),
             out);
        break;
      }
      case OutputKind::kCallArguments:
        Delta("input_json_delta", "partial_json", event.text, out);
        break;
    }
  }

  void End(const OutputResult& result, const AnswerUsage& usage, std::vector<AnswerEvent>& out) override {
    Close(out);
    usage_ = UsageJson(usage);
    stop_reason_ = StopReason(result);
    stop_sequence_ = result.stop_sequence ? Json(*result.stop_sequence) : Json();
    Add("message_delta",
        {{"delta", Json::MakeObject({{"stop_reason", stop_reason_}, {"stop_sequence", stop_sequence_}})},
         {"usage", usage_}},
        out);
    Add("message_stop", {}, out);
  }

  void Fail(const AnswerFailure& failure, std::vector<AnswerEvent>& out) override {
    Add("error", {{"error", Json::MakeObject({{"type", failure.messages_type}, {"message", failure.message}})}}, out);
  }

  [[nodiscard]] Json Response() const override {
    Json message = Message();
    message.Set("stop_reason", stop_reason_).Set("stop_sequence", stop_sequence_);
    Json content(Json::Array{});
    for (const Json& block : blocks_) content.Push(block);
    message.Set("content", std::move(content));
    return message;
  }

 private:
  [[nodiscard]] Json Message() const {
    return Json::MakeObject({{"id", options_.id},
                             {"type", "message"},
                             {"role", "assistant"},
                             {"model", options_.model},
                             {"content", Json(Json::Array{})},
                             {"stop_reason", Json()},
                             {"stop_sequence", Json()},
                             {"usage", usage_}});
  }

  static Json UsageJson(const AnswerUsage& usage) {
    Json row = Json::MakeObject({{"input_tokens", std::max<std::int64_t>(0, usage.prompt_tokens - usage.cached_tokens)},
                                 {"cache_creation_input_tokens", 0},
                                 {"cache_read_input_tokens", usage.cached_tokens},
                                 {"output_tokens", usage.completion_tokens},
                                 {"service_tier", "standard"}});
    // Not one of this API's members; the name is that of Chat Completions.
    if (usage.accepted_drafts > 0) row.Set("accepted_prediction_tokens", usage.accepted_drafts);
    return row;
  }

  static std::string_view StopReason(const OutputResult& result) {
    if (result.stop_sequence) return "stop_sequence";
    if (result.finish == Finish::kLength) return "max_tokens";
    if (result.finish == Finish::kContentFilter) return "refusal";
    return result.calls > 0 ? "tool_use" : "end_turn";
  }

  static void Add(std::string_view name, std::vector<std::pair<std::string_view, Json>>&& members,
                  std::vector<AnswerEvent>& out) {
    Json data = Json::MakeObject({{"type", name}});
    for (auto& [key, value] : members) data.Set(key, std::move(value));
    out.push_back({std::string(name), std::move(data)});
  }

  [[nodiscard]] Json Index() const { return Json(static_cast<int>(blocks_.size())); }

  void Open(Json block, std::vector<AnswerEvent>& out) {
    Close(out);
    open_ = *block.Find("type")->if_string();
    block_ = block;
    text_.clear();
    Add("content_block_start", {{"index", Index()}, {"content_block", std::move(block)}}, out);
    if (!std::exchange(pinged_, true)) Add("ping", {}, out);
  }

  void Delta(std::string_view type, std::string_view key, const std::string& text, std::vector<AnswerEvent>& out) {
    text_ += text;
    Add("content_block_delta", {{"index", Index()}, {"delta", Json::MakeObject({{"type", type}, {key, text}})}}, out);
  }

  void Close(std::vector<AnswerEvent>& out) {
    if (open_.empty()) return;
    if (open_ == "thinking") {
      const std::string& signature = options_.signature.empty() ? options_.id : options_.signature;
      Add("content_block_delta",
          {{"index", Index()}, {"delta", Json::MakeObject({{"type", "signature_delta"}, {"signature", signature}})}},
          out);
      block_.Set("thinking", text_).Set("signature", signature);
    } else if (open_ == "text") {
      block_.Set("text", text_);
    } else {
      const Result<Json> input = ParseJson(text_);
      block_.Set("input", input && input->is_object() ? *input : Json(Json::Object{}));
    }
    Add("content_block_stop", {{"index", Index()}}, out);
    blocks_.push_back(std::move(block_));
    open_.clear();
  }

  const ParsedRequest& request_;
  const AnswerOptions& options_;
  Json usage_;
  std::vector<Json> blocks_;  // closed
  std::string open_;          // type of the open block, empty when there is none
  Json block_;
  std::string text_;  // of the open block
  bool pinged_ = false;
  bool reasoned_ = false;
  int calls_ = 0;
  std::string stop_reason_;
  Json stop_sequence_;
};

}  // namespace

std::unique_ptr<AnswerWriter> MakeMessagesWriter(const ParsedRequest& request, const AnswerOptions& options) {
  return std::make_unique<MessagesWriter>(request, options);
}

}  // namespace galley::protocol::internal
