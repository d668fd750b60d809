// SPDX-License-Identifier: Apache-2.0
// The part of the executor that chooses tokens: drafts before the forward pass, draws after it.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>

#include "galley/backend/sampling.h"
#include "galley/base/check.h"
#include "galley/engine/executor.h"
#include "galley/engine/logit_rules.h"

namespace galley::engine {
namespace {

// Rows of its rings that the draft head needs at least, where there are as many.
constexpr Position kRingRowsLeast = 32;
// Chance of its first draft from which on a lookup is taken instead of a draft pass.
constexpr double kLookupLeast = 0.6;

backend::SampleParams ParamsOf(const StepJob::Draw& draw, Position position) {
  const SamplingParams& s = draw.context->sampling;
  return {.temperature = static_cast<float>(s.temperature),
          .top_k = s.top_k,
          .top_p = static_cast<float>(s.top_p),
          .min_p = static_cast<float>(s.min_p),
          .seed = BranchSeed(s.seed, draw.branch),
          .position = position};
}

}  // namespace

GeneratedToken Executor::Scored(std::span<const float> logits, TokenId id, int top) {
  GeneratedToken token{.id = id, .logprob = backend::LogProbability(logits, id), .alternatives = {}};
  for (const backend::RankedToken& ranked : backend::TopTokens(logits, top, ranked_)) {
    token.alternatives.push_back({.id = ranked.id, .logprob = ranked.logprob});
  }
  return token;
}

GeneratedToken Executor::Delivered(std::size_t drawn, int top) const {
  GeneratedToken token{.id = drawn_[drawn].id, .logprob = drawn_[drawn].logprob, .alternatives = {}};
  for (std::size_t i = 0; i < static_cast<std::size_t>(top); ++i) {
    const backend::RankedToken& ranked = ranked_draws_[drawn * backend::kAlternativesMax + i];
    if (ranked.id >= 0) token.alternatives.push_back({.id = ranked.id, .logprob = ranked.logprob});
  }
  return token;
}

Status Executor::ScoreRows(const float* logits, std::span<const TokenId> tokens, int top, PromptEvent& event) {
  if (loaded_.backend().draws()) {
    requests_.clear();
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      requests_.push_back(
          {.row = static_cast<std::int32_t>(i), .params = {}, .changes = {}, .given = tokens[i], .alternatives = top});
    }
    RETURN_IF_ERROR(RunRequests(logits));
    for (std::size_t i = 0; i < tokens.size(); ++i) event.tokens.push_back(Delivered(i, top));
    return {};
  }
  const auto vocab = static_cast<std::size_t>(loaded_.config().vocab_size);
  logits_.resize(tokens.size() * vocab);
  RETURN_IF_ERROR(loaded_.backend().CopyToHost(logits_.data(), logits, logits_.size() * sizeof(float)));
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    event.tokens.push_back(Scored(std::span(logits_).subspan(i * vocab, vocab), tokens[i], top));
  }
  return {};
}

void Executor::StartHistories(const StepJob& job) {
  for (std::size_t at = 0; at < job.draws.size(); ++at) {
    const StepJob::Draw& draw = job.draws[at];
    if (!draw.first) continue;
    const auto& constraint = draw.context->constraint;
    History& history = histories_[job.plan.draws[at]];
    // Of all tokens at once, so that no step has to find memory for them; steps planned ahead may add a few.
    const int tokens_most = draw.context->tokens_most + 4 * (kDraftTokensMax + 1);
    history = {.output = {},
               .use = TokenUse(draw.context->rules, draw.context->prompt, loaded_.config().vocab_size, tokens_most),
               .constraint = constraint == nullptr ? nullptr : constraint->Clone(),
               .ended = false};
    history.output.reserve(static_cast<std::size_t>(tokens_most));
  }
}

