// SPDX-License-Identifier: Apache-2.0
// A preempted sequence whose prefix was evicted, and computed again by others from another start, goes on with the
// tokens and logprobs of an undisturbed run, also after a bounded replay.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "galley/engine/draws_for_test.h"

namespace galley::engine {
namespace {

// What each of the requests drew, and how the second one began.
struct Outcome {
  Draws draws;
  StartedEvent start;
  std::int64_t preemptions = 0;
};

// A prefix of three blocks is computed by one request and found by the next, which decodes when a third, more important
// one needs more blocks than are left: the second is preempted, and when the third fills its seventh block the last
// block of the prefix is evicted. A fourth request computes it again, from row 128 on, before the second resumes.
Outcome RunWithin(const std::filesystem::path& model, kv::ReplayMode replay, int decoder_keep, int blocks) {
  EngineOptions options = OptionsFor(model);
  options.replay = replay;
  options.decoder_keep = decoder_keep;
  options.blocks = blocks;
  const auto engine = Make(options);
  RunWhole(*engine, Logged(1, 390, 384, 1));
  Outcome outcome;
  std::atomic<int> drawn = 0;
  std::atomic<bool> ended = false;
  const auto id = engine->Submit(Logged(2, 400, 384, 100), [&](const EngineEvent& event) {
    if (const auto* started = std::get_if<StartedEvent>(&event)) outcome.start = *started;
    if (const auto* token = std::get_if<TokenEvent>(&event)) {
      outcome.draws.emplace_back(token->token.id, token->token.logprob);
      ++drawn;
    }
    if (std::holds_alternative<FinishedEvent>(event)) ended = true;
  });
  EXPECT_TRUE(id);
  while (drawn < 3) std::this_thread::yield();
  EngineRequest important = Logged(3, 630, 0, 150);
  important.priority = 3;
  EngineRequest other = Logged(4, 395, 384, 1);
  other.priority = 2;
  (void)engine->Generate({important, other});
  engine->Drain();
  EXPECT_TRUE(ended);
  outcome.preemptions = engine->stats().scheduler.preemptions;
  return outcome;
}

void ExpectResumeWithoutATrace(const std::filesystem::path& model, kv::ReplayMode replay, int decoder_keep) {
  const Outcome calm = RunWithin(model, replay, decoder_keep, 64), tight = RunWithin(model, replay, decoder_keep, 9);
  EXPECT_EQ(calm.preemptions, 0);
  EXPECT_GT(tight.preemptions, 0) << "blocks never ran short, so this test shows nothing";
  EXPECT_EQ(tight.start.cached_tokens, 384);
  EXPECT_EQ(calm.start.cached_tokens, 384);
  EXPECT_EQ(calm.draws.size(), 100u);
  EXPECT_EQ(tight.draws, calm.draws);
}

TEST(Resume, BoundedOnTheProbe) {
  ExpectResumeWithoutATrace(kProbe, kv::ReplayMode::kBounded, 0);
}
TEST(Resume, BoundedAndTruncatedOnTheProbe) {
  ExpectResumeWithoutATrace(kProbe, kv::ReplayMode::kBounded, 140);
}
TEST(Resume, ExactAndTruncatedOnTheProbe) {
  ExpectResumeWithoutATrace(kProbe, kv::ReplayMode::kExact, 140);
}
TEST(Resume, BoundedOnNano) {
  ExpectResumeWithoutATrace(kNano, kv::ReplayMode::kBounded, 0);
}

}  // namespace
}  // namespace galley::engine
