// SPDX-License-Identifier: Apache-2.0
#include "galley/serve/exchange.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "galley/base/check.h"
#include "galley/base/rng.h"
#include "galley/net/sse.h"
#include "galley/text/utf8.h"

namespace galley::serve {
namespace {

using protocol::AnswerEvent;
using protocol::Json;
using protocol::Protocol;

std::vector<protocol::SampledLogprob> LogprobOf(const engine::GeneratedToken& token) {
  protocol::SampledLogprob logprob{static_cast<double>(token.logprob)};
  for (const engine::TokenLogprob& other : token.alternatives)
    logprob.top.emplace_back(other.id, static_cast<double>(other.logprob));
  std::vector<protocol::SampledLogprob> list;
  list.push_back(std::move(logprob));
  return list;
}

// Whether the choices of a prompt go to the engine as separate requests: then each can be ended alone.
bool Separate(const PreparedPrompt& prompt, bool single_call) {
  return !prompt.parsed->parsing.stop_sequences.empty() || single_call;
}

}  // namespace

Json Milliseconds(double seconds) {
  return seconds < 0 ? Json() : Json(std::round(seconds * 1e6) / 1e3);
}

Exchange::Exchange(Setting setting, PreparedRequest request, std::shared_ptr<net::Responder> reply)
    : setting_(std::move(setting)), request_(std::move(request)), reply_(std::move(reply)) {
  MakeBranches();
}

void Exchange::MakeBranches() {
  const text::Tokenizer& tokenizer = setting_.engine.tokenizer();
  for (std::size_t p = 0; p < request_.prompts.size(); ++p) {
    const PreparedPrompt& prompt = request_.prompts[p];
    const auto n = static_cast<std::size_t>(prompt.request.n);
    const std::size_t at_once = Separate(prompt, request_.single_call) ? 1 : n;
    for (std::size_t j = 0; j < n; j += at_once)
      submissions_.push_back(
          {.prompt = p, .choice = static_cast<int>(j), .first_branch = branches_.size() + j, .open_branches = at_once});
    for (std::size_t j = 0; j < n; ++j) {
      protocol::AnswerOptions options;
      options.id = setting_.id;
      options.model = request_.model;
      options.created_s = setting_.created_s;
      options.choice_index = static_cast<int>(branches_.size());
      options.call_id = protocol::SeededCallIds(MixBits(setting_.call_seed + branches_.size()));
      options.calls_max = request_.single_call ? 1 : 0;
      options.count_tokens = [&tokenizer](std::string_view text) {
        const auto ids = tokenizer.Encode(text);
        return ids ? static_cast<std::int64_t>(ids->size()) : 0;
      };
      Branch branch;
      branch.answer = std::make_unique<protocol::Answer>(*prompt.parsed, std::move(options));
      branch.feed = std::make_unique<protocol::TokenFeed>(tokenizer, prompt.parsed->parsing.stop_sequences);
      branches_.push_back(std::move(branch));
    }
  }
  cached_tokens_.resize(request_.prompts.size());
  open_branches_ = branches_.size();
  open_submissions_ = submissions_.size();
}

double Exchange::Now() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - setting_.accepted).count();
}

std::int64_t Exchange::cached_tokens() const {
  return std::accumulate(cached_tokens_.begin(), cached_tokens_.end(), std::int64_t{0});
}

protocol::ReadyInfo Exchange::ReadyOf(const Submission& submission) const {
  return {.prompt_tokens = static_cast<std::int64_t>(request_.prompts[submission.prompt].request.prompt_ids.size()),
          .cached_tokens = cached_tokens_[submission.prompt],
          .fingerprint = setting_.fingerprint,
          .echo = EchoOf(submission)};
}

