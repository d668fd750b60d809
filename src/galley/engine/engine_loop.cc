// SPDX-License-Identifier: Apache-2.0
// The engine's thread: plans steps, takes their results, and turns what the scheduler reports into events.
#include <algorithm>

#include "galley/base/check.h"
#include "galley/engine/engine_impl.h"

namespace galley::engine {

void Engine::Impl::TakeEvents() {
  arrived.clear();
  cancelled.clear();
  bool end_all = false;
  bool clear = false;
  {
    std::lock_guard lock(mutex);
    arrived.swap(arrivals);
    cancelled.swap(cancellations);
    outcome_ready = false;
    end_all = std::exchange(cancel_all, false);
    clear = std::exchange(clear_cache, false);
  }
  for (Arrival& arrival : arrived) {
    std::vector<LiveBranch> branches;
    for (int j = 0; j < arrival.request.n; ++j) {
      // What one step draws is reported before the next is taken.
      branches.emplace_back(loaded.tokenizer(), arrival.context).drawn.reserve(1 + kDraftTokensMax);
    }
    live.emplace(arrival.request.id, Live{std::move(arrival.context), std::move(arrival.sink), std::move(branches), 1});
    scheduler->Arrive(std::move(arrival.request), Now());
  }
  for (const RequestId id : cancelled) scheduler->Cancel(id);
  if (clear) scheduler->ClearCache();
  if (end_all) {
    for (const auto& [id, request] : live) scheduler->Cancel(id);
  }
}

void Engine::Impl::FillJob(const sched::StepPlan& plan, StepJob& job) const {
  job.plan = plan;
  const Position look_back = std::max(0, loaded.config().engram.max_ngram_size - 1);
  for (const sched::SequenceRows& rows : plan.prefill) {
    const sched::Sequence* sequence = scheduler->Find(rows.sequence);
    CHECK(sequence != nullptr) << "a planned sequence is not live";
    const Position earlier = std::min(look_back, rows.begin);
    const auto first = sequence->tokens.begin() + (rows.begin - earlier);
    job.prefill.push_back({.first = job.tokens.size(),
                           .earlier = static_cast<int>(earlier),
                           .count = static_cast<int>(earlier) + rows.rows});
    job.tokens.insert(job.tokens.end(), first, first + earlier + rows.rows);
    if (!sequence->owner->request.prompt_logprobs) continue;
    // A sequence that was preempted after its prompt was reported computes it again without.
    const Live& request = live.at(rows.request);
    if (request.scored >= static_cast<Position>(request.context->prompt.size())) continue;
    job.scorings.push_back({.prefill = job.prefill.size() - 1, .context = request.context});
  }
  for (const sched::SequenceId id : plan.draws) {
    const sched::Sequence* sequence = scheduler->Find(id);
    CHECK(sequence != nullptr) << "a planned draw has no live sequence";
    const auto found = live.find(sequence->owner->request.id);
    CHECK(found != live.end()) << "a planned draw has no request";
    // pending_most counts this draw too; nothing before it means that the sequence has not drawn at all.
    const bool first = sequence->generated() == 0 && sequence->pending_most <= 1;
    job.draws.push_back({.context = found->second.context, .branch = sequence->branch, .first = first});
  }
}

void Engine::Impl::TakeOutcome(Step& step) {
  const sched::StepPlan& plan = step.job.plan;
  StepOutcome& outcome = step.outcome;
  if (!outcome.status) {
    ++steps_failed;
    scheduler->Fail(plan.id, outcome.status.error());
    return;
  }
  draft_budget = outcome.draft_budget;
  draft_budgets += outcome.draft_budget;
  draft_saved_s += outcome.saved_us * 1e-6;
  ReportPrefill(plan);
  for (StepOutcome::Scores& scores : outcome.scores) {
    const auto found = live.find(plan.prefill[scores.prefill].request);
    if (found != live.end()) ReportScores(found->second, std::move(scores.event));
  }
  for (std::size_t i = 0; i < outcome.done.draws.size(); ++i) {
    sched::DrawResult& draw = outcome.done.draws[i];
    const sched::Sequence* sequence = scheduler->Find(draw.sequence);
    if (sequence == nullptr) continue;  // ended while the step ran; the scheduler drops the draw as well
    TakeDraw(
        *sequence, draw,
        std::span(outcome.tokens).subspan(static_cast<std::size_t>(draw.first), static_cast<std::size_t>(draw.count)));
    CountDrafts(*sequence, draw, outcome.drafts[i]);
  }
  scheduler->Advance(outcome.done);
}

void Engine::Impl::ReportPrefill(const sched::StepPlan& plan) {
  for (const sched::SequenceRows& rows : plan.prefill) {
    const auto found = live.find(rows.request);
    if (found == live.end() || !found->second.context->report_prefill) continue;
    const auto total = static_cast<Position>(found->second.context->prompt.size());
    if (rows.end() <= total) found->second.sink(PrefillEvent{.done = rows.end(), .total = total});
  }
}

// A draw may have been cut where a stop string ended; drafts behind that were not accepted.
void Engine::Impl::CountDrafts(const sched::Sequence& sequence, const sched::DrawResult& draw,
                               const StepOutcome::Drafts& drafts) {
  const auto found = live.find(sequence.owner->request.id);
  if (found == live.end()) return;
  const int accepted = std::min(drafts.accepted, draw.count);
  found->second.branches[static_cast<std::size_t>(sequence.branch)].speculation.Add(drafts.drafted, drafts.verified,
                                                                                    accepted);
  speculation.Add(drafts.drafted, drafts.verified, accepted);
}

// A prompt that was preempted on the way is computed again from its first row; what was reported is not repeated.
void Engine::Impl::ReportScores(Live& request, PromptEvent event) {
  const Position end = event.first + static_cast<Position>(event.tokens.size());
  if (end <= request.scored) return;
  if (event.first < request.scored) {
    event.tokens.erase(event.tokens.begin(), event.tokens.begin() + (request.scored - event.first));
    event.first = request.scored;
  }
  request.scored = end;
  request.sink(std::move(event));
}

void Engine::Impl::TakeDraw(const sched::Sequence& sequence, sched::DrawResult& draw,
                            std::span<Result<GeneratedToken>> tokens) {
  const auto found = live.find(sequence.owner->request.id);
  if (found == live.end()) return;
  LiveBranch& branch = found->second.branches[static_cast<std::size_t>(sequence.branch)];
  // The scheduler takes no more than max_tokens allows.
  const auto room = static_cast<std::size_t>(sequence.limit - sequence.length());
  // What was drawn behind the token at `i`, in this step and in those under way, is dropped.
  const auto stop_at = [&draw](std::size_t i) {
    const int kept = static_cast<int>(i) + 1;
    draw.dropped += draw.count - kept;
    draw.count = kept;
    draw.stop = true;
  };
  for (std::size_t i = 0; i < std::min(tokens.size(), room); ++i) {
    if (!tokens[i]) {
      branch.failed = tokens[i].error();
      return stop_at(i);
    }
    std::string text = branch.text.Append(tokens[i]->id);
    branch.drawn.push_back({.branch = sequence.branch, .token = std::move(*tokens[i]), .text = std::move(text)});
    if (branch.text.stop_string()) return stop_at(i);
  }
}

void Engine::Impl::FinishBranch(Live& request, const sched::Finished& event) {
  LiveBranch& branch = request.branches[static_cast<std::size_t>(event.branch)];
  FinishedEvent out{.branch = event.branch, .reason = event.reason, .request_done = event.request_done};
  out.error = event.error;
  if (branch.failed) {
    out.reason = sched::FinishReason::kError;
    out.error = *branch.failed;
  }
  out.text = branch.text.Finish();
  if (out.reason == sched::FinishReason::kStop) {
    out.stop_string = branch.text.stop_string();
    out.stop_id = branch.text.stop_id();
  }
  out.speculation = branch.speculation;
  branch.finished = true;
  request.sink(out);
}

void Engine::Impl::ReportFinished(const sched::Finished& event) {
  const auto found = live.find(event.request);
  if (found == live.end()) return;
  if (event.request_done) {
    // A request that ends before its prompt is done has one sequence; its other branches end with it.
    sched::Finished other = event;
    other.request_done = false;
    for (std::size_t j = 0; j < found->second.branches.size(); ++j) {
      other.branch = static_cast<int>(j);
      if (other.branch != event.branch && !found->second.branches[j].finished) FinishBranch(found->second, other);
    }
  }
  if (event.request_done) {
    std::lock_guard lock(mutex);
    --room_taken;
  }
  FinishBranch(found->second, event);
  if (!event.request_done) return;
  live.erase(found);
  std::lock_guard lock(mutex);
  --open_requests;
  request_ended.notify_all();
}

// Turns what the scheduler reports into events of the requests.
void Engine::Impl::Report() {
  // Sinks reach the scheduler through queues only, so the batch stays as it is meanwhile.
  const sched::OutputBatch& batch = scheduler->outputs();
  for (const sched::Started& event : batch.started) {
    const auto found = live.find(event.request);
    if (found == live.end()) continue;
    found->second.sink(StartedEvent{.waited_s = static_cast<double>(event.waited_us) * 1e-6,
                                    .kind = std::string(kv::Label(event.kind)),
                                    .cached_tokens = event.cached_tokens,
                                    .replayed_tokens = event.replayed_tokens,
                                    .hit_limit = std::string(kv::Label(event.limit))});
  }
  for (const sched::Tokens& event : batch.tokens) {
    const auto found = live.find(event.request);
    if (found == live.end()) continue;
    LiveBranch& branch = found->second.branches[static_cast<std::size_t>(event.branch)];
    // A draw that failed counts as a token for the scheduler and is none.
    for (int i = 0; i < event.count && branch.reported < branch.drawn.size(); ++i) {
      found->second.sink(std::move(branch.drawn[branch.reported++]));
    }
    if (branch.reported < branch.drawn.size()) continue;
    branch.drawn.clear();
    branch.reported = 0;
  }
  for (const sched::Finished& event : batch.finished) ReportFinished(event);
  scheduler->ClearOutputs();
}

void Engine::Impl::UpdateStats() {
  std::lock_guard lock(mutex);
  stats.scheduler = scheduler->stats();
  stats.speculation = speculation;
  stats.draft_budget = draft_budget;
  stats.draft_budgets = draft_budgets;
  stats.draft_saved_s = draft_saved_s;
  stats.steps_failed = steps_failed;
  stats.running = scheduler->running();
  stats.waiting = scheduler->waiting();
  stats.blocks_total = scheduler->cache().total();
  stats.blocks_active = scheduler->cache().active();
  stats.blocks_cached = scheduler->cache().cached();
  stats.slots_free = scheduler->slots().available();
}

void Engine::Impl::Loop() {
  while (true) {
    TakeEvents();
    while (Step* step = executor->Take()) {
      TakeOutcome(*step);
      step->job.Clear();  // requests may end now; nothing of them stays
    }
    bool planned = false;
    if (const sched::StepPlan* plan = scheduler->Next(Now()); plan != nullptr) {
      FillJob(*plan, executor->NextJob());
      executor->Enqueue();
      planned = true;
    }
    UpdateStats();
    Report();
    if (planned) continue;

    std::unique_lock lock(mutex);
    if (stopping && executor->steps_on_their_way() == 0) return;
    const auto ready = [this] {
      return outcome_ready || !arrivals.empty() || !cancellations.empty() || cancel_all || clear_cache ||
             (stopping && executor->steps_on_their_way() == 0);
    };
    // With as many steps in flight as may be, a timer that is due is looked at when the first of them ends.
    const bool full = scheduler->steps_in_flight() >= scheduler->options().steps_in_flight_max;
    const std::optional<sched::TimeUs> timer = full ? std::nullopt : scheduler->next_timer();
    if (timer) {
      wake.wait_for(lock, std::chrono::microseconds(std::max<sched::TimeUs>(*timer - Now(), 0)), ready);
    } else {
      wake.wait(lock, ready);
    }
  }
}

}  // namespace galley::engine
