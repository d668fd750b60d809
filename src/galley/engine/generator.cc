// SPDX-License-Identifier: Apache-2.0
#include "galley/engine/generator.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>

#include "galley/backend/sampling.h"
#include "galley/engine/loaded_model.h"
#include "galley/engine/sequence.h"
#include "galley/engine/token_check.h"

namespace galley::engine {
namespace {

Status CheckRange(std::string_view field, double value, double low, double high, bool low_open = false) {
  if (value >= low && value <= high && !(low_open && value == low)) return {};  // NaN fails every comparison
  return Err(ErrorCode::kInvalidArgument,
             fmt::format("{} is outside {}{}, {}]", value, low_open ? "(" : "[", low, high), std::string(field));
}

class Stopwatch {
 public:
  [[nodiscard]] double Seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

class LocalGenerator final : public Generator {
 public:
  LocalGenerator(LoadedModel loaded, const GeneratorOptions& options) : loaded_(std::move(loaded)), options_(options) {}

  [[nodiscard]] const model::Config& config() const override { return loaded_.config(); }
  [[nodiscard]] const text::Tokenizer& tokenizer() const override { return loaded_.tokenizer(); }
  [[nodiscard]] Result<GenerateResult> Generate(const GenerateRequest& request) override;

 private:
  [[nodiscard]] Status Check(const GenerateRequest& request) const;
  // Logits of the last prompt row; nothing when the request was cancelled on the way.
  [[nodiscard]] Result<std::optional<std::vector<float>>> Prefill(const GenerateRequest& request,
                                                                  Sequence& sequence) const;
  [[nodiscard]] Result<GeneratedToken> Draw(const GenerateRequest& request, std::span<const float> logits,
                                            Position position) const;