Status Executor::PlanVerify(const StepJob& job) {
  verifies_.resize(std::max(verifies_.size(), job.plan.decode.size()));
  for (Verify& verify : verifies_) verify.Clear();
  asks_.clear();
  asking_.clear();
  survivals_.clear();
  finding_.clear();
  found_survivals_.clear();
  found_rows_ = 0;
  draft_us_ = 0;
  draft_budget_ = 0;
  for (std::size_t i = 0; i < job.plan.decode.size(); ++i) {
    const sched::SequenceRows& rows = job.plan.decode[i];
    const StepJob::Draw& draw = job.draws[static_cast<std::size_t>(rows.first_draw)];
    History& history = histories_[rows.sequence];
    const std::vector<TokenId>& prompt = draw.context->prompt;
    const auto newest = static_cast<Position>(prompt.size() + history.output.size()) - 1;
    // A step that failed left its sequences without the token that this one goes on from. They have ended, and this
    // step was planned before that was known.
    if (newest < rows.begin) history.ended = true;
    if (history.ended || newest >= rows.row_limit) continue;
    verifies_[i].tokens.push_back(history.output.back());
    verifies_[i].begin = newest;
    const auto most = static_cast<int>(std::min<Position>(rows.rows, rows.row_limit - newest)) - 1;
    if (drafter_ == nullptr || most < 1) continue;
    const bool rests = planner_ && !planner_->Drafts(history.quench);
    const Position ring_from = std::max(rows.decoder_floor, draft_rings_.From(rows.slot, newest));
    // A head that sees little of the text drafts badly, and would be judged by it.
    const bool blind = planner_ && ring_from > std::max<Position>(rows.decoder_floor, newest - kRingRowsLeast);
    const DraftAsk ask{.slot = rows.slot,
                       .newest = newest,
                       .decoder_floor = ring_from,
                       .most = most,
                       .prompt = prompt,
                       .output = history.output,
                       .sampling = ParamsOf(draw, 0)};
    if (Find(ask, i, rests || blind) || rests || blind) continue;
    asking_.push_back(i);
    asks_.push_back(ask);
  }
  return asks_.empty() && !planner_ ? Status() : ProposeDrafts(job);
}

bool Executor::Find(const DraftAsk& ask, std::size_t decode, bool otherwise_none) {
  if (!planner_ || found_.empty() || loaded_.backend().repeats_steps()) return false;
  Proposal& proposal = found_[finding_.size()];
  ProposeByLookup(ask, lookup_chances_, proposal);
  if (options_.speculation.alter) options_.speculation.alter(ask, proposal);
  const double least = otherwise_none ? 0 : kLookupLeast;
  if (proposal.tokens.empty() || lookup_chances_.Next(proposal.matched) < least) return false;
  float survival = 1;
  for (int i = 0; i < options_.speculation.draft_tokens; ++i) {
    survival *= i < ask.most ? static_cast<float>(lookup_chances_.Next(proposal.matched + i)) : 0;
    found_survivals_.push_back(survival);
  }
  finding_.push_back(decode);
  return true;
}

int Executor::TakeFound(const sched::VerifyBudget& plan) {
  lengths_.assign(finding_.size(), 0);
  sched::ChooseRows(found_survivals_, options_.speculation.draft_tokens, plan.drafts, lengths_, sorted_, plan.least);
  for (std::size_t k = 0; k < finding_.size(); ++k) {
    Verify& verify = verifies_[finding_[k]];
    const std::vector<TokenId>& tokens = found_[k].tokens;
    const auto count = std::min(tokens.size(), static_cast<std::size_t>(lengths_[k]));
    if (count == 0) continue;
    verify.tokens.insert(verify.tokens.end(), tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(count));
    verify.drafted = static_cast<int>(tokens.size());
    verify.matched = found_[k].matched;
    verify.found = true;
    found_rows_ += static_cast<int>(count);
  }
  return found_rows_;
}