// The prompt's tokens as far as its text is echoed: the token that begins every text prompt is not.
std::vector<protocol::PromptToken> Exchange::EchoOf(const Submission& submission) const {
  std::vector<protocol::PromptToken> echo;
  const PreparedPrompt& prompt = request_.prompts[submission.prompt];
  if (!prompt.parsed->echo_prompt || prompt.request.sampling.top_logprobs < 0) return echo;
  const text::Tokenizer& tokenizer = setting_.engine.tokenizer();
  const auto spelling = [&](TokenId id) { return std::string(tokenizer.TokenBytes(id).value_or("")); };
  if (prompt.parsed->raw_prompt.special.empty()) echo.push_back({.bytes = spelling(prompt.request.prompt_ids[0])});
  for (const engine::GeneratedToken& token : submission.scores) {
    protocol::PromptToken entry{.bytes = spelling(token.id), .logprob = static_cast<double>(token.logprob)};
    for (const engine::TokenLogprob& other : token.alternatives)
      entry.top.push_back({spelling(other.id), static_cast<double>(other.logprob)});
    echo.push_back(std::move(entry));
  }
  return echo;
}

void Exchange::Start() {
  // The callback must not keep the exchange alive: it lives in the reply, which the exchange holds.
  reply_->OnClosed([weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->Abandon();
  });
  for (std::size_t i = 0; i < submissions_.size(); ++i) {
    const Status submitted = state_ == ReplyState::kDone ? Status() : Submit(i);
    if (state_ != ReplyState::kDone && submitted) continue;
    // Nothing will come for this one or, as the answer has failed, should come for those behind it.
    if (!submitted) Fail(FromError(submitted.error()));
    Retire(submissions_[i]);
  }
  Run();
}

Result<void> Exchange::Submit(std::size_t index) {
  const Submission& submission = submissions_[index];
  const PreparedPrompt& prompt = request_.prompts[submission.prompt];
  engine::EngineRequest request = prompt.request;
  if (Separate(prompt, request_.single_call)) {
    request.sampling.seed = engine::BranchSeed(request.sampling.seed, submission.choice);
    request.n = 1;
  }
  auto sink = [self = shared_from_this(), index](const engine::EngineEvent& event) {
    std::visit([&](const auto& one) { self->Deliver(index, one); }, event);
  };
  ASSIGN_OR_RETURN(const RequestId id, setting_.engine.Submit(std::move(request), std::move(sink)));
  bool cancel = false;
  {
    std::lock_guard lock(mutex_);
    submissions_[index].id = id;
    cancel = gone_ || stopping_;
  }
  if (cancel) setting_.engine.Cancel(id);
  return {};
}

void Exchange::Deliver(std::size_t submission, Event event) {
  {
    std::lock_guard lock(mutex_);
    mail_.push_back({submission, std::move(event)});
    if (std::exchange(running_, true)) return;
  }
  setting_.pool.Post([self = shared_from_this()] { self->Run(); });
}

void Exchange::BeginIfWaiting(std::chrono::steady_clock::time_point since) {
  if (!request_.stream || setting_.accepted > since) return;
  {
    std::lock_guard lock(mutex_);
    if (std::exchange(told_to_begin_, true)) return;
  }
  Deliver(0, WaitedEvent{});
}

void Exchange::Run() {
  std::vector<Mail> batch;
  while (true) {
    batch.clear();
    {
      std::lock_guard lock(mutex_);
      if (mail_.empty()) {
        running_ = false;
        return;
      }
      batch.swap(mail_);
    }
    for (const Mail& mail : batch) std::visit([&](const auto& event) { Take(mail.submission, event); }, mail.event);
    RecordGaps();
    Flush();
  }
}

void Exchange::Abandon() {
  {
    std::lock_guard lock(mutex_);
    gone_ = true;
  }
  CancelAll();
}

void Exchange::Shutdown() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  CancelAll();
}

void Exchange::CancelAll() {
  std::vector<RequestId> ids;
  {
    std::lock_guard lock(mutex_);
    for (const Submission& submission : submissions_)
      if (submission.id) ids.push_back(*submission.id);
  }
  for (const RequestId id : ids) setting_.engine.Cancel(id);
}

