// SPDX-License-Identifier: Apache-2.0
#include "galley/kv/replay.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace galley::kv {
namespace {

constexpr ReplaySpec kFlash{};  // window 128, 20 of 40 layers, keep 140, bounded

ReplaySpec Exact() {
  ReplaySpec spec = kFlash;
  spec.mode = ReplayMode::kExact;
  return spec;
}

PrefillPass OnlyPass(const PrefillPlan& plan) {
  EXPECT_EQ(plan.passes.size(), 1u);
  return plan.passes.front();
}

TEST(Replay, AColdPromptRunsEveryRowAndTruncatesTheDecoder) {
  const PrefillPlan plan = PlanStart(kFlash, {.length = 1000});
  const PrefillPass pass = OnlyPass(plan);
  EXPECT_EQ(plan.kind, StartKind::kCold);
  EXPECT_EQ(pass.begin, 0);
  EXPECT_EQ(pass.write_from, 0);
  EXPECT_EQ(pass.tail_from, 860);  // 1000 - 140
  EXPECT_EQ(pass.decoder_floor, 860);
  EXPECT_EQ(plan.encoder_rows(), 1000);
  EXPECT_EQ(plan.decoder_rows(), 140);
  EXPECT_EQ(plan.replayed_rows(), 0);
  EXPECT_EQ(PlanStart(kFlash, {.length = 50}).decoder_rows(), 50);  // shorter than the tail
}

TEST(Replay, BoundedStartsOneWindowBeforeTheHitOrAtTheTail) {
  // The hit's end is far before the tail: 896 - 128 = 768 < 2000 - 140.
  PrefillPass pass = OnlyPass(PlanStart(kFlash, {.length = 2000, .hit = 896}));
  EXPECT_EQ(pass.begin, 768);
  EXPECT_EQ(pass.encoder_floor, 768);
  EXPECT_EQ(pass.write_from, 896);
  EXPECT_EQ(pass.tail_from, 1860);
  // The tail begins before the window: 1029 - 140 = 889 < 1024 - 128 = 896.
  pass = OnlyPass(PlanStart(kFlash, {.length = 1029, .hit = 1024}));
  EXPECT_EQ(pass.begin, 889);
  EXPECT_EQ(pass.tail_from, 889);
  EXPECT_EQ(pass.write_from, 1024);
  // Everything is cached: the tail is computed again and writes nothing.
  const PrefillPlan whole = PlanStart(kFlash, {.length = 1024, .hit = 1024});
  EXPECT_EQ(whole.encoder_rows(), 140);
  EXPECT_EQ(whole.replayed_rows(), 140);
  // A hit of one window saves no row, but its block is shared.
  const PrefillPlan one = PlanStart(kFlash, {.length = 1000, .hit = 128});
  EXPECT_EQ(one.kind, StartKind::kCold);
  EXPECT_EQ(OnlyPass(one).begin, 0);
  EXPECT_EQ(OnlyPass(one).write_from, 128);
}

TEST(Replay, ExactStartsEarlyEnoughForEveryEncoderLayer) {
  EXPECT_EQ(Exact().exact_warm_rows(), 2540);  // 127 * 20
  PrefillPass pass = OnlyPass(PlanStart(Exact(), {.length = 8000, .hit = 4096}));
  EXPECT_EQ(pass.begin, 4096 - 2540);
  EXPECT_EQ(pass.write_from, 4096);
  pass = OnlyPass(PlanStart(Exact(), {.length = 8000, .hit = 7936}));
  EXPECT_EQ(pass.begin, 8000 - 140 - 2540);  // the tail, 7860, begins before the hit's end
  EXPECT_EQ(OnlyPass(PlanStart(Exact(), {.length = 3000, .hit = 2048})).begin, 0);
  EXPECT_EQ(PlanStart(Exact(), {.length = 3000, .hit = 2048}).kind, StartKind::kCold);
}

TEST(Replay, WithoutTruncationEveryRowIsATailRow) {
  ReplaySpec spec = kFlash;
  spec.truncation = Truncation::kOff;
  PrefillPass pass = OnlyPass(PlanStart(spec, {.length = 2000, .hit = 1024}));
  EXPECT_EQ(pass.begin, 896);  // 1024 - 128
  EXPECT_EQ(pass.tail_from, 896);
  EXPECT_EQ(pass.decoder_floor, 896);
  spec.mode = ReplayMode::kExact;
  EXPECT_EQ(spec.exact_warm_rows(), 5080);  // 127 * 40: the decoder's windows are part of the state
  EXPECT_EQ(OnlyPass(PlanStart(spec, {.length = 9000, .hit = 8192})).begin, 8192 - 5080);
}

TEST(Replay, PromptLogprobsRunEveryRowThroughTheDecoder) {
  const PrefillPlan plan = PlanStart(kFlash, {.length = 1000, .all_rows = true});
  EXPECT_EQ(plan.decoder_rows(), 1000);
  EXPECT_EQ(OnlyPass(plan).decoder_floor, 0);
}

// An own notion of what is exact: simulate, layer by layer, which rows come out as in a cold run.
struct Reach {
  Position encoder;  // first row whose encoder output is right
  Position decoder;  // first row whose decoder output is right
};
Reach Simulate(const ReplaySpec& spec, const PrefillPass& pass, Position tail_start) {
  const auto grow = [&](Position good, Position floor, int layers, Position true_floor) {
    // A row of the next layer is right when every window row that the cold run would see is there and right.
    for (int layer = 0; layer < layers; ++layer) {
      if (floor > true_floor) good = std::max(good, floor) + spec.window - 1;
    }
    return good;
  };
  const int split = spec.truncates() ? spec.encoder_layers : spec.layers;
  Reach reach{.encoder = grow(pass.begin, pass.encoder_floor, split, 0), .decoder = 0};
  const Position true_floor = spec.truncates() ? tail_start : 0;
  reach.decoder = grow(std::max(pass.tail_from, true_floor), pass.decoder_floor, spec.layers - split, true_floor);
  return reach;
}

TEST(Replay, ExactAndResumedPlansReproduceTheColdRun) {
  const std::uint32_t seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  const auto between = [&](Position low, Position high) {
    return low + static_cast<Position>(random() % static_cast<std::uint64_t>(high - low + 1));
  };
  for (int round = 0; round < 20'000; ++round) {
    ReplaySpec spec{.window = static_cast<int>(between(2, 140)),
                    .backtrack = 5,
                    .encoder_layers = 0,
                    .layers = static_cast<int>(between(2, 12)),
                    .mode = ReplayMode::kExact,
                    .truncation = round % 3 == 0 ? Truncation::kOff : Truncation::kCompact,
                    .keep = 0};
    spec.encoder_layers = static_cast<int>(between(1, spec.layers - 1));
    spec.keep = spec.window + static_cast<int>(between(0, 40));
    ASSERT_TRUE(spec.Validate());
    PromptFacts facts{.length = between(1, 5000)};
    facts.hit = between(0, facts.length / 128) * 128;
    const RecordedStart start = RecordStart(spec, facts);
    const PrefillPlan plan = PlanStart(spec, facts);
    const PrefillPass first = OnlyPass(plan);
    const Reach reach = Simulate(spec, first, start.tail_start);
    ASSERT_LE(reach.encoder, std::min(first.write_from, spec.truncates() ? first.tail_from : facts.length - 1));
    ASSERT_LE(reach.decoder, facts.length - 1);
    ASSERT_GE(first.write_from, first.begin);

    const Position length = facts.length + between(0, 4000);
    const Position hit = between(0, length / 128) * 128;
    const PrefillPass again = OnlyPass(PlanResume(spec, start, length, hit));
    const Reach resumed = Simulate(spec, again, start.tail_start);
    ASSERT_EQ(again.end, length);
    ASSERT_LT(again.begin, again.end);
    ASSERT_LE(resumed.encoder, std::min(again.write_from, spec.truncates() ? again.tail_from : length - 1));
    ASSERT_LE(resumed.decoder, length - 1);
  }
}

TEST(Replay, ABoundedResumeNeverSeesBelowItsRecordedStart) {
  const PromptFacts facts{.length = 2000, .hit = 1024};
  const RecordedStart start = RecordStart(kFlash, facts);
  EXPECT_EQ(start.replay_start, 896);
  EXPECT_EQ(start.tail_start, 1860);
  // 100 tokens were generated, 15 blocks are still cached: min(1920, 1860) - 2540 lies below the recorded start.
  const PrefillPass pass = OnlyPass(PlanResume(kFlash, start, 2100, 1920));
  EXPECT_EQ(pass.begin, 896);
  EXPECT_EQ(pass.encoder_floor, 896);
  EXPECT_EQ(pass.write_from, 1920);
  EXPECT_EQ(pass.tail_from, 1860);  // and every generated row runs the decoder
  EXPECT_EQ(pass.end, 2100);
}

TEST(Replay, ALongOutputIsNotReplayedFromItsStart) {
  const RecordedStart start = RecordStart(kFlash, {.length = 2000});
  const PrefillPlan plan = PlanResume(kFlash, start, 32'000, 31'872);
  // Decoder from 32000 - 1 - 127 * 20 = 29459, encoder 2540 rows before that.
  EXPECT_EQ(OnlyPass(plan).tail_from, 29'459);
  EXPECT_EQ(OnlyPass(plan).begin, 29'459 - 2540);
  EXPECT_EQ(plan.replayed_rows(), 31'872 - (29'459 - 2540));
}

TEST(Replay, AnEvictedPrefixIsRebuiltBeforeABoundedResume) {
  const RecordedStart start = RecordStart(kFlash, {.length = 2000, .hit = 1024});
  const PrefillPlan plan = PlanResume(kFlash, start, 2100, 512);
  ASSERT_EQ(plan.passes.size(), 2u);
  EXPECT_EQ(plan.passes[0].begin, 0);  // 512 - 2540 < 0
  EXPECT_EQ(plan.passes[0].write_from, 512);
  EXPECT_EQ(plan.passes[0].end, 1024);
  EXPECT_EQ(plan.passes[0].tail_from, 1024);  // history only
  EXPECT_EQ(plan.passes[1].begin, 896);       // as recorded
  EXPECT_EQ(plan.passes[1].write_from, 1024);
  EXPECT_EQ(plan.passes[1].end, 2100);
  EXPECT_EQ(plan.encoder_rows(), 1024 + 2100 - 896);
}

// Blocks 0 to 7 came from a cold run, 8 to 15 from one that began at 896, and this sequence began at 1920.
TEST(Replay, AResumeRepeatsEveryRunThatMadeItsPrefix) {
  const RecordedStart start =
      RecordStart(kFlash, {.length = 3000, .hit = 2048, .found = {{.from = 1024, .begin = 896}}});
  const Lineage expected = {{.from = 1024, .begin = 896}, {.from = 2048, .begin = 1920}};
  EXPECT_EQ(start.lineage, expected);
  PrefillPlan plan = PlanResume(kFlash, start, 3100, 512);
  ASSERT_EQ(plan.passes.size(), 3u);
  const Position begins[] = {0, 896, 1920}, ends[] = {1024, 2048, 3100}, writes[] = {512, 1024, 2048};
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(plan.passes[i].begin, begins[i]);
    EXPECT_EQ(plan.passes[i].encoder_floor, begins[i]);
    EXPECT_EQ(plan.passes[i].end, ends[i]);
    EXPECT_EQ(plan.passes[i].write_from, writes[i]);
  }
  // Within the second run's stretch only that run and the own one are repeated.
  plan = PlanResume(kFlash, start, 3100, 1280);
  ASSERT_EQ(plan.passes.size(), 2u);
  EXPECT_EQ(plan.passes[0].begin, 896);  // 1280 - 2540 lies below the run's own start
  EXPECT_EQ(plan.passes[0].write_from, 1280);
}

TEST(Replay, LineagesNameTheRunsThatDiffer) {
  // Rows from 0 over history that is as if cold are cold; over other history they are not.
  EXPECT_TRUE(RecordStart(kFlash, {.length = 200, .hit = 128}).lineage.empty());
  const Lineage other = {{.from = 128, .begin = 0}};
  EXPECT_EQ(RecordStart(kFlash, {.length = 400, .hit = 384, .found = {{.from = 256, .begin = 128}}}).lineage.size(),
            2u);
  EXPECT_TRUE(RecordStart(Exact(), {.length = 9000, .hit = 8192}).lineage.empty());
  // A restored snapshot goes on with the run that saved it.
  PromptFacts facts{.length = 1500, .hit = 896};
  facts.snapshot = SnapshotPoint{.position = 1000, .restart_from = 0, .encoder_floor = 0, .lineage = other};
  EXPECT_EQ(RecordStart(kFlash, facts).lineage, other);
  EXPECT_EQ(OriginAt(other, 127), Origin{});
  EXPECT_EQ(OriginAt(other, 128), other[0]);
  EXPECT_EQ(OriginAt({}, 5), Origin{});
}

TEST(Replay, ASnapshotRestartsAtItsPositionOrAtTheTail) {
  PromptFacts facts{.length = 1500, .hit = 896};
  facts.snapshot = SnapshotPoint{.position = 1000, .restart_from = 860, .encoder_floor = 0};
  PrefillPass pass = OnlyPass(PlanStart(kFlash, facts));
  EXPECT_EQ(pass.begin, 1000);
  EXPECT_EQ(pass.write_from, 1000);
  EXPECT_EQ(PlanStart(kFlash, facts).replayed_rows(), 0);
  // Blocks behind the snapshot that others computed are used, and not written again.
  facts.hit = 1024;
  EXPECT_EQ(OnlyPass(PlanStart(kFlash, facts)).begin, 1000);
  EXPECT_EQ(OnlyPass(PlanStart(kFlash, facts)).write_from, 1024);
  facts.hit = 896;
  // Only 20 tokens follow: the tail, 1020 - 140 = 880, begins inside what the snapshot has seen.
  facts.length = 1020;
  pass = OnlyPass(PlanStart(kFlash, facts));
  EXPECT_EQ(pass.begin, 880);
  EXPECT_EQ(pass.write_from, 1000);
  EXPECT_EQ(PlanStart(kFlash, facts).kind, StartKind::kSnapshot);
  // The snapshot was taken too soon after a replay to restart there.
  facts.snapshot->restart_from = 900;
  EXPECT_FALSE(SnapshotPays(kFlash, facts));
  EXPECT_EQ(PlanStart(kFlash, facts).kind, StartKind::kBounded);
}

TEST(Replay, SnapshotsAreUsedOnlyWhenTheySaveRows) {
  PromptFacts facts{.length = 4000, .hit = 3840};
  facts.snapshot = SnapshotPoint{.position = 1000, .restart_from = 0, .encoder_floor = 0};
  EXPECT_FALSE(SnapshotPays(kFlash, facts));  // bounded starts at 3712
  facts.snapshot->position = 3850;
  EXPECT_TRUE(SnapshotPays(kFlash, facts));
  facts.snapshot->position = 1400;
  EXPECT_TRUE(SnapshotPays(Exact(), facts));  // exact starts at 3840 - 2540 = 1300
}

// Ten turns of a chat that thinks: each prompt drops the old reasoning, so a turn matches the one before up to the
// assistant token at the end of its prompt, where the snapshot was taken. Every turn restores.
TEST(Replay, EveryTurnOfAThinkingChatRestores) {
  for (const ReplaySpec& spec : {kFlash, Exact()}) {
    Position length = 700;
    std::optional<SnapshotPoint> snapshot;
    for (int turn = 0; turn < 10; ++turn) {
      const Position point = length - 1;  // before the token that opens the reasoning
      PromptFacts facts{.length = length, .save_at = point};
      facts.hit = snapshot ? snapshot->position / 128 * 128 : 0;
      facts.snapshot = snapshot;
      const PrefillPlan plan = PlanStart(spec, facts);
      EXPECT_EQ(plan.kind, turn == 0 ? StartKind::kCold : StartKind::kSnapshot) << "turn " << turn;
      if (turn > 0) {
        EXPECT_LE(plan.encoder_rows(), std::max<Position>(140, length - snapshot->position));
      }
      snapshot = SnapshotPoint{.position = point,
                               .restart_from = std::max(plan.restart_from, point - spec.snapshot_depth()),
                               .encoder_floor = plan.passes.back().encoder_floor};
      length += turn % 2 == 0 ? 90 : 400;  // answer and next question: less and more than the tail
    }
  }
}

TEST(Replay, ASnapshotAfterAReplayCanStillBeRestoredAnywhere) {
  PromptFacts facts{.length = 8000, .hit = 7936, .save_at = 7999};
  for (const ReplaySpec& spec : {kFlash, Exact()}) {
    const PrefillPlan plan = PlanStart(spec, facts);
    EXPECT_LE(plan.restart_from, 7999 - 140);
  }
}

// Whatever the chunks, a row runs the decoder iff its position is in the tail, so both ways of computing a truncated
// prefill run the same rows with the same floors.
TEST(Replay, ChunkedAndWholeTruncationRunTheSameRows) {
  const PrefillPass whole = OnlyPass(PlanStart(kFlash, {.length = 1000, .hit = 512}));
  for (const int chunk : {1, 7, 64, 128, 333, 1000}) {
    std::vector<Position> tail;
    for (Position begin = whole.begin; begin < whole.end; begin += chunk) {
      const Position end = std::min<Position>(whole.end, begin + chunk);
      for (Position row = std::max(begin, whole.tail_from); row < end; ++row) tail.push_back(row);
    }
    ASSERT_EQ(static_cast<Position>(tail.size()), whole.end - whole.tail_from) << chunk;
    EXPECT_EQ(tail.front(), 860);
    EXPECT_EQ(tail.back(), 999);
    EXPECT_TRUE(std::is_sorted(tail.begin(), tail.end()));
  }
}

TEST(Replay, ValidateNamesFieldValueAndLimit) {
  ReplaySpec spec = kFlash;
  spec.keep = 100;
  EXPECT_EQ(spec.Validate().error().ToString(), "keep: 100 is outside 128 … 1048576");
  spec = kFlash;
  spec.encoder_layers = 41;
  EXPECT_EQ(spec.Validate().error().where, "encoder_layers");
  spec.encoder_layers = 40;
  EXPECT_EQ(spec.Validate().error().where, "truncation");
  spec.truncation = Truncation::kOff;
  EXPECT_TRUE(spec.Validate());
  EXPECT_NE(NumericClass(kFlash), NumericClass(Exact()));
}

// A prompt of 7.7k tokens, cold and then hit by other requests: the window state is rebuilt, never assumed.
TEST(Replay, K25_AHitAlwaysRebuildsTheWindows) {
  for (const ReplaySpec& spec : {kFlash, Exact()}) {
    for (Position hit = 128; hit <= 7680; hit += 128) {
      const PrefillPass pass = OnlyPass(PlanStart(spec, {.length = 7700, .hit = hit}));
      EXPECT_LE(pass.begin, std::max<Position>(0, hit - 128));
      EXPECT_GE(pass.end - std::max(pass.begin, pass.tail_from), 140);
    }
  }
}

}  // namespace
}  // namespace galley::kv
