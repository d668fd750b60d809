// SPDX-License-Identifier: Apache-2.0
// The determinism oracle: what requests draw alone, one step at a time, without cache or drafts, is what they draw in
// any engine over the same model, however it batches, cuts, shares, preempts, plans ahead or speculates.
#pragma once

#include <algorithm>
#include <random>
#include <string>

#include "galley/engine/draws_for_test.h"
#include "galley/model/model_dir.h"

namespace galley::engine {

struct OracleCase {
  std::filesystem::path model;
  std::string backend = "ref";
  std::uint32_t seed = 0;
  int requests = 6;
  int longest = 300;  // prompt
  int output = 10;
  int output_least = 1;
  int variants = 4;
  bool short_of_blocks = false;  // room for hardly more than the longest request, and others beside it
};

class Oracle {
 public:
  explicit Oracle(const OracleCase& in) : case_(in), random_(in.seed) {}

  void Run() {
    const int keep = Between(0, 1) * 140;
    const std::vector<EngineRequest> requests = MakeRequests();
    const std::vector<std::vector<Draws>> expected = Expected(requests, keep);
    const std::vector<EngineRequest> next_turns = MakeNextTurns(requests, expected);
    const std::vector<std::vector<Draws>> expected_next = Expected(next_turns, keep);
    for (int variant = 0; variant < case_.variants; ++variant) {
      const EngineOptions options = MakeOptions(next_turns, keep);
      SCOPED_TRACE(Describe(options));
      const auto engine = Make(options);
      // Twice, the second time over whatever the first left in the caches; then what follows the answers.
      Compare(*engine, requests, expected, "first round");
      if (!testing::Test::HasFatalFailure()) Compare(*engine, requests, expected, "second round");
      if (!testing::Test::HasFatalFailure()) Compare(*engine, next_turns, expected_next, "next turn");
      if (testing::Test::HasFatalFailure()) return;
      preemptions_ += engine->stats().scheduler.preemptions;
      hits_ += engine->stats().scheduler.cached_tokens;
      restores_ += engine->stats().scheduler.snapshot_restores;
      accepted_ += engine->stats().speculation.accepted;
    }
  }

  [[nodiscard]] std::int64_t preemptions() const { return preemptions_; }
  [[nodiscard]] std::int64_t hits() const { return hits_; }
  [[nodiscard]] std::int64_t restores() const { return restores_; }
  [[nodiscard]] std::int64_t accepted() const { return accepted_; }

 private:
  int Between(int low, int high) { return low + static_cast<int>(random_() % static_cast<unsigned>(high - low + 1)); }

  void Compare(Engine& engine, const std::vector<EngineRequest>& requests,
               const std::vector<std::vector<Draws>>& expected, const char* when) {
    std::vector<std::size_t> order(requests.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), random_);
    std::vector<EngineRequest> shuffled;
    for (const std::size_t i : order) shuffled.push_back(requests[i]);
    const auto results = engine.Generate(shuffled);
    ASSERT_TRUE(results);
    for (std::size_t k = 0; k < order.size(); ++k) {
      for (std::size_t j = 0; j < expected[order[k]].size(); ++j) {
        ASSERT_EQ(DrawsOf((*results)[k].branches[j]), expected[order[k]][j])
            << "request " << order[k] << " branch " << j << ", " << when << ", started " << (*results)[k].start.kind;
      }
    }
  }

  // What a client sends after the answer's first branch: all of it, and more. Random models draw image tokens, which
  // no prompt may have.
  std::vector<EngineRequest> MakeNextTurns(const std::vector<EngineRequest>& requests,
                                           const std::vector<std::vector<Draws>>& answers) {
    const TokenId image = model::LoadConfig(case_.model)->config.image_token_id;
    std::vector<EngineRequest> turns;
    for (std::size_t i = 0; i < requests.size(); ++i) {
      EngineRequest turn = requests[i];
      for (const auto& [id, logprob] : answers[i].front()) turn.prompt_ids.push_back(id == image ? 3 : id);
      const auto more = Logged(static_cast<std::uint32_t>(Between(0, 999)), Between(1, 20), 0, 1).prompt_ids;
      turn.prompt_ids.insert(turn.prompt_ids.end(), more.begin(), more.end());
      turn.snapshot_points.clear();
      turns.push_back(std::move(turn));
    }
    return turns;
  }