Status Executor::ProposeDrafts(const StepJob& job) {
  sched::VerifyBudget plan{.drafts = static_cast<int>(asks_.size()) * options_.speculation.draft_tokens,
                           .depth = options_.speculation.draft_tokens};
  if (planner_) {
    int rows = 0;
    for (const DraftAsk& ask : asks_) rows += ask.most;
    for (std::size_t k = 0; k < finding_.size(); ++k) rows += static_cast<int>(found_[k].tokens.size());
    const auto running =
        static_cast<int>(std::ranges::count_if(verifies_, [](const Verify& v) { return !v.tokens.empty(); }));
    plan = planner_->Next(job.plan.id, running, static_cast<int>(asks_.size()), running + rows, found_survivals_);
    if (plan.drafts == 0) return {};
    draft_budget_ = plan.drafts;
    plan.drafts -= TakeFound(plan);
    if (plan.drafting == 0) {
      asking_.clear();
      return {};
    }
    KeepAsks(static_cast<std::size_t>(plan.drafting), static_cast<std::size_t>(job.plan.id));
    for (DraftAsk& ask : asks_) ask.most = std::min(ask.most, plan.depth);
  }
  draft_budget_ = std::max(draft_budget_, plan.drafts);
  draft_size_ = plan.draft_size;
  const auto begin = std::chrono::steady_clock::now();
  ASSIGN_OR_RETURN(const std::span<Proposal> proposals, drafter_->Propose(asks_));
  draft_us_ = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
  if (options_.speculation.alter) {
    for (std::size_t k = 0; k < asks_.size(); ++k) options_.speculation.alter(asks_[k], proposals[k]);
  }
  lengths_.assign(asks_.size(), options_.speculation.draft_tokens);
  if (planner_) ChooseLengths(plan, proposals);
  for (std::size_t k = 0; k < asking_.size(); ++k) {
    Verify& verify = verifies_[asking_[k]];
    const std::vector<TokenId>& tokens = proposals[k].tokens;
    verify.drafted = static_cast<int>(tokens.size());
    verify.matched = proposals[k].matched;
    verify.survivals = k * static_cast<std::size_t>(plan.depth);
    const auto count = std::min(tokens.size(), static_cast<std::size_t>(lengths_[k]));
    verify.tokens.insert(verify.tokens.end(), tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(count));
    verify.confidences.assign(proposals[k].confidences.begin(), proposals[k].confidences.end());
    if (options_.speculation.mode == SpeculationMode::kRejection) verify.draft_logits = proposals[k].logits;
  }
  return {};
}

void Executor::KeepRings(const StepJob& job) {
  if (drafter_ == nullptr) return;
  const auto drafts_soon = [this](const sched::SequenceRows& rows) {
    return sched::VerifyPlanner::DraftsSoon(histories_[rows.sequence].quench);
  };
  const bool wanted = !planner_ || (planner_->DraftsSoon() &&
                                    (!job.plan.prefill.empty() || std::ranges::any_of(job.plan.decode, drafts_soon)));
  const bool keep = loaded_.model().KeepDraftRings(wanted);
  for (const model::SequenceInput& input : inputs_) {
    const Position end = input.start + static_cast<Position>(input.tokens.size());
    const Position decoder_from = input.decoder_from < 0 ? input.decoder_floor : input.decoder_from;
    draft_rings_.Ran(input.slot, std::min(std::max(input.start, decoder_from), end), end, keep);
  }
}

void Executor::KeepAsks(std::size_t count, std::size_t turn) {
  if (count >= asks_.size()) return;
  const auto first = static_cast<std::ptrdiff_t>(turn * count % asks_.size());
  std::rotate(asks_.begin(), asks_.begin() + first, asks_.end());
  std::rotate(asking_.begin(), asking_.begin() + first, asking_.end());
  asks_.resize(count);
  asking_.resize(count);
}

void Executor::ChooseLengths(const sched::VerifyBudget& plan, std::span<const Proposal> proposals) {
  const auto depth = static_cast<std::size_t>(plan.depth);
  survivals_.assign(proposals.size() * depth, 0);
  for (std::size_t k = 0; k < proposals.size(); ++k) {
    const std::span<float> own = std::span(survivals_).subspan(k * depth, depth);
    for (std::size_t i = 0; i < proposals[k].tokens.size(); ++i) {
      own[i] = static_cast<float>(calibration_.Chance(proposals[k].confidences[i], i));
    }
    sched::ToSurvivals(own);
  }
  depth_ = plan.depth;
  sched::ChooseRows(survivals_, plan.depth, plan.drafts, lengths_, sorted_, plan.least);
}

void Executor::ReportStep(const StepJob& job, double forward_us, double sampler_us, StepOutcome& outcome) {
  outcome.draft_budget = draft_budget_;
  if (!planner_) return;
  std::int64_t rows = 0;
  for (const Verify& verify : verifies_) rows += static_cast<std::int64_t>(verify.tokens.size());
  // Prompt rows of the same pass would count as time of the decode rows.
  const bool alone = job.plan.prefill.empty();
  const sched::VerifyCost::Measured measured{.rows = rows,
                                             .drafting = draft_us_ > 0 ? draft_size_ : 0,
                                             .forward_us = alone ? forward_us : 0,
                                             .sampler_us = alone ? sampler_us : 0,
                                             .draft_us = draft_us_};
  planner_->Report(job.plan.id, survivals_, depth_, measured);
  const auto running = std::ranges::count_if(verifies_, [](const Verify& v) { return !v.tokens.empty(); });
  const std::int64_t drafting = draft_us_ > 0 ? static_cast<std::int64_t>(asking_.size()) : 0;
  if (alone)
    planner_->Judge(running, drafting, found_rows_, static_cast<std::int64_t>(outcome.tokens.size()), measured);
  if (alone && (draft_us_ > 0 || found_rows_ > 0))
    outcome.saved_us = planner_->Saved(running, static_cast<std::int64_t>(outcome.tokens.size()), measured);
}

