// SPDX-License-Identifier: Apache-2.0
// Requests on the thread of whoever submits them: checks, block keys, and the queue to the engine's thread.
#include <fmt/core.h>

#include <algorithm>

#include "galley/base/range.h"
#include "galley/base/rng.h"
#include "galley/engine/engine_impl.h"
#include "galley/engine/logit_rules.h"
#include "galley/engine/token_check.h"

namespace galley::engine {
namespace {

Status CheckCount(std::string_view field, std::size_t count, std::int64_t most) {
  return CheckRange(fmt::format("number of {}", field), static_cast<std::int64_t>(count), 0, most);
}

Status CheckRequest(const EngineRequest& request, const model::Config& config, std::int64_t max_seq_len) {
  RETURN_IF_ERROR(request.sampling.Validate());
  RETURN_IF_ERROR(CheckCount("logit_bias", request.rules.bias.size(), config.vocab_size));
  RETURN_IF_ERROR(CheckCount("allowed_ids", request.rules.allowed_ids.size(), config.vocab_size));
  RETURN_IF_ERROR(CheckCount("banned_ids", request.rules.banned_ids.size(), config.vocab_size));
  RETURN_IF_ERROR(ValidateRules(request.rules, config.vocab_size));
  const auto length = static_cast<std::int64_t>(request.prompt_ids.size());
  if (length == 0) return Err(ErrorCode::kInvalidArgument, "the prompt has no tokens", "prompt_ids");
  RETURN_IF_ERROR(CheckRange("length of prompt_ids", length, 1, max_seq_len));
  RETURN_IF_ERROR(CheckRange("max_tokens", request.max_tokens, 1, 1 << 30));
  RETURN_IF_ERROR(CheckRange("min_tokens", request.min_tokens, 0, request.max_tokens));
  RETURN_IF_ERROR(CheckRange("prompt_logprobs", request.prompt_logprobs, -1, kTopLogprobsMax));
  RETURN_IF_ERROR(CheckRange("n", request.n, 1, kBranchesMax));
  Position before = 0;
  for (const Position point : request.snapshot_points) {
    RETURN_IF_ERROR(CheckRange("snapshot_points", point, before + 1, length));
    before = point;
  }
  RETURN_IF_ERROR(CheckPromptIds(request.prompt_ids, config, "prompt_ids"));
  RETURN_IF_ERROR(CheckCount("stop_ids", request.stop_ids.size(), kStopIdsMax));
  RETURN_IF_ERROR(CheckVocabulary(request.stop_ids, config, "stop_ids"));
  if (!(request.deadline_s >= 0 && request.deadline_s < 1e9)) {
    return Err(ErrorCode::kInvalidArgument, fmt::format("{} is outside [0, 1e9)", request.deadline_s), "deadline_s");
  }
  return {};
}

std::vector<Position> SnapshotPoints(std::span<const TokenId> prompt, std::optional<TokenId> assistant) {
  const auto last = assistant ? std::find(prompt.rbegin(), prompt.rend(), *assistant) : prompt.rend();
  if (last == prompt.rend()) return {};
  return {static_cast<Position>(prompt.rend() - last)};
}

}  // namespace

std::uint64_t BranchSeed(std::uint64_t seed, int branch) {
  // Not negative as a signed number, so that a separate request can ask for it.
  return branch == 0 ? seed : MixBits(seed + MixBits(static_cast<std::uint64_t>(branch))) >> 1;
}

Result<std::shared_ptr<const DrawContext>> Engine::Impl::MakeContext(EngineRequest& request) {
  auto context = std::make_shared<DrawContext>();
  ASSIGN_OR_RETURN(context->stops, StopSet::Create(request.stop_strings, "stop_strings"));
  if (!request.banned_words.empty()) {
    std::call_once(sort_tokens, [this] {
      tokens_by_bytes = std::make_unique<const TokensByBytes>(loaded.tokenizer(), loaded.config().vocab_size);
    });
    ASSIGN_OR_RETURN(context->banned_words, BannedWords::Create(request.banned_words, *tokens_by_bytes));
  }
  context->stops_after = request.stop_strings_after;
  context->prompt = std::move(request.prompt_ids);
  context->sampling = request.sampling;
  context->rules = std::move(request.rules);
  SortBias(context->rules);
  context->allowed = AllowedMask(context->rules, loaded.config().vocab_size);
  context->prompt_logprobs = request.prompt_logprobs;
  context->report_prefill = request.report_prefill;
  context->min_tokens = request.min_tokens;
  context->tokens_most = static_cast<int>(std::min<std::int64_t>(
      request.max_tokens, loaded.max_seq_len() + 1 - static_cast<std::int64_t>(context->prompt.size())));
  context->stop_ids = std::move(request.stop_ids);
  context->constraint = std::move(request.constraint);
  return context;
}

kv::BlockKey Engine::Impl::RootKey(std::string_view salt) const {
  const std::string weights = digest.weights.ToHex(), tokenizer = digest.tokenizer.ToHex();
  return kv::RootKey({.model = "deepseek-v4.1",
                      .weights_digest = weights,
                      .tokenizer_digest = tokenizer,
                      .layout = "galley-1",
                      .dtype = "fp4-e4m3,fp4-ue8m0",
                      .numeric_class = kv::NumericClass(scheduler->options().replay),
                      .shard = "",
                      .salt = salt});
}

Status Engine::Impl::CheckOpen() const {
  if (closed) return Err(ErrorCode::kUnavailable, "the engine takes no more requests; it is shutting down");
  if (HasRoom()) return {};
  return Err(ErrorCode::kResourceExhausted,
             fmt::format("{} requests run or wait, as many as may; at most {} wait. Try again later", room_taken,
                         options.queue_max),
             "queue");
}

Result<RequestId> Engine::Submit(EngineRequest request, EventSink sink) {
  {
    // A flood is turned away before it costs the work of checks, keys and copies.
    std::lock_guard lock(impl_->mutex);
    RETURN_IF_ERROR(impl_->CheckOpen());
  }
  RETURN_IF_ERROR(CheckRequest(request, config(), impl_->loaded.max_seq_len()));
  const kv::BlockKey root = impl_->RootKey(request.cache_salt);
  Arrival arrival;
  arrival.request.keys = kv::MakeKeyChain(root, request.prompt_ids);
  arrival.request.prompt = request.prompt_ids;
  arrival.request.max_tokens = request.max_tokens;
  arrival.request.n = request.n;
  arrival.request.priority = request.priority;
  arrival.request.use_cache = request.use_cache;
  if (impl_->options.snapshots > 0) {
    arrival.request.snapshot_points = request.snapshot_points.empty()
                                          ? SnapshotPoints(request.prompt_ids, impl_->assistant_id)
                                          : std::move(request.snapshot_points);
    arrival.request.snapshot_at_end = request.output_is_kept;
  }
  arrival.request.prompt_logprobs = request.prompt_logprobs >= 0;
  if (request.deadline_s > 0) {
    arrival.request.deadline_us = Impl::Now() + static_cast<sched::TimeUs>(request.deadline_s * 1e6);
  }
  ASSIGN_OR_RETURN(arrival.context, impl_->MakeContext(request));
  arrival.sink = std::move(sink);
  RequestId id;
  {
    std::lock_guard lock(impl_->mutex);
    RETURN_IF_ERROR(impl_->CheckOpen());  // others may have come meanwhile
    id = RequestId(impl_->next_id++);
    ++impl_->open_requests;
    ++impl_->room_taken;
    arrival.request.id = id;
    impl_->arrivals.push_back(std::move(arrival));
  }
  impl_->wake.notify_all();
  return id;
}

void Engine::Cancel(RequestId request) {
  {
    std::lock_guard lock(impl_->mutex);
    // An id that is not given out yet must not end the request that gets it.
    if (request.value >= impl_->next_id) return;
    impl_->cancellations.push_back(request);
  }
  impl_->wake.notify_all();
}

}  // namespace galley::engine