  std::vector<EngineRequest> MakeRequests() {
    std::vector<EngineRequest> requests;
    for (int i = 0; i < case_.requests; ++i) {
      const int length = Between(1, case_.longest);
      const auto id = static_cast<std::uint32_t>(Between(0, 999));
      const int shared = Between(0, 1) * length * 3 / 4, output = Between(case_.output_least, case_.output);
      EngineRequest request = Logged(id, length, shared, output);
      request.sampling.temperature = Between(0, 3) * 0.4;
      if (Between(0, 2) == 0) request.sampling.top_p = 0.8;
      if (Between(0, 2) == 0) request.rules.frequency_penalty = 0.7;
      request.n = Between(0, 3) == 0 ? 2 : 1;
      if (case_.short_of_blocks) request.min_tokens = output;
      request.priority = Between(0, 2);
      if (length > 2) request.snapshot_points = {length - 1};
      request.output_is_kept = Between(0, 1) == 0;
      if (!case_.short_of_blocks && Between(0, 2) == 0) request.stop_strings = {"e", "o", " "};
      requests.push_back(std::move(request));
    }
    return requests;
  }

  EngineOptions Plain(int keep) const {
    EngineOptions options = OptionsFor(case_.model);
    options.device.backend = case_.backend;
    options.decoder_keep = keep;
    return options;
  }

  // Branches as separate requests with seeds of their own, each alone.
  std::vector<std::vector<Draws>> Expected(const std::vector<EngineRequest>& requests, int keep) const {
    EngineOptions options = Plain(keep);
    options.synchronous = true;
    options.max_seqs = 1;
    options.step_rows_max = 512;
    std::vector<std::vector<Draws>> expected;
    for (const EngineRequest& request : requests) {
      std::vector<EngineRequest> separate;
      for (int j = 0; j < request.n; ++j) {
        separate.push_back(request);
        separate.back().n = 1;
        separate.back().sampling.seed = BranchSeed(request.sampling.seed, j);
      }
      expected.push_back(DrawAlone(options, separate));
    }
    return expected;
  }

  EngineOptions MakeOptions(const std::vector<EngineRequest>& requests, int keep) {
    constexpr SpeculationMode kModes[] = {SpeculationMode::kOff, SpeculationMode::kDspark, SpeculationMode::kNgram,
                                          SpeculationMode::kAuto};
    std::size_t longest = 0;
    for (const EngineRequest& request : requests) {
      longest = std::max(longest, request.prompt_ids.size() + static_cast<std::size_t>(request.max_tokens));
    }
    EngineOptions options = Plain(keep);
    options.replay = kv::ReplayMode::kExact;
    options.synchronous = Between(0, 1) == 0;
    options.max_seqs = Between(1, 6);
    options.step_rows_max = Between(140, 400);
    options.blocks = static_cast<int>((longest + 127) / 128) + Between(0, 1);
    options.snapshots = Between(0, 2);
    options.speculation.mode = kModes[Between(0, 3)];
    if (case_.short_of_blocks) {
      // Two get in with a block each and one to grow into, and cannot both grow to their ends.
      options.max_seqs = std::max(options.max_seqs, 2);
      options.blocks = static_cast<int>((longest + 127) / 128) + 1;
    }
    options.device.threads = Between(1, 2);
    return options;
  }

  std::string Describe(const EngineOptions& options) const {
    return testing::PrintToString(std::vector<int>{
               static_cast<int>(case_.seed), options.decoder_keep, options.synchronous, options.max_seqs,
               options.step_rows_max, options.blocks, options.snapshots, static_cast<int>(options.speculation.mode)}) +
           " = seed, decoder_keep, synchronous, max_seqs, step_rows_max, blocks, snapshots, speculation; backend " +
           case_.backend;
  }

  OracleCase case_;
  std::mt19937 random_;
  std::int64_t preemptions_ = 0, hits_ = 0, restores_ = 0, accepted_ = 0;
};

}  // namespace galley::engine
