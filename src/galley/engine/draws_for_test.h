// SPDX-License-Identifier: Apache-2.0
// Engines and requests for tests of what must not change tokens. Results are compared in ids and logprobs, whose bits
// tell what ids alone would hide.
#pragma once

#include <utility>
#include <vector>

#include "galley/engine/engine_for_test.h"

namespace galley::engine {

inline const std::filesystem::path kNano = std::filesystem::path(GALLEY_SOURCE_DIR) / "models/nano";

inline EngineOptions OptionsFor(const std::filesystem::path& model_dir) {
  EngineOptions options = Options();
  options.model_dir = model_dir;
  options.max_seq_len = 2048;
  return options;
}

// As Request; logprobs are reported. Its tokens are ordinary ones of both models.
inline EngineRequest Logged(std::uint32_t id, int length, int shared = 0, int max_tokens = 8) {
  EngineRequest request = Request(id, length, shared, max_tokens);
  request.sampling.top_logprobs = 0;
  return request;
}

using Draws = std::vector<std::pair<TokenId, float>>;

inline Draws DrawsOf(const BranchResult& branch) {
  EXPECT_NE(branch.reason, sched::FinishReason::kError) << branch.error.ToString();
  Draws draws;
  for (const GeneratedToken& token : branch.tokens) draws.emplace_back(token.id, token.logprob);
  return draws;
}

inline EngineResult RunWhole(Engine& engine, EngineRequest request) {
  return std::move(Value(engine.Generate({std::move(request)})).front());
}

// Runs all together; the branches of all, in order.
inline std::vector<Draws> DrawAllOf(Engine& engine, std::vector<EngineRequest> requests) {
  const std::vector<EngineResult> results = Value(engine.Generate(std::move(requests)));
  std::vector<Draws> draws;
  for (const EngineResult& result : results) {
    for (const BranchResult& branch : result.branches) draws.push_back(DrawsOf(branch));
  }
  return draws;
}

// Each request alone, without finding anything cached.
inline std::vector<Draws> DrawAlone(const EngineOptions& options, const std::vector<EngineRequest>& requests) {
  const auto engine = Make(options);
  std::vector<Draws> draws;
  for (EngineRequest request : requests) {
    request.use_cache = false;
    for (Draws& branch : DrawAllOf(*engine, {request})) draws.push_back(std::move(branch));
  }
  return draws;
}

}  // namespace galley::engine
