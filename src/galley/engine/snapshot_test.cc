// SPDX-License-Identifier: Apache-2.0
// Saved slots: turns that restore one give the tokens of a cold run, with the decoder truncated and without.
#include <gtest/gtest.h>

#include "galley/engine/chat_for_test.h"

namespace galley::engine {
namespace {

EngineOptions Cold(int decoder_keep) {
  EngineOptions options = OptionsFor(kProbe);
  options.decoder_keep = decoder_keep;
  options.max_seqs = 1;
  return options;
}

EngineOptions Warm(int decoder_keep) {
  EngineOptions options = Cold(decoder_keep);
  options.snapshots = 2;
  return options;
}

// 150 rows with keep = 128: the second turn restarts 128 rows before its end, 90 rows before the snapshot.
TEST(Snapshots, ATruncatedTurnRestartsBeforeTheSnapshot) {
  RunChat(Warm(128), Cold(128), {.turns = 2, .first_tokens = 150, .question_tokens = 20, .answer_tokens = 4});
}

TEST(Snapshots, TheEndOfAKeptOutputIsRestored) {
  RunChat(Warm(0), Cold(0),
          {.turns = 2, .first_tokens = 125, .question_tokens = 9, .answer_tokens = 6, .keeps_reasoning = true});
}

TEST(Snapshots, PointsMustAscendWithinThePrompt) {
  const auto engine = Make(Warm(0));
  EngineRequest request = Request(1, 10);
  for (const std::vector<Position>& points : {std::vector<Position>{0}, {11}, {5, 5}, {6, 5}}) {
    request.snapshot_points = points;
    const auto id = engine->Submit(request, [](const EngineEvent&) {});
    ASSERT_FALSE(id);
    EXPECT_EQ(id.error().where, "snapshot_points");
  }
}

}  // namespace
}  // namespace galley::engine
