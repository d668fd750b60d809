// SPDX-License-Identifier: Apache-2.0
#include "galley/serve/fake_engine.h"

#include <condition_variable>
#include <deque>
#include <list>
#include <mutex>
#include <thread>
#include <utility>

#include "galley/base/check.h"
#include "galley/protocol/render.h"

namespace galley::serve {
namespace {

struct Branch {
  std::vector<TokenId> tokens;
  std::size_t said = 0;
  bool ended = false;
};

struct Live {
  RequestId id;
  engine::EngineRequest request;
  engine::EventSink sink;
  std::vector<Branch> branches;
  bool started = false;
  bool cancelled = false;

  [[nodiscard]] bool done() const {
    for (const Branch& branch : branches)
      if (!branch.ended) return false;
    return true;
  }
};

}  // namespace

struct FakeEngine::Impl {
  Impl(const text::Tokenizer& t, FakeEngineOptions o) : tokenizer(t), options(std::move(o)) {}

  const text::Tokenizer& tokenizer;
  const FakeEngineOptions options;
  TokenId eos = 1;

  mutable std::mutex mutex;
  std::condition_variable wake;
  std::deque<Live> arrivals;
  std::vector<RequestId> cancellations;
  std::vector<engine::EngineRequest> seen;
  std::int64_t next_id = 0;
  int live_count = 0;
  int waiting_count = 0;
  int cancel_count = 0;
  int clear_count = 0;
  std::int64_t steps = 0;
  std::vector<ConstraintSpec> compiled;
  bool admitting = true;
  bool stepping = true;
  bool stopping = false;

  std::list<Live> live;  // of the thread
  std::thread thread;

  void Finish(Live& request, int branch, sched::FinishReason reason) {
    request.branches[static_cast<std::size_t>(branch)].ended = true;
    engine::FinishedEvent event{.branch = branch, .reason = reason, .request_done = request.done()};
    if (reason == sched::FinishReason::kError) event.error = *options.fail_after;
    request.sink(event);
  }

  // Log probabilities of the prompt: -1 for the second token, -2 for the third and so on, in two events.
  static void Score(Live& request) {
    const std::vector<TokenId>& ids = request.request.prompt_ids;
    if (request.request.prompt_logprobs < 0) return;
    for (const std::size_t first : {std::size_t{1}, ids.size() / 2 + 1}) {
      engine::PromptEvent event{.first = static_cast<Position>(first)};
      const std::size_t end = first == 1 ? ids.size() / 2 + 1 : ids.size();
      for (std::size_t i = first; i < end; ++i) {
        engine::GeneratedToken token{.id = ids[i], .logprob = -static_cast<float>(i), .alternatives = {}};
        for (int k = 0; k < request.request.prompt_logprobs; ++k)
          token.alternatives.push_back({static_cast<TokenId>(300 + k), -0.5F - static_cast<float>(k)});
        event.tokens.push_back(std::move(token));
      }
      request.sink(event);
    }
  }

  // One token, or the end, for every branch of `request`.
  void Step(Live& request) {
    for (std::size_t j = 0; j < request.branches.size(); ++j) {
      Branch& branch = request.branches[j];
      if (branch.ended) continue;
      const int index = static_cast<int>(j);
      if (request.cancelled) {
        Finish(request, index, sched::FinishReason::kCancelled);
        continue;
      }
      const bool out = branch.said == branch.tokens.size();
      if (out && options.fail_after) {
        Finish(request, index, sched::FinishReason::kError);
        continue;
      }
      if (out) {
        Finish(request, index, sched::FinishReason::kStop);
        continue;
      }
      const TokenId id = branch.tokens[branch.said++];
      engine::TokenEvent event{.branch = index, .token = {.id = id, .logprob = -0.5F, .alternatives = {}}};
      for (int k = 0; k < request.request.sampling.top_logprobs; ++k)
        event.token.alternatives.push_back(
            {k == 0 ? id : static_cast<TokenId>(300 + k), -0.5F - static_cast<float>(k)});
      event.token.from_draft = options.drafts && branch.said > 1;
      request.sink(event);
      if (id == eos)
        Finish(request, index, sched::FinishReason::kStop);
      else if (branch.said == static_cast<std::size_t>(request.request.max_tokens))
        Finish(request, index, sched::FinishReason::kLength);
    }
  }

  void Take() {
    for (Live& arrival : arrivals) live.push_back(std::move(arrival));
    arrivals.clear();
    for (const RequestId id : cancellations)
      for (Live& request : live)
        if (request.id == id) request.cancelled = true;
    cancellations.clear();
  }

