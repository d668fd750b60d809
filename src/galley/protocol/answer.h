// SPDX-License-Identifier: Apache-2.0
// The answer to one request: what the engine reports goes in, the API's stream events and the whole response come out.
// One object per sequence, owned by its stream; no threads, no clock, no randomness of its own. The shapes are those of
// recipe 6.2–6.3, 7.2–7.3 and 8.2–8.3.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "galley/protocol/output_parser.h"
#include "galley/protocol/request.h"

namespace galley::protocol {

// Event of a stream: `data:` is the JSON; Chat and Completions have no name.
struct AnswerEvent {
  std::string name{};
  Json data{};
};

struct AnswerOptions {
  std::string id;              // of the response
  std::string model;           // as the answer names it
  std::int64_t created_s = 0;  // Unix time
  int calls_max = 0;           // the answer ends after as many tool calls; 0: no limit
  int choice_index = 0;        // Chat and Completions: which of several answers this is
  // The id of the n-th call; `no_thinking` marks a call that the model made without thinking where it should have.
  // Required when the request has tools: see SeededCallIds.
  std::function<std::string(int index, bool no_thinking)> call_id{};
  // Tokens of a text, to say how many the visible reasoning has. Without it the number is left out.
  std::function<std::int64_t(std::string_view)> count_tokens{};
  std::string signature{};  // of Messages thinking blocks; empty: the id
};

// Call ids as the hosted API makes them, reproducible from a seed: "call_00_", 20 letters and digits, 4 digits.
[[nodiscard]] std::function<std::string(int, bool)> SeededCallIds(std::uint64_t seed);

// A token of an echoed prompt with its log probability; the first of a prompt has nothing before it and so none.
struct PromptToken {
  std::string bytes;
  std::optional<double> logprob{};
  std::vector<AlternativeLogprob> top{};  // most likely first
};

// What is known when the engine has taken the prompt.
struct ReadyInfo {
  std::int64_t prompt_tokens = 0;
  std::int64_t cached_tokens = 0;
  std::optional<std::string> fingerprint{};
  std::vector<PromptToken> echo{};  // Completions with echo and logprobs: the tokens of the text that is echoed
};

struct AnswerUsage {
  std::int64_t prompt_tokens = 0;
  std::int64_t cached_tokens = 0;
  std::int64_t completion_tokens = 0;
  std::optional<std::int64_t> reasoning_tokens{};
  std::int64_t accepted_drafts = 0;  // completion tokens that a draft had right; told when there are any
};

// Why an answer cannot be brought to its end.
struct AnswerFailure {
  std::string message;
  std::string type = "server_error";        // Chat, Completions and Responses
  std::string messages_type = "api_error";  // Messages
  std::string code = "internal";
};

// Shapes the events of one API. Internal to Answer.
class AnswerWriter {
 public:
  virtual ~AnswerWriter() = default;
  virtual void Start(const ReadyInfo& ready, std::vector<AnswerEvent>& out) = 0;
  virtual void Event(const OutputEvent& event, std::vector<AnswerEvent>& out) = 0;
  virtual void End(const OutputResult& result, const AnswerUsage& usage, std::vector<AnswerEvent>& out) = 0;
  virtual void Fail(const AnswerFailure& failure, std::vector<AnswerEvent>& out) = 0;
  [[nodiscard]] virtual Json Response() const = 0;
};

class Answer {
 public:
  // `request` must outlive the answer.
  Answer(const ParsedRequest& request, AnswerOptions options);
  Answer(const Answer&) = delete;
  Answer& operator=(const Answer&) = delete;
  ~Answer();

  // The first call counts; without one before the first piece nothing is known about the prompt.
  [[nodiscard]] std::vector<AnswerEvent> Ready(const ReadyInfo& ready);
  [[nodiscard]] std::vector<AnswerEvent> Push(OutputPiece piece);
  // One of the tokens that are pushed was guessed by a draft.
  void NoteAcceptedDraft() { ++accepted_drafts_; }
  // `uncounted`: tokens that were generated but are in no piece.
  [[nodiscard]] std::vector<AnswerEvent> End(std::optional<Finish> finish, std::int64_t uncounted = 0);

  // The event that tells the client of a failure, in the form of its API. It takes the place of the end: nothing comes
  // after it, not even done_data.
  [[nodiscard]] std::vector<AnswerEvent> Fail(const AnswerFailure& failure);

  [[nodiscard]] bool done() const { return ended_; }
  // Meaningful when done() and nothing failed.
  [[nodiscard]] const AnswerUsage& usage() const { return usage_; }
  [[nodiscard]] const OutputResult& result() const { return parser_.result(); }
  // The response of a request that does not stream; after the end.
  [[nodiscard]] Json Response() const { return writer_->Response(); }
  // What ends the stream behind the last event: "[DONE]", or empty.
  [[nodiscard]] std::string_view done_data() const;

 private:
  void StartOnce(std::vector<AnswerEvent>& out);
  void Write(std::vector<OutputEvent>& events, std::vector<AnswerEvent>& out);
  void EndOnce(std::int64_t uncounted, std::vector<AnswerEvent>& out);

  const ParsedRequest* request_;
  AnswerOptions options_;
  OutputParser parser_;
  std::unique_ptr<AnswerWriter> writer_;
  ReadyInfo ready_;
  AnswerUsage usage_;
  bool started_ = false;
  bool ended_ = false;
  int calls_ = 0;
  std::int64_t accepted_drafts_ = 0;
  std::string reasoning_;
};

}  // namespace galley::protocol