void Exchange::Take(std::size_t index, const engine::StartedEvent& event) {
  Submission& submission = submissions_[index];
  if (std::exchange(submission.started, true)) return;
  setting_.admitted();
  // What further choices of a prompt find in the cache is the first one's doing.
  if (submission.choice == 0) {
    cached_tokens_[submission.prompt] = event.cached_tokens;
    replayed_tokens_ += event.replayed_tokens;
  }
  if (times_.started_s < 0) {
    times_.started_s = Now();
    hit_limit_ = event.hit_limit;
  }
  // From here on heartbeats may flow; errors of admission have come as plain responses before.
  if (request_.stream && state_ == ReplyState::kNothing) StartStream();
}

// Nothing asks the engine how far a prompt is.
void Exchange::Take(std::size_t /*submission*/, const engine::PrefillEvent& /*event*/) {}

void Exchange::Take(std::size_t index, const engine::PromptEvent& event) {
  auto& scores = submissions_[index].scores;
  scores.insert(scores.end(), event.tokens.begin(), event.tokens.end());
}

// The client has waited in silence for so long that a proxy might give it up.
void Exchange::Take(std::size_t /*submission*/, const WaitedEvent& /*event*/) {
  if (request_.stream && state_ == ReplyState::kNothing) StartStream();
}

void Exchange::Take(std::size_t index, const engine::TokenEvent& event) {
  Submission& submission = submissions_[index];
  const std::size_t at = submission.first_branch + static_cast<std::size_t>(event.branch);
  Branch& branch = branches_[at];
  if (branch.ended || state_ == ReplyState::kDone) return;
  if (times_.first_token_s < 0) times_.first_token_s = Now();
  ++branch.tokens;
  if (branch.batch_tokens++ == 0) touched_.push_back(at);
  if (event.token.from_draft) branch.answer->NoteAcceptedDraft();
  const engine::EngineRequest& request = request_.prompts[submission.prompt].request;
  const TokenId id = event.token.id;
  if (std::find(request.stop_ids.begin(), request.stop_ids.end(), id) != request.stop_ids.end()) {
    ++branch.stop_ids;
    return;
  }
  // Asked for its probabilities only, the prompt needs no token; the engine draws one all the same.
  if (request_.prompts[submission.prompt].parsed->score_only) {
    EndBranch(submission, branch, protocol::Finish::kLength);
    return;
  }
  // The first event goes out with the first token, so that a client that measures sees the true time.
  EmitReady(submission, branch);
  std::vector<protocol::SampledLogprob> logprobs;
  if (request.sampling.top_logprobs >= 0) logprobs = LogprobOf(event.token);
  auto pieces = branch.feed->Push({&id, 1}, std::move(logprobs));
  CHECK(pieces.has_value()) << "one token has one log probability";
  for (protocol::OutputPiece& piece : *pieces) Emit(branch.answer->Push(std::move(piece)));
  if (branch.answer->done()) BranchEnded(submission, branch);
}

void Exchange::Take(std::size_t index, const engine::FinishedEvent& event) {
  Submission& submission = submissions_[index];
  Branch& branch = branches_[submission.first_branch + static_cast<std::size_t>(event.branch)];
  if (!branch.ended && state_ != ReplyState::kDone) {
    switch (event.reason) {
      case sched::FinishReason::kStop:
        EndBranch(submission, branch, protocol::Finish::kStop);
        break;
      case sched::FinishReason::kLength:
        EndBranch(submission, branch, protocol::Finish::kLength);
        break;
      case sched::FinishReason::kCancelled:
        Fail(ShuttingDown());
        break;
      case sched::FinishReason::kError:
        Fail(FromError(event.error));
        break;
    }
  }
  if (event.request_done) Retire(submission);
}

void Exchange::EmitReady(const Submission& submission, Branch& branch) {
  if (!std::exchange(branch.began, true)) Emit(branch.answer->Ready(ReadyOf(submission)));
}

void Exchange::EndBranch(Submission& submission, Branch& branch, std::optional<protocol::Finish> finish) {
  // An answer without a single token still begins before it ends.
  if (request_.stream && state_ == ReplyState::kNothing) StartStream();
  EmitReady(submission, branch);
  for (protocol::OutputPiece& piece : branch.feed->Flush()) Emit(branch.answer->Push(std::move(piece)));
  if (!branch.answer->done()) Emit(branch.answer->End(finish, branch.feed->uncounted() + branch.stop_ids));
  BranchEnded(submission, branch);
}

