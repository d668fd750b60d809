// SPDX-License-Identifier: Apache-2.0
// Engines over the committed checkpoints and requests with made-up prompts, for tests of what must not change tokens.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <utility>
#include <vector>

#include "galley/base/rng.h"
#include "galley/engine/engine.h"

namespace galley::engine {

inline std::filesystem::path ProbeDir() {
  return std::filesystem::path(GALLEY_SOURCE_DIR) / "tests/golden/v41_probe";
}
inline std::filesystem::path NanoDir() {
  return std::filesystem::path(GALLEY_SOURCE_DIR) / "models/nano";
}

inline EngineOptions TestOptions(const std::filesystem::path& model_dir) {
  EngineOptions options;
  options.model_dir = model_dir;
  options.max_seq_len = 2048;
  options.max_seqs = 4;
  options.step_rows_max = 256;
  return options;
}

inline std::unique_ptr<Engine> MakeEngine(const EngineOptions& options) {
  auto engine = Engine::Create(options);
  if (engine) return std::move(*engine);
  ADD_FAILURE() << engine.error().ToString();
  return nullptr;
}

// Ordinary tokens of both models; those before `shared` are the same for every id.
inline std::vector<TokenId> TestIds(std::uint32_t id, int length, int shared = 0) {
  std::vector<TokenId> ids;
  for (int i = 0; i < length; ++i) {
    const auto words = Philox4x32({static_cast<std::uint32_t>(i), i < shared ? 0 : id + 1, 3, 0}, {1, 9});
    ids.push_back(static_cast<TokenId>(3 + words[0] % 480));
  }
  return ids;
}

inline EngineRequest TestRequest(std::uint32_t id, std::vector<TokenId> prompt, int max_tokens) {
  EngineRequest request;
  request.prompt_ids = std::move(prompt);
  request.sampling.temperature = 0.8;
  request.sampling.seed = 100 + id;
  request.sampling.top_logprobs = 0;
  request.max_tokens = max_tokens;
  return request;
}

// What a branch drew: ids, and the logprobs whose bits tell what the ids alone would hide.
using Draws = std::vector<std::pair<TokenId, float>>;
using BranchDraws = std::vector<Draws>;

inline BranchDraws DrawsOf(const EngineResult& result) {
  BranchDraws draws;
  for (const BranchResult& branch : result.branches) {
    EXPECT_NE(branch.reason, sched::FinishReason::kError) << branch.error.ToString();
    draws.emplace_back();
    for (const GeneratedToken& token : branch.tokens) draws.back().emplace_back(token.id, token.logprob);
  }
  return draws;
}

// Runs one request to its end.
inline EngineResult RunOne(Engine& engine, EngineRequest request) {
  auto results = engine.Generate({std::move(request)});
  EXPECT_TRUE(results);
  return std::move(results->front());
}

// Runs them together; the branches of all, in order.
inline BranchDraws RunAll(Engine& engine, std::vector<EngineRequest> requests) {
  const auto results = engine.Generate(std::move(requests));
  EXPECT_TRUE(results);
  BranchDraws draws;
  for (const EngineResult& result : *results) {
    for (auto& branch : DrawsOf(result)) draws.push_back(branch);
  }
  return draws;
}

// Each request alone, without finding anything cached.
inline BranchDraws OneAtATime(const EngineOptions& options, const std::vector<EngineRequest>& requests) {
  const auto engine = MakeEngine(options);
  BranchDraws draws;
  for (EngineRequest request : requests) {
    request.use_cache = false;
    for (auto& branch : RunAll(*engine, {request})) draws.push_back(branch);
  }
  return draws;
}

}  // namespace galley::engine