model::SequenceInput Executor::DecodeInput(const sched::SequenceRows& rows, const Verify& verify) {
  return {.slot = rows.slot,
          .start = verify.begin,
          .tokens = verify.tokens,
          .blocks = tables_[static_cast<std::size_t>(rows.slot.value)],
          .history_from = rows.write_from,
          .encoder_floor = rows.encoder_floor,
          .decoder_floor = rows.decoder_floor,
          .logit_rows = static_cast<int>(verify.tokens.size())};
}

void Executor::StartMasks(const StepJob& job) {
  const std::size_t words = MaskWords(loaded_.config().vocab_size);
  mask_jobs_.clear();
  mask_of_.assign(job.draws.size(), -1);
  std::size_t masks = 0;
  for (std::size_t at = 0; at < job.draws.size(); ++at) {
    const History& history = histories_[job.plan.draws[at]];
    if (history.constraint == nullptr || history.ended) continue;
    // Draws of decoding sequences come first, in the order of plan.decode.
    const bool decodes = at < job.plan.decode.size();
    const auto drafts = decodes ? verifies_[at].drafts() : std::span<const TokenId>();
    if (decodes && verifies_[at].tokens.empty()) continue;
    mask_of_[at] = static_cast<int>(mask_jobs_.size());
    mask_jobs_.push_back({.constraint = history.constraint.get(), .drafts = drafts, .masks = {}, .status = {}});
    masks += 1 + drafts.size();
  }
  mask_words_.resize(std::max(mask_words_.size(), masks * words));
  std::size_t first = 0;
  for (MaskJob& mask : mask_jobs_) {
    const std::size_t count = 1 + mask.drafts.size();
    mask.masks = std::span(mask_words_).subspan(first * words, count * words);
    first += count;
  }
  mask_worker_.Start(mask_jobs_);
}

bool Executor::DrawsOnDevice(const StepJob& job) const {
  if (!loaded_.backend().draws() || options_.speculation.mode == SpeculationMode::kRejection) return false;
  // A draft that counts as drawn is not the token that the device would tell the log-probability of.
  if (options_.speculation.fixed_accepted < 0) return true;
  return std::ranges::all_of(job.draws,
                             [](const StepJob::Draw& draw) { return draw.context->sampling.top_logprobs < 0; });
}

template <typename Visit>
void Executor::ForRows(const StepJob& job, Visit&& visit) {
  std::size_t logits_row = 0;
  for (std::size_t i = 0; i < job.plan.decode.size(); ++i) {
    const auto at = static_cast<std::size_t>(job.plan.decode[i].first_draw);
    const Verify& verify = verifies_[i];
    for (std::size_t j = 0; j < verify.tokens.size(); ++j) {
      const RowDraw row{
          .at = at, .row = j, .position = verify.begin + static_cast<Position>(j) + 1, .logits_row = logits_row++};
      visit(job.draws[at], row, histories_.at(job.plan.draws[at]), verify.drafts().first(j));
    }
  }
  for (const sched::SequenceRows& rows : job.plan.prefill) {
    if (rows.draws == 0) continue;
    for (int i = 0; i < rows.draws; ++i) {
      const auto at = static_cast<std::size_t>(rows.first_draw + i);
      const RowDraw row{.at = at, .row = 0, .position = rows.end(), .logits_row = logits_row};
      visit(job.draws[at], row, histories_.at(job.plan.draws[at]), std::span<const TokenId>());
    }
    ++logits_row;
  }
}