void Exchange::BranchEnded(Submission& submission, Branch& branch) {
  branch.ended = true;
  --open_branches_;
  // Found by the codec before the engine knew: the sequence has nothing more to say.
  if (--submission.open_branches == 0 && !submission.retired && submission.id) setting_.engine.Cancel(*submission.id);
  if (open_branches_ == 0) Complete();
}

void Exchange::Fail(const ApiError& error) {
  if (state_ == ReplyState::kDone) return;
  bool gone = false;
  {
    std::lock_guard lock(mutex_);
    gone = gone_;
  }
  if (gone) {
    state_ = ReplyState::kDone;
  } else if (state_ == ReplyState::kStreaming) {
    const auto open = std::find_if(branches_.begin(), branches_.end(), [](const Branch& b) { return !b.ended; });
    CHECK(open != branches_.end()) << "an answer that is complete cannot fail";
    Emit(open->answer->Fail(FailureOf(error)));
    Flush();
    state_ = ReplyState::kDone;
    reply_->Finish();
  } else {
    state_ = ReplyState::kDone;
    const ErrorStyle style = request_.protocol == Protocol::kMessages ? ErrorStyle::kMessages : ErrorStyle::kOpenAi;
    net::HttpResponse response = ErrorResponse(error, style, setting_.request_id);
    response.headers.Append(setting_.headers);
    reply_->Send(std::move(response));
  }
  CancelAll();
  Report(gone ? "abort" : "error", gone ? 499 : error.status, gone ? "" : error.message);
}

void Exchange::Complete() {
  if (state_ == ReplyState::kDone) return;
  if (request_.stream) {
    if (request_.include_usage && counts_usage()) {
      Json chunk = Json::MakeObject(
          {{"id", setting_.id},
           {"object", request_.protocol == Protocol::kChat ? "chat.completion.chunk" : "text_completion"},
           {"created", setting_.created_s},
           {"model", request_.model},
           {"system_fingerprint", setting_.fingerprint},
           {"choices", Json(Json::Array{})},
           {"usage", UsageJson()}});
      if (request_.timings) chunk.Set("timings", TimingsJson());
      AppendSse({"", std::move(chunk)});
    }
    if (const std::string_view done = branches_.front().answer->done_data(); !done.empty())
      net::AppendSse(out_, "", done);
    Flush();
    if (state_ == ReplyState::kDone) return;  // the client went away at the last moment
    state_ = ReplyState::kDone;
    reply_->Finish();
  } else {
    state_ = ReplyState::kDone;
    net::HttpResponse response{
        .status = 200, .headers = {{"content-type", "application/json"}}, .body = DumpJson(WholeAnswer())};
    response.headers.Append(setting_.headers);
    reply_->Send(std::move(response));
  }
  const protocol::OutputResult& result = branches_.front().answer->result();
  const bool stopped = result.stop_sequence.has_value() || result.finish == protocol::Finish::kStop;
  Report(!stopped ? "length" : result.calls > 0 ? "tool_calls" : "stop", 200, "");
}

void Exchange::Retire(Submission& submission) {
  if (std::exchange(submission.retired, true)) return;
  if (!std::exchange(submission.started, true)) setting_.admitted();
  if (--open_submissions_ == 0) {
    // A client that left before anything went wrong for it has its end here.
    if (!reported_) Report("abort", 499, "");
    setting_.retired();
  }
}

void Exchange::StartStream() {
  net::Headers headers = {{"content-type", "text/event-stream; charset=utf-8"},
                          {"cache-control", "no-cache"},
                          {"x-accel-buffering", "no"}};  // keeps nginx from collecting events
  headers.Append(setting_.headers);
  state_ = ReplyState::kStreaming;
  reply_->StartStream(200, std::move(headers));
}

bool Exchange::counts_usage() const {
  return request_.protocol == Protocol::kChat || request_.protocol == Protocol::kCompletions;
}

