// SPDX-License-Identifier: Apache-2.0
#include "galley/sim/world.h"

#include <fmt/core.h>

#include <algorithm>

#include "galley/base/check.h"

namespace galley::sim {
namespace {

constexpr int kBlock = kv::kBlockTokens;
// Group steps within which a branch ends where any is live: as many as the most slots take to draw the longest outputs
// with a row a step between them, and prompts beside that.
constexpr std::int64_t kEndsWithin = 40'000;

kv::BlockKey RootOf(std::uint64_t salt) {
  return kv::RootKey({.model = "sim",
                      .weights_digest = "",
                      .tokenizer_digest = "",
                      .layout = "",
                      .dtype = "",
                      .numeric_class = "",
                      .shard = "",
                      .salt = fmt::format("{}", salt)});
}

}  // namespace

sched::SchedulerOptions World::RandomOptions(Dice& dice) {
  sched::SchedulerOptions options;
  options.blocks = dice.Chance(0.4) ? dice.Int(4, 24) : dice.Int(25, 200);
  options.slots = dice.Int(1, 24);
  options.snapshots = dice.Chance(0.5) ? 0 : dice.Int(1, 8);
  options.drafts = dice.Chance(0.5) ? 0 : dice.Int(1, 5);
  options.prefill_rows_min = dice.Int(8, 128);
  // Sometimes not even the decodes fit into one step.
  options.step_rows_max = options.prefill_rows_min + (1 + options.drafts) * dice.Int(1, 30) + dice.Int(0, 500);
  options.steps_in_flight_max = dice.Int(1, 3);
  options.itl_target_us = dice.Int(1000, 20'000);
  options.queue_max = dice.Chance(0.1) ? dice.Int(1, 8) : 100'000;
  options.max_wait_us = dice.Chance(0.2) ? 1'000'000 : 1'000'000'000'000;
  options.priority_step_us = dice.Int(0, 1'000'000);
  options.share_wait_us = dice.Chance(0.3) ? dice.Int(0, 5000) : 2'000'000;
  kv::ReplaySpec& replay = options.replay;
  replay.window = dice.Int(2, 40);
  replay.backtrack = 5;
  replay.layers = dice.Int(2, 10);
  replay.encoder_layers = dice.Int(1, replay.layers - 1);
  replay.mode = dice.Chance(0.5) ? kv::ReplayMode::kExact : kv::ReplayMode::kBounded;
  replay.truncation = dice.Chance(0.25) ? kv::Truncation::kOff : kv::Truncation::kCompact;
  replay.keep = replay.window + dice.Int(0, 20);
  return options;
}

World::World(const SimOptions& options, std::uint64_t seed, SimReport& report)
    : options_(options), report_(report), dice_(seed), settings_(RandomOptions(dice_)) {
  fault_rate_ = dice_.Chance(0.5) ? 0.0 : 0.005;
  cancel_rate_ = dice_.Chance(0.3) ? 0.0 : 0.02;
  load_ = dice_.Int(1, 40);
  // Short prompts and long outputs outgrow the pool; long prompts fight for the step.
  const bool outgrows = dice_.Chance(0.4);
  prompt_max_ = outgrows ? dice_.Int(20, 200) : dice_.Int(200, 2000);
  output_max_ = outgrows ? dice_.Int(100, 900) : dice_.Int(2, 100);
  families_ = dice_.Int(1, 6);
  vote_.all_period = dice_.Int(1, 4);
  vote_.any_wait_steps = dice_.Int(1, 16);
  for (int i = 0; i < options.ranks; ++i) {
    Rank rank;
    Result<std::unique_ptr<sched::Scheduler>> scheduler = sched::Scheduler::Create(settings_);
    CHECK(scheduler.has_value()) << scheduler.error().ToString();
    rank.scheduler = std::move(*scheduler);
    const double acceptance = static_cast<double>(dice_.Int(0, 100)) / 100;
    rank.device = std::make_unique<FakeDevice>(settings_, acceptance, dice_.Bits(),
                                               [this](std::string what) { Complain(std::move(what)); });
    ranks_.push_back(std::move(rank));
  }
}

void World::Complain(std::string what) {
  if (static_cast<int>(report_.violations.size()) >= options_.violations_max) return;
  report_.violations.push_back(fmt::format("world {} step {}: {}", report_.worlds, step_, what));
}

bool World::Idle() const {
  return std::ranges::all_of(ranks_, [](const Rank& rank) { return rank.scheduler->idle(); });
}

void World::Step(bool draining) {
  ++step_;
  for (Rank& rank : ranks_) {
    if (!draining) Arrive(rank);
    Disturb(rank);
  }
  std::vector<sched::RankSummary> summaries;
  for (const Rank& rank : ranks_) summaries.push_back(rank.scheduler->Summary(step_));
  const Result<sched::Permission> permission = sched::Vote(summaries, vote_);
  CHECK(permission.has_value()) << permission.error().ToString();
  sched::TimeUs longest = 0;
  std::vector<sched::RankRows> rows(ranks_.size());
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    Rank& rank = ranks_[i];
    rank.prefill_waits = summaries[i].prefill_work && !permission->prefill ? rank.prefill_waits + 1 : 0;
    if (rank.prefill_waits > vote_.any_wait_steps) {
      Complain(fmt::format("rank {} waits for prefill since {} steps", i, rank.prefill_waits));
    }
    longest = std::max(longest, PlanAndRun(rank, permission->prefill, rows[i]));
  }
  const sched::StepShape shape = sched::AgreeOnShape(rows, vote_);
  for (const sched::RankRows& rank : rows) {
    if (rank.decode > shape.decode_rows || rank.prefill > shape.prefill_rows) Complain("the padded shape is too small");
  }
  now_ += longest;
  bool progress = longest > 0;
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    Rank& rank = ranks_[i];
    const auto depth = static_cast<std::size_t>(settings_.steps_in_flight_max);
    // A device that got no new step ends what it has while the others run theirs.
    const bool starved = rows[i].decode + rows[i].prefill == 0;
    while (!rank.in_flight.empty() && (rank.in_flight.size() >= depth || starved || dice_.Chance(0.3))) {
      CompleteOldest(rank);
      progress = true;
    }
    CheckLedger(rank);
  }
  if (progress) return;
  // Nothing runs: let time pass until something is due.
  sched::TimeUs next = now_ + 1000;
  for (const Rank& rank : ranks_) {
    if (const auto timer = rank.scheduler->next_timer()) next = std::max(next, draining ? *timer : next);
  }
  now_ = next;
}

