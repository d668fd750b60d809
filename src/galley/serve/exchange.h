// SPDX-License-Identifier: Apache-2.0
// One generation request from submission to its last byte. The engine's events arrive in a mailbox; a worker takes them
// out, one at a time for each exchange, turns tokens into the API's events and writes them, or collects the whole
// answer. However it goes, the client gets exactly one end: the API's own last event, one error event, or one error
// response. A client that goes away, or reads too slowly, cancels the engine's work at once.
//
// Start, Abandon and Shutdown may be called from any thread, the engine's sink runs on the engine's thread. The
// exchange is shared by the engine's sinks, the reply's callback and the jobs of the pool, and dies with the last of
// them.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "galley/net/http_server.h"
#include "galley/protocol/answer.h"
#include "galley/protocol/token_feed.h"
#include "galley/serve/engine_port.h"
#include "galley/serve/metrics.h"
#include "galley/serve/prepare.h"
#include "galley/serve/trace.h"
#include "galley/serve/worker_pool.h"

namespace galley::serve {

// Seconds as logs and answers tell them: milliseconds to the microsecond; null below 0, which stands for "never".
[[nodiscard]] protocol::Json Milliseconds(double seconds);

// Durations of one request in seconds since it was accepted; negative: did not happen.
struct ExchangeTimes {
  double started_s = -1;
  double first_token_s = -1;
  double end_s = -1;
};

// What an exchange came to, for log, metrics and the page.
struct ExchangeReport {
  RequestRecord record;
  ExchangeTimes times;
  std::int64_t replayed_tokens = 0;
  std::string hit_limit;
  std::string error;  // message, when the reason is error
  int status = 200;
  std::string output;  // text of the answers, only when the log wants it
};

class Exchange : public std::enable_shared_from_this<Exchange> {
 public:
  struct Setting {
    EnginePort& engine;
    WorkerPool& pool;
    Metrics& metrics;
    std::string id;          // of the answer
    std::string request_id;  // of the HTTP request
    net::Headers headers;    // of the response
    std::string fingerprint;
    std::int64_t created_s = 0;  // Unix time
    std::uint64_t call_seed = 0;
    bool keep_output = false;
    std::chrono::steady_clock::time_point accepted;
    std::function<void()> admitted;                       // a submission left the queue, or ended before
    std::function<void(const ExchangeReport&)> answered;  // the client has its end
    std::function<void()> retired;                        // the engine is done with it too
  };

  Exchange(Setting setting, PreparedRequest request, std::shared_ptr<net::Responder> reply);

  // Gives everything to the engine. Once.
  void Start();
  // Begins the stream of a request that was accepted at `since` or before, if nothing of it has been sent yet: from
  // then on the client gets heartbeats, and errors as events.
  void BeginIfWaiting(std::chrono::steady_clock::time_point since);
  // The client is gone: nothing is written any more.
  void Abandon();
  // The server stops: what is not complete ends with an error.
  void Shutdown();

  // Requests of the engine that this one becomes; `admitted` is called once for each.
  [[nodiscard]] std::int64_t submissions() const { return static_cast<std::int64_t>(submissions_.size()); }

 private:
  // One choice of the answer.
  struct Branch {
    std::unique_ptr<protocol::Answer> answer;
    std::unique_ptr<protocol::TokenFeed> feed;
    bool began = false;
    bool ended = false;
    std::int64_t stop_ids = 0;  // drawn tokens that are no part of the text
    std::int64_t batch_tokens = 0;
    std::int64_t tokens = 0;  // drawn so far
    double last_token_s = -1;
  };
  // One request of the engine.
  struct Submission {
    std::size_t prompt = 0;
    int choice = 0;  // of the prompt, the first of this submission
    std::size_t first_branch = 0;
    std::size_t open_branches = 0;  // of the answer
    bool started = false;
    bool retired = false;
    std::optional<RequestId> id{};                 // guarded by mutex_
    std::vector<engine::GeneratedToken> scores{};  // of the prompt's tokens from the second on, when asked for
  };
  struct WaitedEvent {};
  using Event = std::variant<engine::StartedEvent, engine::PrefillEvent, engine::PromptEvent, engine::TokenEvent,
                             engine::FinishedEvent, WaitedEvent>;
  struct Mail {
    std::size_t submission;
    Event event;
  };
  enum class ReplyState { kNothing, kStreaming, kDone };

  void MakeBranches();
  [[nodiscard]] Result<void> Submit(std::size_t index);
  void Deliver(std::size_t submission, Event event);
  void Run();

  void Take(std::size_t submission, const engine::StartedEvent& event);
  void Take(std::size_t submission, const engine::PrefillEvent& event);
  void Take(std::size_t submission, const engine::PromptEvent& event);
  void Take(std::size_t submission, const engine::TokenEvent& event);
  void Take(std::size_t submission, const engine::FinishedEvent& event);
  void Take(std::size_t submission, const WaitedEvent& event);
  void EmitReady(const Submission& submission, Branch& branch);
  void EndBranch(Submission& submission, Branch& branch, std::optional<protocol::Finish> finish);
  void BranchEnded(Submission& submission, Branch& branch);
  void Fail(const ApiError& error);
  void Complete();
  void Retire(Submission& submission);

  void Emit(std::vector<protocol::AnswerEvent> events);
  void AppendSse(const protocol::AnswerEvent& event);
  void AdaptUsage(protocol::Json& data);
  [[nodiscard]] protocol::Json UsageJson() const;
  [[nodiscard]] protocol::Json WholeAnswer() const;
  [[nodiscard]] protocol::Json TimingsJson() const;
  void SetPromptLogprobs(protocol::Json& answer) const;
  [[nodiscard]] protocol::Json PromptLogprobsJson(const Submission& submission) const;
  void StartStream();
  void Flush();
  void RecordGaps();
  void CancelAll();
  void Report(std::string_view reason, int status, std::string error);
  [[nodiscard]] std::int64_t cached_tokens() const;
  [[nodiscard]] std::vector<protocol::PromptToken> EchoOf(const Submission& submission) const;
  [[nodiscard]] protocol::ReadyInfo ReadyOf(const Submission& submission) const;
  [[nodiscard]] double Now() const;
  [[nodiscard]] bool counts_usage() const;

  const Setting setting_;
  const PreparedRequest request_;
  const std::shared_ptr<net::Responder> reply_;

  std::mutex mutex_;
  std::vector<Mail> mail_;  // guarded by mutex_, as are the next four
  bool running_ = true;     // a worker, or Start, has the exchange
  bool gone_ = false;
  bool stopping_ = false;
  bool told_to_begin_ = false;

  // Owned by whoever runs.
  std::vector<Submission> submissions_;
  std::vector<Branch> branches_;
  std::vector<std::size_t> touched_;  // branches with new tokens
  std::size_t open_branches_ = 0;
  std::size_t open_submissions_ = 0;
  ReplyState state_ = ReplyState::kNothing;
  std::string out_;
  std::string json_;                         // of the event being written
  std::vector<std::int64_t> cached_tokens_;  // of each prompt
  std::int64_t replayed_tokens_ = 0;
  std::string hit_limit_;
  ExchangeTimes times_;
  bool reported_ = false;
};

}  // namespace galley::serve