  void Loop() {
    std::unique_lock lock(mutex);
    while (true) {
      Take();
      if (stopping)
        for (Live& request : live) request.cancelled = true;
      const bool may_admit = admitting, may_step = stepping;
      lock.unlock();
      bool busy = false;
      for (Live& request : live) {
        if (!request.started && !request.cancelled && !may_admit) continue;
        if (!std::exchange(request.started, true) && !request.cancelled) {
          engine::StartedEvent event;
          event.cached_tokens = options.cached_tokens;
          event.hit_limit = "none";
          request.sink(event);
          Score(request);
        }
        if (!may_step && !request.cancelled) continue;
        busy = busy || !request.cancelled;
        Step(request);
      }
      live.remove_if([](const Live& request) { return request.done(); });
      if (busy && options.step_gap.count() > 0) std::this_thread::sleep_for(options.step_gap);
      lock.lock();
      if (busy) ++steps;
      live_count = static_cast<int>(live.size());
      waiting_count = 0;
      for (const Live& request : live) waiting_count += request.started ? 0 : 1;
      if (stopping && live.empty() && arrivals.empty()) return;
      if (!busy && arrivals.empty() && cancellations.empty() && !stopping) wake.wait(lock);
    }
  }
};

FakeEngine::FakeEngine(const text::Tokenizer& tokenizer, FakeEngineOptions options)
    : impl_(std::make_unique<Impl>(tokenizer, std::move(options))) {
  impl_->eos = tokenizer.AddedIdOf(protocol::SpecialTokens().end_of_sentence).value_or(1);
  impl_->thread = std::thread([impl = impl_.get()] { impl->Loop(); });
}

FakeEngine::~FakeEngine() {
  {
    std::lock_guard lock(impl_->mutex);
    impl_->stopping = true;
  }
  impl_->wake.notify_all();
  impl_->thread.join();
}

const text::Tokenizer& FakeEngine::tokenizer() const {
  return impl_->tokenizer;
}
std::int64_t FakeEngine::max_seq_len() const {
  return impl_->options.max_seq_len;
}
TokenId FakeEngine::eos_id() const {
  return impl_->eos;
}

Result<RequestId> FakeEngine::Submit(engine::EngineRequest request, engine::EventSink sink) {
  if (impl_->options.fail_submit) return Err(*impl_->options.fail_submit);
  Live live{.id = RequestId(0), .request = request, .sink = std::move(sink), .branches = {}};
  for (int j = 0; j < request.n; ++j) {
    Branch branch;
    if (impl_->options.say) branch.tokens = impl_->options.say(request, j);
    live.branches.push_back(std::move(branch));
  }
  RequestId id(0);
  {
    std::lock_guard lock(impl_->mutex);
    id = RequestId(impl_->next_id++);
    live.id = id;
    impl_->seen.push_back(std::move(request));
    impl_->arrivals.push_back(std::move(live));
    ++impl_->live_count;
  }
  impl_->wake.notify_all();
  return id;
}

void FakeEngine::Cancel(RequestId request) {
  {
    std::lock_guard lock(impl_->mutex);
    impl_->cancellations.push_back(request);
    ++impl_->cancel_count;
  }
  impl_->wake.notify_all();
}

engine::EngineStats FakeEngine::stats() const {
  std::lock_guard lock(impl_->mutex);
  engine::EngineStats stats;
  stats.running = impl_->live_count - impl_->waiting_count;
  stats.waiting = impl_->waiting_count;
  return stats;
}

ApiResult<std::shared_ptr<const engine::TokenConstraint>> FakeEngine::Compile(const ConstraintSpec& spec,
                                                                              std::vector<std::string>& warnings) {
  if (spec.spec.find("not enforced") != std::string::npos) warnings.emplace_back("not enforced");
  std::lock_guard lock(impl_->mutex);
  impl_->compiled.push_back(spec);
  return nullptr;
}

void FakeEngine::ClearCache() {
  std::lock_guard lock(impl_->mutex);
  ++impl_->clear_count;
}

void FakeEngine::SetAdmitting(bool admitting) {
  {
    std::lock_guard lock(impl_->mutex);
    impl_->admitting = admitting;
  }
  impl_->wake.notify_all();
}
void FakeEngine::SetStepping(bool stepping) {
  {
    std::lock_guard lock(impl_->mutex);
    impl_->stepping = stepping;
  }
  impl_->wake.notify_all();
}

std::vector<engine::EngineRequest> FakeEngine::requests() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->seen;
}
int FakeEngine::live() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->live_count;
}
int FakeEngine::cancels() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->cancel_count;
}
std::vector<ConstraintSpec> FakeEngine::compiled() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->compiled;
}
std::int64_t FakeEngine::steps() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->steps;
}
int FakeEngine::cache_clears() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->clear_count;
}

std::vector<TokenId> Saying(const text::Tokenizer& tokenizer, std::string_view text) {
  auto ids = tokenizer.Encode(text, text::AddedTokens::kMatch);
  CHECK(ids.has_value()) << ids.error().message;
  if (const auto eos = tokenizer.AddedIdOf(protocol::SpecialTokens().end_of_sentence)) ids->push_back(*eos);
  return std::move(*ids);
}

}  // namespace galley::serve
