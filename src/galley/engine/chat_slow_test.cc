// SPDX-License-Identifier: Apache-2.0
// Ten turns of a thinking chat on nano: every turn restores the snapshot of the one before, tokens are those of cold
// runs.
#include <gtest/gtest.h>

#include "galley/engine/chat_for_test.h"

namespace galley::engine {
namespace {

void RunTenTurns(int decoder_keep, kv::ReplayMode replay, bool keeps_reasoning) {
  EngineOptions cold = OptionsFor(kNano);
  cold.decoder_keep = decoder_keep;
  cold.replay = replay;
  cold.max_seqs = 1;
  EngineOptions warm = cold;
  warm.snapshots = 3;
  RunChat(warm, cold,
          {.turns = 10,
           .first_tokens = 140,
           .question_tokens = 11,
           .answer_tokens = 10,
           .keeps_reasoning = keeps_reasoning});
}

TEST(Chat, TenTruncatedTurnsRestoreAndEqualColdRuns) {
  RunTenTurns(140, kv::ReplayMode::kBounded, false);
}

TEST(Chat, TenWholeTurnsRestoreAndEqualColdRuns) {
  RunTenTurns(0, kv::ReplayMode::kExact, false);
}

TEST(Chat, TenTurnsThatKeepReasoningRestoreAndEqualColdRuns) {
  RunTenTurns(140, kv::ReplayMode::kBounded, true);
}

}  // namespace
}  // namespace galley::engine
