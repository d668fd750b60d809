// SPDX-License-Identifier: Apache-2.0
// Steps: decode floor, chunks, fairness, asynchrony, branches, refusals, timers.
#include "galley/sched/scheduler.h"

#include <gtest/gtest.h>

#include "galley/sched/test_rank.h"

namespace galley::sched {
namespace {

TEST(Scheduler, APromptRunsInChunksAndThenDecodes) {
  TestRank rank({.step_rows_max = 256});  // 512 work units: encoder rows, and tail rows once more
  rank.Submit(1, TestPrompt(600, 0, 1), 3);
  const StepPlan first = *rank.Plan();
  ASSERT_EQ(first.prefill.size(), 1u);
  EXPECT_EQ(first.prefill[0].rows, 256);
  EXPECT_EQ(first.prefill[0].tail_from, 460);  // 600 - 140
  EXPECT_EQ(first.tables[0].count, 5);         // ceil(600 / 128): the whole table goes along once
  rank.Finish();
  rank.Step();
  const StepPlan last = *rank.Plan();
  EXPECT_EQ(last.prefill[0].begin, 512);
  EXPECT_EQ(last.prefill[0].rows, 88);
  EXPECT_EQ(last.prefill[0].draws, 1);
  rank.Finish();
  EXPECT_EQ(rank.RunAll(), 2);  // tokens 2 and 3
  EXPECT_EQ(rank.TokensOf(1), (std::vector<TokenId>{0, 1, 2}));
  ASSERT_EQ(rank.finished.size(), 1u);
  EXPECT_EQ(rank.finished[0].reason, FinishReason::kLength);
  EXPECT_EQ(rank->stats().tail_rows, 140);
  rank.ExpectAllFree();
}

TEST(Scheduler, EveryReadySequenceDecodesInEveryStepUnderAFloodOfPrompts) {
  TestRank rank({.blocks = 4096});
  for (int i = 0; i < 32; ++i) rank.Submit(i, TestPrompt(10, 0, i), 400);
  for (int i = 0; i < 10; ++i) rank.Step();
  for (int i = 100; i < 400; ++i) rank.Submit(i, TestPrompt(3000, 0, i), 2);
  for (int step = 0; step < 300; ++step) {
    const StepPlan* plan = rank.Plan();
    ASSERT_NE(plan, nullptr);
    int old = 0;
    for (const SequenceRows& rows : plan->decode) old += rows.request.value < 32 ? 1 : 0;
    ASSERT_EQ(old, 32) << "step " << step;
    ASSERT_FALSE(plan->prefill.empty());
    rank.Finish();
  }
  EXPECT_EQ(rank->stats().decode_waits_longest, 0);
}

// 12 sequences, room for 4 in a step: each is left out of two steps in a row at most, and prompts keep their rows.
TEST(Scheduler, MoreDecodesThanAStepHoldsTakeTurns) {
  TestRank rank({.slots = 12, .step_rows_max = 20, .prefill_rows_min = 16});
  EXPECT_EQ(rank->options().decode_wait_bound(), 2);  // ceil(12 / 4) - 1
  for (int i = 0; i < 12; ++i) rank.Submit(i, TestPrompt(4, 0, i), 500);
  rank.RunAll(300);
  EXPECT_EQ(rank->running(), 12);
  EXPECT_EQ(rank->stats().decode_waits_longest, 2);
}

TEST(Scheduler, ChunksAreCutToTheTargetOnceTheCurveIsLearnt) {
  TestRank rank({.blocks = 4096,
                 .itl_target_us = 50'000,
                 .replay = {.truncation = kv::Truncation::kOff}});  // a row is one unit of work
  rank.Submit(1, TestPrompt(10, 0, 1), 2000);
  rank.Step();
  rank.Submit(2, TestPrompt(400'000, 0, 2), 2);
  // A device of 100 us a prompt row and 5 ms a decode: 450 rows fit.
  int rows = 0;
  for (int step = 0; step < 200; ++step) {
    const StepPlan* plan = rank.Plan();
    ASSERT_NE(plan, nullptr);
    rows = plan->prefill_rows;
    rank.elapsed_us = 5000 + 100 * rows;
    ASSERT_GE(rows, 128);
    rank.Finish();
  }
  EXPECT_NEAR(rows, 450, 45);
  // A device that is far too slow still gets the least chunk.
  for (int step = 0; step < 100; ++step) {
    rows = rank.Plan()->prefill_rows;
    rank.elapsed_us = 200'000;
    rank.Finish();
  }
  EXPECT_EQ(rows, 128);
}

TEST(Scheduler, AShortPromptDoesNotWaitForALongOneNorStopsIt) {
  TestRank rank({.blocks = 2048, .step_rows_max = 1024});
  rank.Submit(1, TestPrompt(100'000, 0, 1), 1);
  rank.Step();
  for (int step = 0; step < 40; ++step) {
    rank.Submit(100 + step, TestPrompt(600, 0, 100 + step), 1);
    const StepPlan* plan = rank.Plan();
    std::int64_t lengthy = 0;
    for (const SequenceRows& rows : plan->prefill) lengthy += rows.request == RequestId(1) ? rows.rows : 0;
    EXPECT_GE(lengthy, 512) << "the long prompt gets half of 1,024 rows in step " << step;
    rank.Finish();
  }
  EXPECT_GE(rank.finished.size(), 20u);  // 600 rows each, 512 a step: they get through meanwhile
}

TEST(Scheduler, HigherPriorityGoesFirstButNobodyIsOvertakenForEver) {
  TestRank rank({.slots = 1, .priority_step_us = 1000});
  rank.Submit(0, TestPrompt(10, 0, 0), 4);
  rank.Step();
  Request low = TestRank::Make(1, TestPrompt(10, 0, 1), 1), high = TestRank::Make(2, TestPrompt(10, 0, 2), 1);
  low.priority = -3;  // worth 3 ms
  rank.Submit(std::move(low));
  rank.Submit(std::move(high));
  rank.now += 3001;
  rank.Submit(3, TestPrompt(10, 0, 3), 1);  // later than the low one by more than its handicap
  rank.RunAll();
  std::vector<std::int64_t> order;
  for (const Finished& event : rank.finished) order.push_back(event.request.value);
  EXPECT_EQ(order, (std::vector<std::int64_t>{0, 2, 1, 3}));
}

TEST(Scheduler, EarliestDeadlineGoesFirstWithinAPriority) {
  TestRank rank({.slots = 1, .priority_step_us = 10'000'000});
  rank.now = 20'000'000;  // the begin of a window
  rank.Submit(0, TestPrompt(10, 0, 0), 4);
  rank.Step();
  const auto submit = [&](std::int64_t id, TimeUs deadline, int priority = 0) {
    Request request = TestRank::Make(id, TestPrompt(10, 0, id), 1);
    if (deadline > 0) request.deadline_us = rank.now + deadline;
    request.priority = priority;
    rank.Submit(std::move(request));
  };
  submit(1, 0);
  submit(2, 9'000'000);
  submit(3, 0);
  submit(4, 5'000'000);
  submit(5, 3'000'000, -1);  // a level lower: behind all others, whatever its deadline
  submit(6, 7'000'000);
  submit(7, 0, 1);  // a level higher: before them
  rank.RunAll();
  std::vector<std::int64_t> order;
  for (const Finished& event : rank.finished) order.push_back(event.request.value);
  EXPECT_EQ(order, (std::vector<std::int64_t>{0, 7, 4, 6, 2, 1, 3, 5}));
}

TEST(Scheduler, WaitsAndDeadlinesRunOut) {
  TestRank rank({.slots = 1});
  Request running = TestRank::Make(1, TestPrompt(10, 0, 1), 1000), waiting = TestRank::Make(2, TestPrompt(10, 0, 2));
  running.deadline_us = 20'000;
  waiting.max_wait_us = 5000;
  rank.Submit(std::move(running));
  rank.Submit(std::move(waiting));
  rank.RunAll(6);
  ASSERT_EQ(rank.finished.size(), 1u);
  EXPECT_EQ(rank.finished[0].request, RequestId(2));
  EXPECT_EQ(rank.finished[0].error.code, ErrorCode::kDeadline);
  EXPECT_EQ(rank.finished[0].error.where, "max_wait");
  rank.RunAll();
  ASSERT_EQ(rank.finished.size(), 2u);
  EXPECT_EQ(rank.finished[1].error.where, "deadline");
  EXPECT_NEAR(static_cast<double>(rank.TokensOf(1).size()), 20, 1);  // a step a millisecond
  rank.ExpectAllFree();
}

TEST(Scheduler, RefusalsNameValueAndLimit) {
  TestRank rank({.blocks = 4, .slots = 1, .max_seq_len = 600, .queue_max = 2});
  const auto refused = [&](Request request) {
    const std::size_t before = rank.finished.size();
    rank.Submit(std::move(request));
    EXPECT_EQ(rank.finished.size(), before + 1);
    return rank.finished.back().error;
  };
  EXPECT_EQ(refused(TestRank::Make(1, {})).ToString(), "prompt: is empty; at least one token is needed");
  EXPECT_EQ(refused(TestRank::Make(2, {7}, 0)).where, "max_tokens");
  Request many = TestRank::Make(3, {7});
  many.n = 1000;
  EXPECT_EQ(refused(std::move(many)).ToString(), "n: is 1000; must be 1 to 128");
  EXPECT_EQ(refused(TestRank::Make(4, TestPrompt(595, 0, 4), 10)).message,
            "the prompt's 595 tokens and 10 more make 605; this model holds 600. Shorten the prompt or lower "
            "max_tokens");
  EXPECT_EQ(refused(TestRank::Make(5, TestPrompt(510, 0, 5), 4)).message,  // 513 rows: 4 blocks hold 512
            "the prompt's 510 tokens and 4 more need 5 blocks of 128 tokens; this server has 4. Shorten the prompt or "
            "lower max_tokens");
  Request points = TestRank::Make(6, TestPrompt(10, 0, 6));
  points.snapshot_points = {4, 4};
  EXPECT_EQ(refused(std::move(points)).where, "snapshot_points");
  rank.Submit(7, TestPrompt(510, 0, 7), 3);  // fits exactly
  rank.Submit(8, TestPrompt(10, 0, 8));
  const Error full = refused(TestRank::Make(9, TestPrompt(10, 0, 9)));
  EXPECT_EQ(full.code, ErrorCode::kResourceExhausted);
  EXPECT_EQ(Info(full.code).http_status, 429);
  rank.RunAll();
  EXPECT_EQ(rank->stats().refused, 7);
  EXPECT_EQ(rank.finished.size(), 9u);
  rank.ExpectAllFree();
}

// Prompt tokens that wait are bounded too, but one request may always wait.
TEST(Scheduler, AQueueOfTooManyTokensRefuses) {
  TestRank rank({.slots = 1, .queue_tokens_max = 500});
  rank.Submit(0, TestPrompt(10, 0, 0), 50);
  rank.Step();
  rank.Submit(1, TestPrompt(600, 0, 1), 1);
  EXPECT_TRUE(rank.finished.empty());
  rank.Submit(2, TestPrompt(10, 0, 2), 1);
  ASSERT_EQ(rank.finished.size(), 1u);
  EXPECT_EQ(rank.finished[0].error.message,
            "600 prompt tokens are waiting and 10 more exceed the limit of 500; try again "
            "later");
  rank.RunAll();
  EXPECT_EQ(rank.finished.size(), 3u);
}

TEST(Scheduler, OptionsAreValidated) {
  const auto error = [](const SchedulerOptions& options) { return Scheduler::Create(options).error().ToString(); };
  EXPECT_EQ(error({.blocks = 256, .slots = 64, .step_rows_max = 128}),
            "step_rows_max: is 128; must be 129 to 1073741823");
  EXPECT_EQ(error({.blocks = 256, .slots = 64, .drafts = 6}), "drafts: is 6; must be 0 to 5");
}

// With one step in flight the next is planned before its tokens are known. The outputs are those of the synchronous
// run.
TEST(Scheduler, PlanningAheadGivesTheSameOutputs) {
  std::vector<std::vector<std::size_t>> lengths;
  for (const int depth : {1, 2}) {
    TestRank rank({.drafts = 2, .steps_in_flight_max = depth});
    for (int i = 0; i < 8; ++i) rank.Submit(i, TestPrompt(100 + 50 * i, 64, i), 5 + i);
    while (!rank->idle()) {
      while (rank.Plan() != nullptr) {
      }
      rank.Finish(2);
    }
    lengths.emplace_back();
    for (const auto& [branch, tokens] : rank.tokens) lengths.back().push_back(tokens.size());
    rank.ExpectAllFree();
  }
  EXPECT_EQ(lengths[0], lengths[1]);
  EXPECT_EQ(lengths[0], (std::vector<std::size_t>{5, 6, 7, 8, 9, 10, 11, 12}));
}

TEST(Scheduler, ResourcesOfAnEndedSequenceWaitForTheStepInFlight) {
  TestRank rank;
  rank.Submit(1, TestPrompt(200, 0, 1), 100);
  rank.Step();
  ASSERT_NE(rank.Plan(), nullptr);
  const StepPlan ahead = *rank.Plan();  // planned before it is known that the step before it stops
  ASSERT_EQ(ahead.decode.size(), 1u);
  rank.Finish(1, /*stop=*/true);
  EXPECT_EQ(rank.finished.size(), 1u);
  EXPECT_EQ(rank.finished[0].reason, FinishReason::kStop);
  EXPECT_GT(rank->cache().active(), 0);  // the step in flight still reads them
  EXPECT_EQ(rank->slots().available(), 63);
  const std::size_t tokens = rank.TokensOf(1).size();
  rank.Finish();
  EXPECT_EQ(rank.TokensOf(1).size(), tokens);  // its rows were dead
  rank.ExpectAllFree();
}

// Position 126 is the newest token's; with 5 drafts, accepted or not, the rows of two steps reach 126 + 11.
TEST(Scheduler, BlocksAreReservedForEveryDraftBeingAccepted) {
  TestRank rank({.drafts = 5});
  rank.Submit(1, TestPrompt(116, 0, 1), 200);
  rank.Step();  // 117 tokens known
  const StepPlan first = *rank.Plan();
  EXPECT_EQ(first.decode[0].begin, 116);
  EXPECT_EQ(first.decode[0].rows, 6);  // 116..121: one block
  EXPECT_TRUE(first.tables.empty());
  const StepPlan second = *rank.Plan();
  EXPECT_EQ(second.decode[0].begin, 117);  // at least; up to 122, and then up to row 127: still one block
  EXPECT_TRUE(second.tables.empty());
  rank.Finish(1);
  rank.Finish(6);                       // 117 + 1 + 6 = 124 tokens
  const StepPlan third = *rank.Plan();  // rows 123..128
  ASSERT_EQ(third.tables.size(), 1u);
  EXPECT_EQ(third.tables[0].first, 1);
  rank.Finish();
}

TEST(Scheduler, TheLastTokenIsNeverFedBack) {
  TestRank rank({.drafts = 5});
  rank.Submit(1, TestPrompt(10, 0, 1), 3);
  rank.Step();
  const StepPlan plan = *rank.Plan();
  EXPECT_EQ(plan.decode[0].begin, 10);
  EXPECT_EQ(plan.decode[0].rows, 2);  // rows 10 and 11 give tokens 11 and 12, which are the last
  EXPECT_EQ(plan.decode[0].row_limit, 12);
  rank.Finish(6);
  EXPECT_EQ(rank.TokensOf(1).size(), 3u);
  EXPECT_EQ(rank.Plan(), nullptr);
}

TEST(Scheduler, BranchesShareFullBlocksAndCopyTheRest) {
  TestRank rank;
  Request request = TestRank::Make(1, TestPrompt(300, 0, 1), 5);
  request.n = 3;
  rank.Submit(std::move(request));
  const StepPlan prompt = *rank.Plan();
  EXPECT_EQ(prompt.prefill[0].draws, 3);  // one row's logits, drawn from three times
  EXPECT_EQ(prompt.draws.size(), 3u);
  EXPECT_EQ(rank->cache().active(), 5);  // two full blocks shared, a partial one each
  const StepPlan next = *rank.Plan();
  ASSERT_EQ(next.ops.size(), 2u);
  EXPECT_EQ(next.ops[0].kind, StateOp::Kind::kFork);
  EXPECT_TRUE(next.ops[0].from_block.valid());
  EXPECT_EQ(next.ops[0].position, 300);
  EXPECT_EQ(next.decode.size(), 3u);
  rank.Finish();
  rank.Finish();
  rank.RunAll();
  for (int branch = 0; branch < 3; ++branch) EXPECT_EQ(rank.TokensOf(1, branch).size(), 5u);
  ASSERT_EQ(rank.finished.size(), 3u);
  EXPECT_FALSE(rank.finished[0].request_done);
  EXPECT_TRUE(rank.finished[2].request_done);
  EXPECT_EQ(rank->stats().prefill_rows, 300);  // once
  rank.ExpectAllFree();
}

TEST(Scheduler, BranchesWithoutASlotRunLater) {
  TestRank rank({.slots = 2});
  Request request = TestRank::Make(1, TestPrompt(300, 0, 1), 5);
  request.n = 5;
  rank.Submit(std::move(request));
  rank.RunAll();
  for (int branch = 0; branch < 5; ++branch) EXPECT_EQ(rank.TokensOf(1, branch).size(), 5u);
  EXPECT_EQ(rank->stats().resumes, 3);
  rank.ExpectAllFree();
}

TEST(Scheduler, AFailedStepEndsItsRequestsAndNoOther) {
  TestRank rank;
  rank.Submit(1, TestPrompt(300, 0, 1), 50);
  rank.Step();
  rank.Submit(2, TestPrompt(300, 0, 2), 50);
  ASSERT_NE(rank.Plan(/*may_prefill=*/false), nullptr);  // decodes 1 only
  rank.Fail();
  ASSERT_EQ(rank.finished.size(), 1u);
  EXPECT_EQ(rank.finished[0].request, RequestId(1));
  EXPECT_EQ(rank.finished[0].error.code, ErrorCode::kDevice);
  rank.RunAll();
  ASSERT_EQ(rank.finished.size(), 2u);
  EXPECT_EQ(rank.finished[1].reason, FinishReason::kLength);
  rank.ExpectAllFree();
}

TEST(Scheduler, PromptRowsNeedPermission) {
  TestRank rank;
  rank.Submit(1, TestPrompt(300, 0, 1));
  EXPECT_EQ(rank->Summary(0).prefill_waited_steps, 0);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(rank.Plan(false), nullptr);
  EXPECT_TRUE(rank->Summary(0).prefill_work);
  EXPECT_EQ(rank->Summary(0).prefill_waited_steps, 5);
  ASSERT_NE(rank.Plan(true), nullptr);
  EXPECT_EQ(rank->Summary(0).prefill_waited_steps, 0);
  rank.Finish();
}

// A prompt that is preempted with rows in flight is on no list until they end, but the step that it was not allowed to
// run in counts all the same. The first sequence needs a third block behind its 256th token, and all seven are taken.
TEST(Scheduler, AStepWithoutPermissionCountsAlthoughItsPromptIsPreempted) {
  TestRank rank({.blocks = 7, .slots = 3, .step_rows_max = 256});
  rank.Submit(1, TestPrompt(255, 0, 1), 100);
  rank.Step();
  rank.Submit(2, TestPrompt(600, 0, 2), 10);
  ASSERT_NE(rank.Plan(), nullptr);
  ASSERT_EQ(rank.StateOf(2), "prefilling");
  EXPECT_EQ(rank.Plan(/*may_prefill=*/false), nullptr);
  EXPECT_EQ(rank.StateOf(2), "preempted");
  EXPECT_EQ(rank->Summary(0).prefill_waited_steps, 1);
  rank.Finish();
  rank.RunAll();
  ASSERT_EQ(rank.finished.size(), 2u);
  rank.ExpectAllFree();
}

}  // namespace
}  // namespace galley::sched