Status Executor::RunRequests(const float* logits) {
  const bool ranks = std::ranges::any_of(requests_, [](const backend::DrawRequest& r) { return r.alternatives > 0; });
  drawn_.resize(requests_.size());
  ranked_draws_.resize(ranks ? requests_.size() * backend::kAlternativesMax : 0);
  return loaded_.backend().Draw({.count = static_cast<int>(requests_.size()),
                                 .vocab = loaded_.config().vocab_size,
                                 .logits = logits,
                                 .requests = requests_.data(),
                                 .drawn = drawn_.data(),
                                 .ranked = ranks ? ranked_draws_.data() : nullptr});
}

Status Executor::DrawOnDevice(const StepJob& job) {
  requests_.clear();
  change_memory_.Clear();
  ForRows(job, [this](const StepJob::Draw& draw, const RowDraw& row, const History& history,
                      std::span<const TokenId> drafts) {
    requests_.push_back(RequestOf(draw, row, history, drafts, IsMasked(row)));
  });
  return RunRequests(device_logits_);
}

Status Executor::DrawAgain(const StepJob::Draw& draw, const RowDraw& row, const History& history) {
  change_memory_.Clear();
  const backend::DrawRequest request = RequestOf(draw, row, history, {}, true);
  return loaded_.backend().Draw(
      {.count = 1,
       .vocab = loaded_.config().vocab_size,
       .logits = device_logits_,
       .requests = &request,
       .drawn = &drawn_[*row.drawn],
       .ranked = ranked_draws_.empty() ? nullptr : &ranked_draws_[*row.drawn * backend::kAlternativesMax]});
}

Status Executor::DrawAll(const StepJob& job, StepOutcome& outcome) {
  const bool on_device = DrawsOnDevice(job);
  outcome.done.draws.resize(job.plan.draws.size());
  outcome.drafts.resize(job.plan.draws.size());
  std::size_t logits_row = 0;
  for (std::size_t i = 0; i < job.plan.decode.size(); ++i) {
    RETURN_IF_ERROR(DrawVerified(job, i, logits_row, outcome));
    logits_row += verifies_[i].tokens.size();
  }
  std::size_t number = logits_row;  // in drawn_
  for (const sched::SequenceRows& rows : job.plan.prefill) {
    if (rows.draws == 0) continue;
    for (int i = 0; i < rows.draws; ++i) {
      const auto at = static_cast<std::size_t>(rows.first_draw + i);
      sched::DrawResult& result = outcome.done.draws[at];
      result = {
          .sequence = job.plan.draws[at], .first = static_cast<int>(outcome.tokens.size()), .count = 1, .stop = false};
      RowDraw row{.at = at, .row = 0, .position = rows.end(), .logits_row = logits_row};
      if (on_device) row.drawn = number++;
      result.stop = DrawInto(job.draws[at], row, histories_.at(job.plan.draws[at]), outcome);
    }
    ++logits_row;
  }
  return {};
}

