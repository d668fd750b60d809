// SPDX-License-Identifier: Apache-2.0
// Offline generation, one sequence at a time: what `galley generate` and `galley chat` run on. Owned by one thread; the
// callbacks run on that thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "galley/base/error.h"
#include "galley/base/strong_id.h"
#include "galley/engine/constraint.h"
#include "galley/engine/device_options.h"
#include "galley/engine/speculation.h"
#include "galley/io/weight_file.h"
#include "galley/model/config.h"

namespace galley::text {
class Tokenizer;
}

namespace galley::engine {

inline constexpr int kTopLogprobsMax = 20;

struct SamplingParams {
  double temperature = 1.0;  // 0: the most likely token
  double top_p = 1.0;        // (0, 1]
  int top_k = 0;             // 0: off
  double min_p = 0.0;        // [0, 1]
  std::uint64_t seed = 0;
  int top_logprobs = -1;  // -1: none; 0: of the sampled token only; up to 20 alternatives

  // kInvalidArgument naming the field, the value and the limit.
  [[nodiscard]] Status Validate() const;
};

struct TokenLogprob {
  TokenId id;
  float logprob;  // natural logarithm, of the model's distribution before temperature and filters
};

struct GeneratedToken {
  TokenId id;
  float logprob = 0;                       // meaningful when SamplingParams::top_logprobs >= 0
  std::vector<TokenLogprob> alternatives;  // most likely first
  bool from_draft = false;                 // an accepted draft; of an engine that speculates
};

enum class FinishReason { kStop, kLength, kCancelled };

struct GenerateRequest {
  std::vector<TokenId> prompt_ids;
  SamplingParams sampling;
  int max_tokens = 256;
  std::vector<TokenId> stop_ids;  // the end-of-sentence id, usually; a stop id is reported but ends the sequence
  std::shared_ptr<const TokenConstraint> constraint = {};  // in its start state; see constraint.h
  // Called after each prefill chunk with rows done and rows in all.
  std::function<void(std::int64_t done, std::int64_t total)> on_prefill;
  // Called for each token, the stop id included; returning false ends generation with kStop (a stop string was found).
  std::function<bool(const GeneratedToken&)> on_token;
  // Polled between steps; true ends generation with kCancelled.
  std::function<bool()> cancelled;
};

struct Timings {
  double prefill_s = 0;
  double decode_s = 0;
};

struct GenerateResult {
  std::vector<GeneratedToken> tokens;
  FinishReason finish = FinishReason::kLength;
  Timings timings;
};

struct GeneratorOptions {
  std::filesystem::path model_dir;
  DeviceOptions device = {};
  int prefill_chunk = 256;              // rows of a prompt that one step handles
  int decoder_keep = 0;                 // decoder truncation: prompt rows that run layers of the decoder; 0: all rows
  std::int64_t max_seq_len = 0;         // 0: what the config states
  SpeculationOptions speculation = {};  // drafts change how fast tokens come, not which
  io::Progress on_load = {};            // EngineOptions::on_load
};

class Generator {
 public:
  [[nodiscard]] static Result<std::unique_ptr<Generator>> Create(const GeneratorOptions& options);
  virtual ~Generator() = default;

  [[nodiscard]] virtual const model::Config& config() const = 0;
  [[nodiscard]] virtual const text::Tokenizer& tokenizer() const = 0;
  // Errors: kInvalidArgument (empty prompt, ids outside the vocabulary, bad sampling parameters, prompt longer than
  // max_seq_len). max_tokens is cut to the room that is left.
  [[nodiscard]] virtual Result<GenerateResult> Generate(const GenerateRequest& request) = 0;
};

}  // namespace galley::engine