void World::Arrive(Rank& rank) {
  int arrivals = static_cast<int>(rank.jobs.size()) < load_ && dice_.Chance(0.5) ? dice_.Int(1, 4) : 0;
  if (dice_.Chance(0.002)) arrivals = 64;  // a flood
  const int room = settings_.blocks * kBlock;
  const int longest = std::min(prompt_max_, room * 3 / 4);
  // Now and then all have a prefix in common that nobody has computed yet.
  const bool together = arrivals > 0 && dice_.Chance(0.1);
  const int common = together ? dice_.Int(1, longest) : 0;
  const auto fresh = static_cast<int>(200'000 + next_request_);
  for (; arrivals > 0; --arrivals) {
    const int length = dice_.Int(std::max(1, common), longest);
    const int family = together ? fresh : dice_.Int(0, families_);
    const int drawn = together ? common : dice_.Int(0, 8) * kBlock + dice_.Int(0, kBlock);
    const int shared = family == 0 ? 0 : std::min(length, drawn);
    std::vector<TokenId> prompt(static_cast<std::size_t>(length));
    const auto own = static_cast<TokenId>(100'000 + 1000 * next_request_);
    for (int i = 0; i < length; ++i) {
      prompt[static_cast<std::size_t>(i)] = i < shared ? (family * 10'000 + i % 7919) & 0x3FFFFFFF : own + i % 997;
    }
    std::optional<Chat> chat;
    if (dice_.Chance(0.4)) chat = Chat{.turns_left = dice_.Int(1, 6), .thinks = dice_.Chance(0.5)};
    if (chat && dice_.Chance(0.3)) chat->salt = dice_.Bits() % 3;
    Submit(rank, std::move(prompt), chat);
  }
}

void World::Submit(Rank& rank, std::vector<TokenId> prompt, std::optional<Chat> chat) {
  const auto length = static_cast<Position>(prompt.size());
  sched::Request request;
  request.id = RequestId(next_request_++);
  request.max_tokens = dice_.Int(1, output_max_);
  request.n = dice_.Chance(0.15) ? dice_.Int(2, 4) : 1;
  request.priority = dice_.Chance(0.2) ? dice_.Int(-2, 2) : 0;
  request.use_cache = !dice_.Chance(0.05);
  request.prompt_logprobs = dice_.Chance(0.05);
  if (dice_.Chance(0.1)) request.max_wait_us = dice_.Int(1000, 1'000'000);
  if (dice_.Chance(0.1)) request.deadline_us = now_ + dice_.Int(1000, 3'000'000);
  if (chat && chat->thinks && length > 1) request.snapshot_points = {length - 1};
  if (chat && dice_.Chance(0.2) && length > 2) request.snapshot_points.insert(request.snapshot_points.begin(), 1);
  if (request.snapshot_points.size() == 2 && request.snapshot_points[1] <= 1) request.snapshot_points.pop_back();
  request.snapshot_at_end = chat && !chat->thinks;
  request.keys = kv::MakeKeyChain(RootOf(chat ? chat->salt : 0), prompt);
  request.prompt = prompt;
  Job job{.script = {.seed = dice_.Bits(),
                     .stop_one_in = dice_.Chance(0.5) ? 0 : dice_.Int(10, 200),
                     .stops_at_once = dice_.Chance(0.5)},
          .prompt = std::move(prompt),
          .max_tokens = request.max_tokens,
          .n = request.n,
          .chat = chat,
          .outputs = {},
          .ended = std::vector<bool>(static_cast<std::size_t>(request.n), false),
          .started = false,
          .arrived_step = step_};
  job.outputs.resize(static_cast<std::size_t>(request.n));
  ++report_.requests;
  rank.jobs.emplace(request.id, std::move(job));
  rank.scheduler->Arrive(std::move(request), now_);
  Collect(rank);
}

void World::Disturb(Rank& rank) {
  if (!rank.jobs.empty() && dice_.Chance(cancel_rate_)) {
    const auto victim = std::next(rank.jobs.begin(), dice_.Between(0, static_cast<int>(rank.jobs.size()) - 1));
    rank.scheduler->Cancel(victim->first);
    Collect(rank);
  }
  if (dice_.Chance(0.0005)) rank.scheduler->ClearCache();
}

sched::TimeUs World::PlanAndRun(Rank& rank, bool may_prefill, sched::RankRows& rows) {
  sched::Scheduler& scheduler = *rank.scheduler;
  std::vector<Ready> ready;
  scheduler.ForEach([&](const sched::Sequence& sequence) {
    if (sched::Scheduler::ReadyToDecode(sequence)) ready.push_back({sequence.id, sequence.order});
  });
  const bool full = scheduler.steps_in_flight() >= settings_.steps_in_flight_max;
  const sched::StepPlan* plan = scheduler.Next(now_, may_prefill);
  Collect(rank);
  if (!full) CheckDecodeFloor(rank, ready, plan);
  if (!full) CheckProgress(rank);
  if (plan == nullptr) return 0;
  if (!may_prefill && !plan->prefill.empty()) Complain("prompt rows without permission");
  CheckChunk(rank, *plan);
  rows = {.decode = plan->decode_rows, .prefill = plan->prefill_rows};
  for (const auto* list : {&plan->decode, &plan->prefill}) {
    for (const sched::SequenceRows& entry : *list) {
      Digest(static_cast<std::uint64_t>(entry.request.value * 8 + entry.branch));
      Digest(static_cast<std::uint64_t>(entry.begin * 100'000 + entry.rows));
    }
  }
  sched::StepDone done = rank.device->Run(*plan, scheduler, [&](RequestId id) { return rank.jobs.at(id).script; });
  if (step_ == options_.corrupt_step && !done.token_ids.empty()) done.token_ids.front() ^= 1;
  const sched::TimeUs time = 300 + 15 * plan->decode_rows + 4 * plan->prefill_work;
  done.elapsed_us = time * dice_.Between(85, 115) / 100;
  rank.in_flight.push_back({std::move(done), dice_.Chance(fault_rate_)});
  return rank.in_flight.back().done.elapsed_us;
}

// Every sequence that was ready decodes, unless the step is full or its blocks come free only when a step retires, and
// nobody is left out for lack of room more often in a row than the bound says.
void World::CheckDecodeFloor(Rank& rank, const std::vector<Ready>& ready, const sched::StepPlan* plan) {
  std::vector<bool> planned;
  const auto mark = [](auto& marks, sched::SequenceId id) -> decltype(auto) {
    const auto index = static_cast<std::size_t>(id.value);
    if (marks.size() <= index) marks.resize(index + 1);
    return marks[index];
  };
  int short_of_blocks = plan == nullptr ? static_cast<int>(ready.size()) : plan->short_of_blocks;
  const int over = plan == nullptr ? 0 : plan->over_capacity;
  if (plan != nullptr) {
    // One that was preempted may have been resumed in the same step.
    for (const auto* list : {&plan->decode, &plan->prefill}) {
      for (const sched::SequenceRows& rows : *list) {
        mark(planned, rows.sequence) = true;
        mark(rank.left_out, rows.sequence) = 0;
      }
    }
    for (const sched::SequenceId id : plan->draws) mark(rank.left_out, id) = 0;  // new branches included
    if (over > 0 && static_cast<int>(plan->decode.size()) != settings_.decode_capacity()) {
      Complain("decodes left out of a step that has room");
    }
  }
  int missing = 0;
  for (const auto& [id, order] : ready) {
    const sched::Sequence* sequence = rank.scheduler->Find(id);
    if (mark(planned, id) || sequence == nullptr || !sequence->in<sched::Decoding>()) continue;
    if (sequence->order != order) continue;  // it ended, and its place went to a branch of another
    ++missing;
    int& waits = mark(rank.left_out, id);
    waits = short_of_blocks == 0 ? waits + 1 : 0;
    if (waits > settings_.decode_wait_bound()) {
      Complain(fmt::format("a ready sequence was left out of {} steps in a row, bound {}", waits,
                           settings_.decode_wait_bound()));
    }
  }
  if (plan == nullptr && rank.in_flight.empty() && missing > 0) Complain("nothing runs although sequences are ready");
  if (missing > short_of_blocks + over) {
    Complain(fmt::format("{} ready sequences left out: {} short of blocks, {} over capacity", missing, short_of_blocks,
                         over));
  }
}

// Whoever is oldest among the running gets rows in every step, but for the turns of a step without room, the votes that
// forbid prompt rows, and blocks and results that steps in flight still hold.
void World::CheckProgress(Rank& rank) {
  const sched::Sequence* oldest = nullptr;
  rank.scheduler->ForEach([&](const sched::Sequence& sequence) {
    if (sequence.held() != nullptr && (oldest == nullptr || sequence.order < oldest->order)) oldest = &sequence;
  });
  const std::pair seen{oldest == nullptr ? sched::OrderKey{} : oldest->order,
                       oldest == nullptr ? 0 : oldest->last_planned};
  rank.oldest_idle = oldest != nullptr && seen == rank.oldest_seen ? rank.oldest_idle + 1 : 0;
  rank.oldest_seen = seen;
  const int bound = settings_.decode_wait_bound() + vote_.any_wait_steps + settings_.steps_in_flight_max + 1;
  if (rank.oldest_idle > bound) {
    Complain(fmt::format("the oldest running sequence got no rows in {} steps, bound {}", rank.oldest_idle, bound));
  }
}

// While sequences decode, a chunk beyond the least size keeps the predicted step time.
void World::CheckChunk(const Rank& rank, const sched::StepPlan& plan) {
  if (plan.decode_rows + plan.prefill_rows > settings_.step_rows_max) Complain("more rows than a step may have");
  const int least = settings_.prefill_rows_min * (settings_.replay.truncates() ? 2 : 1);
  // Half a row's work may be rounded up, twice.
  if (plan.decode.empty() || plan.prefill_work <= least + 2) return;
  const double predicted = rank.scheduler->cost().Predict(plan.decode_rows, plan.prefill_work - 2);
  if (predicted > static_cast<double>(settings_.itl_target_us)) {
    Complain(fmt::format("{} prefill work beside {} decode rows is predicted to take {} us", plan.prefill_work,
                         plan.decode_rows, predicted));
  }
}

void World::CompleteOldest(Rank& rank) {
  InFlight step = std::move(rank.in_flight.front());
  rank.in_flight.pop_front();
  if (step.fails) {
    ++report_.failed_steps;
    rank.scheduler->Fail(step.done.step, {ErrorCode::kDevice, "injected", "step"});
  } else {
    rank.scheduler->Advance(step.done);
  }
  Collect(rank);
}

void World::Collect(Rank& rank) {
  // A next turn submits, which collects again: take the batch first.
  const sched::OutputBatch batch = rank.scheduler->outputs();
  rank.scheduler->ClearOutputs();
  for (const sched::Started& started : batch.started) {
    Job& job = rank.jobs.at(started.request);
    if (job.started) Complain("a request started twice");
    job.started = true;
  }
  for (const sched::Tokens& tokens : batch.tokens) {
    Job& job = rank.jobs.at(tokens.request);
    const auto branch = static_cast<std::size_t>(tokens.branch);
    if (job.ended[branch]) Complain("tokens after the terminal event");
    const auto first = batch.token_ids.begin() + tokens.first;
    job.outputs[branch].insert(job.outputs[branch].end(), first, first + tokens.count);
    for (int i = 0; i < tokens.count; ++i) Digest(static_cast<std::uint64_t>(first[i]));
  }
  for (const sched::Finished& finished : batch.finished) {
    const auto found = rank.jobs.find(finished.request);
    if (found == rank.jobs.end()) {
      Complain("a terminal event for a request that is not live");
      continue;
    }
    Job& job = found->second;
    const auto branch = static_cast<std::size_t>(finished.branch);
    if (job.ended[branch]) Complain("two terminal events for one branch");
    job.ended[branch] = true;
    rank.last_end = step_;
    CheckOutput(job, finished.branch, finished.reason);
    if (!finished.request_done) continue;
    const Job ended = std::move(job);
    rank.jobs.erase(found);
    if (ended.chat && finished.reason != sched::FinishReason::kError) NextTurn(rank, ended);
  }
}

void World::CheckOutput(const Job& job, int branch, sched::FinishReason reason) {
  using sched::FinishReason;
  const std::vector<TokenId>& output = job.outputs[static_cast<std::size_t>(branch)];
  const std::vector<TokenId> expected = ExpectedOutput(job.script, branch, job.prompt, job.max_tokens);
  const bool whole = reason == FinishReason::kStop || reason == FinishReason::kLength;
  if (whole ? output != expected
            : output.size() > expected.size() || !std::equal(output.begin(), output.end(), expected.begin())) {
    const auto differ = std::ranges::mismatch(output, expected).in1 - output.begin();
    Complain(fmt::format("branch {} of a prompt of {} tokens gave {} tokens, {} were expected; they differ at {}",
                         branch, job.prompt.size(), output.size(), expected.size(), differ));
  }
  report_.outputs_checked += whole ? 1 : 0;
  (reason == FinishReason::kStop        ? report_.ended_stop
   : reason == FinishReason::kLength    ? report_.ended_length
   : reason == FinishReason::kCancelled ? report_.ended_cancelled
                                        : report_.ended_error) += 1;
}

void World::NextTurn(Rank& rank, const Job& job) {
  Chat chat = *job.chat;
  if (--chat.turns_left < 0 || step_ > options_.steps_per_world) return;
  std::vector<TokenId> prompt = job.prompt;
  const std::vector<TokenId>& output = job.outputs.front();
  if (chat.thinks) prompt.pop_back();  // the token that opened the reasoning
  const auto kept = static_cast<std::ptrdiff_t>(chat.thinks ? output.size() / 2 : 0);
  prompt.insert(prompt.end(), output.begin() + kept, output.end());
  for (int i = dice_.Int(1, 200); i > 0; --i) prompt.push_back(static_cast<TokenId>(dice_.Bits() % 1000));
  if (static_cast<int>(prompt.size()) + 400 > settings_.blocks * kBlock) return;
  Submit(rank, std::move(prompt), chat);
}

void World::CheckLedger(Rank& rank) {
  const kv::BlockCache& cache = rank.scheduler->cache();
  if (cache.free() + cache.cached() + cache.active() != cache.total()) Complain("the block ledger does not add up");
  rank.scheduler->CheckInvariants();
  std::size_t live = 0;
  rank.scheduler->ForEach([&](const sched::Sequence& sequence) { live += sequence.branch == 0 ? 1 : 0; });
  if (live > rank.jobs.size()) Complain(fmt::format("{} first branches live, {} requests", live, rank.jobs.size()));
  if (rank.jobs.empty()) return;
  // What waits behind others may wait for long; but these end, and once nothing new arrives there are ever fewer.
  const auto& [id, job] = *rank.jobs.begin();
  const std::int64_t since = step_ - std::max(job.arrived_step, rank.last_end);
  if (since > kEndsWithin) Complain(fmt::format("nothing has ended in {} steps, request {} among it", since, id.value));
}

void World::Close() {
  for (Rank& rank : ranks_) {
    sched::Scheduler& scheduler = *rank.scheduler;
    scheduler.CheckInvariants();
    if (!rank.jobs.empty()) Complain(fmt::format("{} requests never ended", rank.jobs.size()));
    if (scheduler.cache().active() != 0) Complain("blocks are still held although nothing is live");
    if (scheduler.slots().available() != scheduler.slots().total()) Complain("slots are still held");
    if (scheduler.snapshots().saving() != 0) Complain("a snapshot was never committed or abandoned");
    const sched::SchedulerStats& stats = scheduler.stats();
    report_.preemptions += stats.preemptions;
    report_.resumes += stats.resumes;
    report_.forks += stats.forks;
    report_.shared_waits += stats.shared_waits;
    report_.snapshot_saves += stats.snapshot_saves;
    report_.snapshot_restores += stats.snapshot_restores;
    report_.prompt_tokens += stats.prompt_tokens;
    report_.cached_tokens += stats.cached_tokens;
    report_.replayed_tokens += stats.replayed_tokens;
    report_.evictions += scheduler.cache().evictions();
    report_.rows += rank.device->encoder_rows();
    report_.decode_waits_longest = std::max(report_.decode_waits_longest, stats.decode_waits_longest);
  }
}

}  // namespace galley::sim