Status Executor::DrawVerified(const StepJob& job, std::size_t decode, std::size_t first, StepOutcome& outcome) {
  const auto vocab = static_cast<std::size_t>(loaded_.config().vocab_size);
  const sched::SequenceRows& rows = job.plan.decode[decode];
  const Verify& verify = verifies_[decode];
  const auto at = static_cast<std::size_t>(rows.first_draw);
  const StepJob::Draw& draw = job.draws[at];
  History& history = histories_[rows.sequence];
  const std::span<const TokenId> drafts = verify.drafts();
  std::span<const float> draft_logits;
  if (verify.draft_logits != nullptr && !drafts.empty()) {
    draft_logits_.resize(drafts.size() * vocab);
    RETURN_IF_ERROR(
        loaded_.backend().CopyToHost(draft_logits_.data(), verify.draft_logits, draft_logits_.size() * sizeof(float)));
    draft_logits = draft_logits_;
  }
  const double fixed = options_.speculation.fixed_accepted;
  const bool forces = fixed >= 0 && history.constraint == nullptr;
  const int forced = forces ? FixedAccepted(fixed, draw.context->sampling.seed, verify.begin) : 0;
  const bool on_device = DrawsOnDevice(job);
  sched::DrawResult& result = outcome.done.draws[at];
  result = {.sequence = rows.sequence, .first = static_cast<int>(outcome.tokens.size()), .count = 0, .stop = false};
  int accepted = 0;
  for (std::size_t i = 0; i < verify.tokens.size(); ++i) {
    RowDraw row{.at = at, .row = i, .position = verify.begin + static_cast<Position>(i) + 1, .logits_row = first + i};
    if (on_device) row.drawn = first + i;
    if (i < drafts.size()) {
      row.draft = drafts[i];
      if (!draft_logits.empty()) row.draft_logits = draft_logits.subspan(i * vocab, vocab);
      row.forced = static_cast<int>(i) < forced;
    }
    result.stop = DrawInto(draw, row, history, outcome);
    ++result.count;
    const bool kept =
        row.draft && outcome.tokens.back() && outcome.tokens.back()->id == *row.draft && !(forces && !row.forced);
    if (kept) {
      outcome.tokens.back()->from_draft = true;
      ++accepted;
    }
    if (result.stop || !kept) break;
  }
  if (options_.speculation.on_round && !result.stop && !drafts.empty() && drafts.size() == verify.confidences.size()) {
    options_.speculation.on_round({.confidences = verify.confidences, .accepted = accepted});
  }
  // Drafts that are not worth verifying had their price as well.
  if (planner_ && verify.drafted > 0) {
    // A round that ended the text says nothing of the drafts behind.
    const std::size_t judged =
        result.stop ? std::min(drafts.size(), static_cast<std::size_t>(accepted)) : drafts.size();
    lookup_chances_.Verified(verify.matched, verify.matched > 0 ? static_cast<int>(judged) : 0, accepted);
    if (!verify.found)
      planner_->Accepted(history.quench, std::span(survivals_).subspan(verify.survivals, judged), accepted);
  }
  outcome.drafts[at] = {.drafted = verify.drafted, .verified = static_cast<int>(drafts.size()), .accepted = accepted};
  return {};
}

bool Executor::DrawInto(const StepJob::Draw& draw, const RowDraw& row, History& history, StepOutcome& outcome) {
  Result<GeneratedToken> token = DrawOne(draw, row, history);
  const TokenId id = token ? token->id : 0;  // a failed draw ends its own sequence and no other
  history.output.push_back(id);
  history.use.Add(id);
  const std::vector<TokenId>& stops = draw.context->stop_ids;
  const bool complete = history.constraint != nullptr && history.constraint->IsComplete();
  history.ended = !token || complete || std::find(stops.begin(), stops.end(), id) != stops.end();
  outcome.done.token_ids.push_back(id);
  outcome.tokens.push_back(std::move(token));
  return history.ended;
}

std::span<const float> Executor::LogitsOf(const RowDraw& row) const {
  const auto vocab = static_cast<std::size_t>(loaded_.config().vocab_size);
  return std::span(logits_).subspan(row.logits_row * vocab, vocab);
}

std::span<std::uint32_t> Executor::MaskOf(const RowDraw& row) {
  if (mask_of_[row.at] < 0) return {};
  const std::size_t words = MaskWords(loaded_.config().vocab_size);
  return mask_jobs_[static_cast<std::size_t>(mask_of_[row.at])].masks.subspan(row.row * words, words);
}

bool Executor::IsOpen(const RowDraw& row) const {
  return mask_of_[row.at] >= 0 && (mask_jobs_[static_cast<std::size_t>(mask_of_[row.at])].open >> row.row & 1u) != 0;
}

bool Executor::IsMasked(const RowDraw& row) const {
  if (mask_of_[row.at] < 0 || IsOpen(row)) return false;
  return static_cast<int>(row.row) < mask_jobs_[static_cast<std::size_t>(mask_of_[row.at])].filled;
}

backend::RowChanges Executor::ChangesOf(const StepJob::Draw& draw, const RowDraw& row, const History& history,
                                        std::span<const TokenId> drafts, bool masked) {
  const DrawContext& context = *draw.context;
  const std::vector<std::uint32_t>& always = context.allowed;
  const auto tokens = static_cast<int>(history.output.size() + drafts.size());
  const bool early = tokens < context.min_tokens && !context.stop_ids.empty();
  backend::RowChanges changes;
  if (!always.empty()) changes.allowed = always.data();
  if (masked || early || !context.banned_words.empty()) {
    const std::span<std::uint32_t> allowed = masked ? MaskOf(row) : change_memory_.TakeMask();
    for (std::size_t i = 0; i < allowed.size(); ++i) {
      allowed[i] = (masked ? allowed[i] : ~0u) & (always.empty() ? ~0u : always[i]);
    }
    if (early) {
      for (const TokenId id : context.stop_ids) allowed[static_cast<std::size_t>(id) / 32] &= ~(1u << (id % 32));
    }
    context.banned_words.Apply(history.output, drafts, allowed, tail_);
    changes.allowed = allowed.data();
  }
  history.use.Fill(context.rules, drafts, change_memory_, changes);
  return changes;
}