void Exchange::Emit(std::vector<AnswerEvent> events) {
  if (!request_.stream) return;
  for (AnswerEvent& event : events) {
    if (counts_usage()) AdaptUsage(event.data);
    AppendSse(event);
  }
}

// The codec's last chunk of every choice tells the usage. With several choices only the last one's may, for all; and
// when the client asked for a chunk of its own, that one alone does.
void Exchange::AdaptUsage(Json& data) {
  Json* usage = data.Find("usage");
  if (usage == nullptr || usage->is_null()) return;
  if (request_.include_usage) {
    *usage = Json();
    return;
  }
  if (open_branches_ == 1) {
    *usage = UsageJson();
    if (request_.timings) data.Set("timings", TimingsJson());
    return;
  }
  std::erase_if(*data.if_object(), [](const Json::Member& member) { return member.key == "usage"; });
}

void Exchange::AppendSse(const AnswerEvent& event) {
  const bool last = event.name == "message_delta" || event.name == "response.completed";
  json_.clear();
  if (request_.timings && last) {
    Json data = event.data;
    AppendJson(json_, data.Set("timings", TimingsJson()));
  } else {
    AppendJson(json_, event.data);
  }
  net::AppendSse(out_, event.name, json_);
}

void Exchange::Flush() {
  if (out_.empty() || state_ != ReplyState::kStreaming) return;
  if (reply_->Write(std::exchange(out_, {}))) return;
  Abandon();
  state_ = ReplyState::kDone;
  Report("abort", 499, "");
}

void Exchange::RecordGaps() {
  if (touched_.empty()) return;
  const double now = Now();
  for (const std::size_t at : std::exchange(touched_, {})) {
    Branch& branch = branches_[at];
    if (branch.last_token_s >= 0) setting_.metrics.RecordGap(now - branch.last_token_s, branch.batch_tokens);
    branch.last_token_s = now;
    branch.batch_tokens = 0;
  }
}

Json Exchange::UsageJson() const {
  std::int64_t prompt_tokens = 0, completion_tokens = 0, reasoning_tokens = 0, accepted_drafts = 0;
  bool has_reasoning = false;
  for (const PreparedPrompt& prompt : request_.prompts)
    prompt_tokens += static_cast<std::int64_t>(prompt.request.prompt_ids.size());
  for (const Branch& branch : branches_) {
    const protocol::AnswerUsage& usage = branch.answer->usage();
    completion_tokens += usage.completion_tokens;
    reasoning_tokens += usage.reasoning_tokens.value_or(0);
    has_reasoning = has_reasoning || usage.reasoning_tokens.has_value();
    accepted_drafts += usage.accepted_drafts;
  }
  Json usage = Json::MakeObject({{"prompt_tokens", prompt_tokens},
                                 {"completion_tokens", completion_tokens},
                                 {"total_tokens", prompt_tokens + completion_tokens},
                                 {"prompt_tokens_details", Json::MakeObject({{"cached_tokens", cached_tokens()}})}});
  Json details(Json::Object{});
  if (has_reasoning) details.Set("reasoning_tokens", reasoning_tokens);
  if (accepted_drafts > 0) details.Set("accepted_prediction_tokens", accepted_drafts);
  if (!details.if_object()->empty()) usage.Set("completion_tokens_details", std::move(details));
  usage.Set("prompt_cache_hit_tokens", cached_tokens());
  usage.Set("prompt_cache_miss_tokens", std::max<std::int64_t>(0, prompt_tokens - cached_tokens()));
  return usage;
}

Json Exchange::WholeAnswer() const {
  Json answer = branches_.front().answer->Response();
  if (counts_usage()) {
    Json& choices = *answer.Find("choices");
    for (std::size_t i = 1; i < branches_.size(); ++i) {
      const Json other = branches_[i].answer->Response();
      for (const Json& choice : *other.Find("choices")->if_array()) choices.Push(choice);
    }
    answer.Set("usage", UsageJson());
  }
  if (request_.prompt_logprobs >= 0) SetPromptLogprobs(answer);
  if (request_.timings) answer.Set("timings", TimingsJson());
  return answer;
}

