// SPDX-License-Identifier: Apache-2.0
// What the engine's tests share: the probe checkpoint, requests with seeded prompts, results as ids.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "galley/base/rng.h"
#include "galley/engine/engine.h"
#include "galley/text/tokenizer.h"

namespace galley::engine {

inline const std::filesystem::path kProbe = std::filesystem::path(GALLEY_SOURCE_DIR) / "tests/golden/v41_probe";

inline EngineOptions Options() {
  EngineOptions options;
  options.model_dir = kProbe;
  options.device.backend = "cpu";  // faster than the reference
  options.max_seq_len = 1024;
  options.max_seqs = 4;
  options.step_rows_max = 256;
  options.speculation.mode =
      SpeculationMode::kOff;  // drafts cost more than they save here; they have tests of their own
  return options;
}

// The value that a test cannot go on without. An error ends the test, and only it: gtest reports what is thrown.
template <typename T>
T Value(Result<T> result) {
  if (!result) throw std::runtime_error(result.error().ToString());
  return std::move(*result);
}

inline std::unique_ptr<Engine> Make(const EngineOptions& options) {
  return Value(Engine::Create(options));
}

// A prompt whose first `shared` tokens are the same for every id.
inline EngineRequest Request(std::uint32_t id, int length, int shared = 0, int max_tokens = 8) {
  EngineRequest request;
  for (int i = 0; i < length; ++i) {
    const auto words = Philox4x32({static_cast<std::uint32_t>(i), i < shared ? 0 : id + 1, 3, 0}, {1, 9});
    request.prompt_ids.push_back(static_cast<TokenId>(3 + words[0] % 480));
  }
  request.sampling.temperature = 0.8;
  request.sampling.seed = 100 + id;
  request.max_tokens = max_tokens;
  return request;
}

// Tokens of printable ASCII, so that an output is readable text.
inline std::vector<TokenId> PrintableIds(const text::Tokenizer& tokenizer) {
  std::vector<TokenId> ids;
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    if (!tokenizer.has_token(id) || tokenizer.is_added(id)) continue;
    bool printable = true;
    const std::string_view bytes = *tokenizer.TokenBytes(id);
    for (const char c : bytes) printable = printable && c >= ' ' && c <= '~';
    if (printable) ids.push_back(id);
  }
  return ids;
}

inline std::vector<TokenId> IdsOf(const BranchResult& branch) {
  std::vector<TokenId> ids;
  for (const GeneratedToken& token : branch.tokens) ids.push_back(token.id);
  return ids;
}

using Ids = std::vector<std::vector<TokenId>>;

inline Ids BranchIds(const EngineResult& result) {
  Ids ids;
  for (const BranchResult& branch : result.branches) {
    EXPECT_NE(branch.reason, sched::FinishReason::kError) << branch.error.ToString();
    ids.push_back(IdsOf(branch));
  }
  return ids;
}

inline Ids RunAll(Engine& engine, std::vector<EngineRequest> requests) {
  Ids ids;
  const std::vector<EngineResult> results = Value(engine.Generate(std::move(requests)));
  for (const EngineResult& result : results) {
    for (auto& branch : BranchIds(result)) ids.push_back(branch);
  }
  return ids;
}

// The only branch of a request that runs alone.
inline BranchResult RunOne(Engine& engine, EngineRequest request) {
  return std::move(Value(engine.Generate({std::move(request)}))[0].branches[0]);
}

}  // namespace galley::engine