backend::DrawRequest Executor::RequestOf(const StepJob::Draw& draw, const RowDraw& row, const History& history,
                                         std::span<const TokenId> drafts, bool masked) {
  return {.row = static_cast<std::int32_t>(row.logits_row),
          .params = ParamsOf(draw, row.position),
          .changes = ChangesOf(draw, row, history, drafts, masked),
          .alternatives = draw.context->sampling.top_logprobs};
}

TokenId Executor::Choose(const StepJob::Draw& draw, const RowDraw& row, const backend::DrawRequest& request) {
  if (row.forced) return *row.draft;
  const std::span<const float> own = LogitsOf(row);
  std::span<const float> logits = own;
  if (!request.changes.empty()) {
    backend::ChangeRow(own, request.changes, changed_);
    logits = changed_;
  }
  std::optional<TokenId> id;
  if (row.draft_logits.empty()) {
    id = backend::SampleRow(logits, request.params, chances_);
  } else {
    const backend::SampleParams params = ParamsOf(draw, row.position);
    const std::span<const backend::TokenChance> target = backend::SampleChances(logits, params, chances_);
    if (!target.empty()) {
      const auto drafted = backend::SampleChances(row.draft_logits, params, draft_chances_);
      id = AcceptOrRedraw(target, drafted, *row.draft, params).id;
    }
  }
  if (id) return *id;
  const bool offered = backend::SampleRow(own, {.temperature = 0}, chances_).has_value();
  return offered ? backend::kNothingLeft : backend::kBrokenRow;
}

// Why no token can be drawn: the model's logits are broken, or the request forbids each token that the model offers.
Error Executor::NothingLeft(TokenId why, Position position) {
  const std::string where = fmt::format("no token can follow position {}", position - 1);
  if (why == backend::kNothingLeft)
    return {ErrorCode::kInvalidArgument,
            where + ": the request's allowed and banned tokens, biases and grammar leave none",
            {}};
  return {ErrorCode::kInternal, where + ": every logit is minus infinity or NaN", {}};
}

Result<GeneratedToken> Executor::DrawOne(const StepJob::Draw& draw, RowDraw row, const History& history) {
  const bool constrained = mask_of_[row.at] >= 0;
  if (constrained) {
    const MaskJob& mask = mask_jobs_[static_cast<std::size_t>(mask_of_[row.at])];
    const auto wanted = static_cast<int>(row.row);
    if (wanted == mask.filled) RETURN_IF_ERROR(mask.status);
    CHECK(wanted < mask.filled) << "row " << wanted << " has no mask behind a draft that was drawn";
  }
  // The host has no logits of what the device drew.
  const auto choose = [&](bool masked) {
    change_memory_.Clear();
    if (!row.drawn) return Choose(draw, row, RequestOf(draw, row, history, {}, masked));
    return row.forced ? *row.draft : drawn_[*row.drawn].id;
  };
  TokenId id = choose(IsMasked(row));
  bool accepted = id >= 0 && (history.constraint == nullptr || history.constraint->Accept(id));
  if (id >= 0 && !accepted && IsOpen(row)) {
    // Not of the few tokens that may not come here. A draft would have its chance twice, so there is none now.
    RETURN_IF_ERROR(history.constraint->FillMask(MaskOf(row)));
    row.draft_logits = {};
    if (row.drawn) RETURN_IF_ERROR(DrawAgain(draw, row, history));
    id = choose(true);
    accepted = id >= 0 && history.constraint->Accept(id);
  }
  if (id < 0) return Err(NothingLeft(id, row.position));
  if (!accepted) {
    return Err(ErrorCode::kInternal,
               fmt::format("the constraint allowed token {} at position {} and then refused it", id, row.position));
  }
  const int top = draw.context->sampling.top_logprobs;
  if (top < 0) return GeneratedToken{.id = id, .logprob = 0, .alternatives = {}};
  return row.drawn ? Delivered(*row.drawn, top) : Scored(LogitsOf(row), id, top);
}

}  // namespace galley::engine