  LoadedModel loaded_;
  GeneratorOptions options_;
};

Status LocalGenerator::Check(const GenerateRequest& request) const {
  RETURN_IF_ERROR(request.sampling.Validate());
  RETURN_IF_ERROR(CheckRange("max-tokens", request.max_tokens, 1, 1 << 30));
  if (request.prompt_ids.empty())
    return Err(ErrorCode::kInvalidArgument, "the prompt has no tokens; give some text", "prompt");
  RETURN_IF_ERROR(CheckPromptIds(request.prompt_ids, config(), "prompt"));
  const auto length = static_cast<std::int64_t>(request.prompt_ids.size());
  if (length > loaded_.max_seq_len()) {
    return Err(ErrorCode::kInvalidArgument,
               fmt::format("{} tokens do not fit the context of {}; shorten the prompt or raise --max-seq-len", length,
                           loaded_.max_seq_len()),
               "prompt");
  }
  return {};
}

Result<std::optional<std::vector<float>>> LocalGenerator::Prefill(const GenerateRequest& request,
                                                                  Sequence& sequence) const {
  const std::span<const TokenId> prompt = request.prompt_ids;
  const auto chunk = static_cast<std::size_t>(options_.prefill_chunk);
  for (std::size_t done = 0; done < prompt.size();) {
    if (request.cancelled && request.cancelled()) return std::optional<std::vector<float>>();
    const std::size_t rows = std::min(chunk, prompt.size() - done);
    const bool last = done + rows == prompt.size();
    ASSIGN_OR_RETURN(std::vector<float> logits, sequence.Append(prompt.subspan(done, rows), last ? 1 : 0));
    done += rows;
    if (request.on_prefill)
      request.on_prefill(static_cast<std::int64_t>(done), static_cast<std::int64_t>(prompt.size()));
    if (last) return std::optional(std::move(logits));
  }
  return std::optional<std::vector<float>>();
}

Result<GeneratedToken> LocalGenerator::Draw(const GenerateRequest& request, std::span<const float> logits,
                                            Position position) const {
  const SamplingParams& s = request.sampling;
  const std::optional<TokenId> id = backend::SampleRow(logits, {.temperature = static_cast<float>(s.temperature),
                                                                .top_k = s.top_k,
                                                                .top_p = static_cast<float>(s.top_p),
                                                                .min_p = static_cast<float>(s.min_p),
                                                                .seed = s.seed,
                                                                .position = position});
  if (!id) {
    return Err(
        ErrorCode::kCorrupt,
        fmt::format("the model gave no usable logit at position {}: its weights hold NaN or infinity", position));
  }
  GeneratedToken token{.id = *id, .logprob = 0, .alternatives = {}};
  if (s.top_logprobs < 0) return token;
  token.logprob = backend::LogProbability(logits, *id);
  for (const backend::RankedToken& ranked : backend::TopTokens(logits, s.top_logprobs)) {
    token.alternatives.push_back({.id = ranked.id, .logprob = ranked.logprob});
  }
  return token;
}

Result<GenerateResult> LocalGenerator::Generate(const GenerateRequest& request) {
  RETURN_IF_ERROR(Check(request));
  const auto prompt_length = static_cast<Position>(request.prompt_ids.size());
  const Position keep = options_.decoder_keep;
  Sequence sequence(loaded_, keep > 0 ? std::max<Position>(0, prompt_length - keep) : 0);
  GenerateResult result;

  const Stopwatch prefill;
  ASSIGN_OR_RETURN(std::optional<std::vector<float>> logits, Prefill(request, sequence));
  result.timings.prefill_s = prefill.Seconds();
  if (!logits) {
    result.finish = FinishReason::kCancelled;
    return result;
  }
  const Stopwatch decode;
  // The last token drawn is never run, so one more than the room in the context can be drawn.
  const std::int64_t room = loaded_.max_seq_len() - prompt_length + 1;
  const std::int64_t limit = std::min<std::int64_t>(request.max_tokens, room);
  while (true) {
    ASSIGN_OR_RETURN(GeneratedToken token, Draw(request, *logits, sequence.length()));
    const bool stop_id =
        std::find(request.stop_ids.begin(), request.stop_ids.end(), token.id) != request.stop_ids.end();
    result.tokens.push_back(std::move(token));
    const bool go_on = !request.on_token || request.on_token(result.tokens.back());
    if (stop_id || !go_on) {
      result.finish = FinishReason::kStop;
      break;
    }
    if (static_cast<std::int64_t>(result.tokens.size()) >= limit) break;
    if (request.cancelled && request.cancelled()) {
      result.finish = FinishReason::kCancelled;
      break;
    }
    ASSIGN_OR_RETURN(logits, sequence.Append({&result.tokens.back().id, 1}, 1));
  }
  result.timings.decode_s = decode.Seconds();
  return result;
}

}  // namespace

Status SamplingParams::Validate() const {
  RETURN_IF_ERROR(CheckRange("temperature", temperature, 0, 100));
  RETURN_IF_ERROR(CheckRange("top-p", top_p, 0, 1, /*low_open=*/true));
  RETURN_IF_ERROR(CheckRange("min-p", min_p, 0, 1));
  RETURN_IF_ERROR(CheckRange("top-k", top_k, 0, 1 << 30));
  return CheckRange("logprobs", top_logprobs, -1, kTopLogprobsMax);
}

Result<std::unique_ptr<Generator>> Generator::Create(const GeneratorOptions& options) {
  RETURN_IF_ERROR(CheckRange("decoder-keep", options.decoder_keep, 0, 1 << 30));
  ASSIGN_OR_RETURN(LoadedModel loaded, LoadedModel::Load({.model_dir = options.model_dir,
                                                          .backend = options.backend,
                                                          .isa = options.isa,
                                                          .expert_memory = options.expert_memory,
                                                          .threads = options.threads,
                                                          .rows_max = options.prefill_chunk,
                                                          .logit_rows_max = 1,
                                                          .sequences_max = 1,
                                                          .blocks = 0,
                                                          .drafts = false,
                                                          .window_places = 0,
                                                          .max_seq_len = options.max_seq_len,
                                                          .longest = 0}));
  return std::unique_ptr<Generator>(std::make_unique<LocalGenerator>(std::move(loaded), options));
}

}  // namespace galley::engine