// As vLLM tells them: for Chat beside the choices, since they share one prompt, for Completions in each.
void Exchange::SetPromptLogprobs(Json& answer) const {
  constexpr std::string_view kName = "prompt_logprobs";
  for (const Submission& submission : submissions_) {
    if (submission.choice != 0) continue;
    const Json logprobs = PromptLogprobsJson(submission);
    if (request_.protocol == Protocol::kChat) {
      answer.Set(kName, logprobs);
      continue;
    }
    Json::Array& choices = *answer.Find("choices")->if_array();
    const auto n = static_cast<std::size_t>(request_.prompts[submission.prompt].request.n);
    for (std::size_t i = 0; i < n; ++i) choices[submission.first_branch + i].Set(kName, logprobs);
  }
}

// For each token an object of ids, its own among them; null for the first, which has nothing before it.
Json Exchange::PromptLogprobsJson(const Submission& submission) const {
  const text::Tokenizer& tokenizer = setting_.engine.tokenizer();
  Json list(Json::Array{Json()});
  for (const engine::GeneratedToken& token : submission.scores) {
    Json row(Json::Object{});
    const auto add = [&](TokenId id, float logprob, Json rank) {
      row.Set(std::to_string(id),
              Json::MakeObject({{"logprob", static_cast<double>(logprob)},
                                {"rank", std::move(rank)},
                                {"decoded_token", text::ReplaceInvalidUtf8(tokenizer.TokenBytes(id).value_or(""))}}));
    };
    Json own_rank;  // null when it is not among the alternatives
    int rank = 0;
    for (const engine::TokenLogprob& other : token.alternatives) {
      ++rank;
      if (other.id == token.id) own_rank = Json(rank);
      if (rank <= request_.prompt_logprobs) add(other.id, other.logprob, Json(rank));
    }
    add(token.id, token.logprob, std::move(own_rank));
    list.Push(std::move(row));
  }
  return list;
}

Json Exchange::TimingsJson() const {
  const double now = Now();
  const auto since = [](double from, double to) { return Milliseconds(from < 0 || to < 0 ? -1 : to - from); };
  std::int64_t tokens = 0;
  for (const Branch& branch : branches_) tokens += branch.answer->usage().completion_tokens;
  return Json::MakeObject({{"queue_ms", since(0, times_.started_s)},
                           {"prefill_ms", since(times_.started_s, times_.first_token_s)},
                           {"first_token_ms", since(0, times_.first_token_s)},
                           {"decode_ms", since(times_.first_token_s, now)},
                           {"total_ms", Milliseconds(now)},
                           {"completion_tokens", tokens},
                           {"cached_tokens", cached_tokens()},
                           {"replayed_tokens", replayed_tokens_},
                           {"hit_limit", hit_limit_}});
}

void Exchange::Report(std::string_view reason, int status, std::string error) {
  if (std::exchange(reported_, true)) return;
  times_.end_s = Now();
  ExchangeReport report{.record = {.reason = reason, .total_s = times_.end_s},
                        .times = times_,
                        .replayed_tokens = replayed_tokens_,
                        .hit_limit = hit_limit_,
                        .error = std::move(error),
                        .status = status,
                        .output = {}};
  RequestRecord& record = report.record;
  for (const PreparedPrompt& prompt : request_.prompts)
    record.prompt_tokens += static_cast<std::int64_t>(prompt.request.prompt_ids.size());
  record.cached_tokens = cached_tokens();
  // An answer that was broken off never came to its usage.
  for (const Branch& branch : branches_)
    record.completion_tokens += branch.ended ? branch.answer->usage().completion_tokens : branch.tokens;
  if (times_.started_s >= 0) record.queue_s = times_.started_s;
  if (times_.first_token_s >= 0) record.first_token_s = times_.first_token_s;
  if (setting_.keep_output && status == 200) report.output = DumpJson(WholeAnswer());
  setting_.metrics.RecordRequest(record);
  setting_.answered(report);
}

}  // namespace galley::serve
