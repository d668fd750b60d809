// SPDX-License-Identifier: Apache-2.0
// What goes wrong stays where it went wrong: failing steps, cancellation in every state, full queues, deadlines, the
// end of the engine. After each the engine serves as before and holds nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

#include "galley/backend/decorator.h"
#include "galley/engine/engine_for_test.h"
#include "galley/engine/record_for_test.h"

namespace galley::engine {
namespace {

using sched::FinishReason;
using ::testing::HasSubstr;

// Fails one call of Synchronize, counted over the backend's life.
class FaultyBackend final : public backend::BackendDecorator {
 public:
  FaultyBackend(std::unique_ptr<backend::Backend> inner, std::shared_ptr<std::atomic<int>> left)
      : BackendDecorator(std::move(inner)), left_(std::move(left)) {}
  [[nodiscard]] Status Synchronize() override {
    if (left_->fetch_sub(1) == 1) return Err(ErrorCode::kDevice, "injected fault", "device");
    return BackendDecorator::Synchronize();
  }

 private:
  std::shared_ptr<std::atomic<int>> left_;  // calls until the one that fails
};

TEST(EngineFailure, FailedStepEndsItsRequestsAndNoOther) {
  const auto left = std::make_shared<std::atomic<int>>(0);
  EngineOptions options = Options();
  options.step_rows_max = 132;
  options.wrap_backend = [left](std::unique_ptr<backend::Backend> inner) {
    return std::make_unique<FaultyBackend>(std::move(inner), left);
  };
  const auto requests = [] {
    return std::vector<EngineRequest>{Request(1, 20, 0, 6), Request(2, 140, 0, 4), Request(3, 7, 0, 8)};
  };
  const auto engine = Make(options);
  const Ids expected = RunAll(*engine, requests());
  int failed_requests = 0, whole_requests = 0;
  // The step that fails: a first chunk, a later chunk beside decodes, decodes alone.
  for (int step = 1; step <= 7; ++step) {
    const int failed_before = engine->stats().steps_failed;
    std::vector<EngineRequest> some = requests();
    for (EngineRequest& request : some) request.use_cache = false;
    left->store(step);
    const auto results = engine->Generate(std::move(some));
    left->store(0);
    ASSERT_TRUE(results);
    EXPECT_EQ(engine->stats().steps_failed, failed_before + 1) << "step " << step;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const BranchResult& branch = (*results)[i].branches[0];
      const std::vector<TokenId> ids = IdsOf(branch);
      if (branch.reason == FinishReason::kError) {
        ++failed_requests;
        EXPECT_EQ(branch.error.ToString(), "device: injected fault");
        EXPECT_LT(ids.size(), expected[i].size());
        EXPECT_TRUE(std::equal(ids.begin(), ids.end(), expected[i].begin())) << "what came before the fault is right";
      } else {
        ++whole_requests;
        EXPECT_EQ(ids, expected[i]) << "request " << i << " had no row in step " << step;
      }
    }
    ExpectNothingHeld(*engine);
  }
  EXPECT_GT(failed_requests, 7);
  EXPECT_GT(whole_requests, 0);
  EXPECT_EQ(RunAll(*engine, requests()), expected) << "the engine goes on";
}

TEST(EngineFailure, FailedBranchesEachEndOnce) {
  const auto left = std::make_shared<std::atomic<int>>(0);
  EngineOptions options = Options();
  options.wrap_backend = [left](std::unique_ptr<backend::Backend> inner) {
    return std::make_unique<FaultyBackend>(std::move(inner), left);
  };
  const auto engine = Make(options);
  for (const int step : {1, 2, 4}) {
    EngineRequest request = Request(8, 20, 0, 6);
    request.n = 3;
    Record record;
    left->store(step);
    ASSERT_TRUE(engine->Submit(request, record.Sink()));
    record.WaitUntilDone();
    left->store(0);
    EXPECT_EQ(record.finished, 3) << "step " << step;
    EXPECT_EQ(record.last().reason, FinishReason::kError);
    ExpectNothingHeld(*engine);
  }
}

// K26: a request that ends at a chunk border leaves nothing in the cache that later requests could take for their own.
TEST(EngineFailure, K26_CancelInEveryStateThenAskAgain) {
  EngineOptions options = Options();
  options.max_seqs = 4;
  options.step_rows_max = 140;
  const auto engine = Make(options);
  const EngineRequest asked = Request(20, 150, 0, 4);
  EngineRequest uncached = asked;
  uncached.use_cache = false;
  const std::vector<TokenId> expected = IdsOf(RunOne(*engine, uncached));

  // While it waits for its first step, right after its first chunk was planned, and after each number of tokens.
  for (int when = -1; when <= 3; ++when) {
    Record record;
    std::atomic<std::int64_t> id = -1;
    const Result<RequestId> submitted = engine->Submit(asked, record.Sink());
    ASSERT_TRUE(submitted);
    id = submitted->value;
    if (when >= 0) record.WaitFor([&] { return record.started && (when == 0 || record.tokens >= when); });
    engine->Cancel(*submitted);
    record.WaitUntilDone();
    EXPECT_EQ(record.finished, 1);
    EXPECT_TRUE(record.last().reason == FinishReason::kCancelled || record.tokens == 4);
    ExpectNothingHeld(*engine);
  }
  EngineRequest exact = asked;
  EngineOptions exact_options = options;
  exact_options.replay = kv::ReplayMode::kExact;
  const auto other = Make(exact_options);
  for (int round = 0; round < 2; ++round) {
    Record record;
    const Result<RequestId> submitted = other->Submit(exact, record.Sink());
    ASSERT_TRUE(submitted);
    record.WaitFor([&] { return record.started; });
    if (round == 1) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    other->Cancel(*submitted);
    record.WaitUntilDone();
    EXPECT_EQ(IdsOf(RunOne(*other, exact)), expected) << "round " << round;
  }
}

// Requests that wait for another's blocks, or for a slot, are cancelled like those that run.
TEST(EngineFailure, CancelOfWaitingRequests) {
  EngineOptions options = Options();
  options.max_seqs = 4;
  options.step_rows_max = 140;
  const auto engine = Make(options);
  std::vector<std::unique_ptr<Record>> records;
  std::vector<RequestId> ids;
  for (std::uint32_t i = 0; i < 10; ++i) {
    records.push_back(std::make_unique<Record>());
    // All share a block, so most of them wait for the first one's.
    const auto id = engine->Submit(Request(30 + i, 145, 140, 40), records.back()->Sink());
    ASSERT_TRUE(id);
    ids.push_back(*id);
  }
  for (const RequestId id : ids) engine->Cancel(id);
  for (const auto& record : records) {
    record->WaitUntilDone();
    EXPECT_EQ(record->finished, 1);
    EXPECT_EQ(record->last().reason, FinishReason::kCancelled);
  }
  ExpectNothingHeld(*engine);
  EXPECT_EQ(IdsOf(RunOne(*engine, Request(50, 9))).size(), 8u);
}

TEST(EngineFailure, FullQueueNamesItsLimit) {
  EngineOptions options = Options();
  options.max_seqs = 1;
  options.queue_max = 2;
  const auto engine = Make(options);
  std::vector<std::unique_ptr<Record>> records;
  int refused = 0;
  Error error;
  for (std::uint32_t i = 0; i < 12; ++i) {
    records.push_back(std::make_unique<Record>());
    const auto id = engine->Submit(Request(60 + i, 5, 0, 30), records.back()->Sink());
    if (id) continue;
    ++refused;
    error = id.error();
    records.pop_back();
  }
  EXPECT_GE(refused, 9) << "one runs and two wait";
  EXPECT_EQ(error.code, ErrorCode::kResourceExhausted);
  EXPECT_EQ(Info(error.code).http_status, 429);
  EXPECT_EQ(error.where, "queue");
  EXPECT_THAT(error.message, HasSubstr("at most 2 wait"));
  for (const auto& record : records) record->WaitUntilDone();
  EXPECT_TRUE(engine->Submit(Request(80, 5, 0, 1), [](const EngineEvent&) {})) << "there is room again";
  engine->Drain();
}

TEST(EngineFailure, OfflineGenerationWaitsForRoomInTheQueue) {
  EngineOptions options = Options();
  options.max_seqs = 2;
  options.queue_max = 1;
  const auto engine = Make(options);
  std::vector<EngineRequest> requests;
  for (std::uint32_t i = 0; i < 12; ++i) requests.push_back(Request(60 + i, 5, 0, 2));
  for (const std::vector<TokenId>& ids : RunAll(*engine, requests)) EXPECT_EQ(ids.size(), 2u);
}

TEST(EngineFailure, DeadlineEndsARequestWithAnErrorThatSaysSo) {
  const auto engine = Make(Options());
  EngineRequest request = Request(90, 10, 0, 900);
  request.deadline_s = 0.15;
  const EngineRequest other = Request(91, 10, 0, 4);
  const auto results = engine->Generate({request, other});
  ASSERT_TRUE(results);
  const BranchResult& late = (*results)[0].branches[0];
  EXPECT_EQ(late.reason, FinishReason::kError);
  EXPECT_EQ(late.error.code, ErrorCode::kDeadline);
  EXPECT_THAT(late.error.ToString(), HasSubstr("deadline: was not finished"));
  EXPECT_LT(late.tokens.size(), 900u);
  EXPECT_EQ((*results)[1].branches[0].reason, FinishReason::kLength);
  ExpectNothingHeld(*engine);
}

TEST(EngineFailure, StopEndsWhatRunsAndTakesNoMore) {
  const auto engine = Make(Options());
  Record running, queued;
  ASSERT_TRUE(engine->Submit(Request(95, 10, 0, 900), running.Sink()));
  running.WaitFor([&] { return running.tokens > 0; });
  ASSERT_TRUE(engine->Submit(Request(96, 10, 0, 900), queued.Sink()));
  engine->Stop();
  EXPECT_TRUE(running.done && queued.done);
  EXPECT_EQ(running.last().reason, FinishReason::kCancelled);
  EXPECT_EQ(queued.last().reason, FinishReason::kCancelled);
  const auto refused = engine->Submit(Request(97, 4), [](const EngineEvent&) {});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kUnavailable);
}

// A sink may cancel its own request, and others', and submit.
TEST(EngineFailure, SinksMayCancelAndSubmit) {
  const auto engine = Make(Options());
  Record follow_up;
  std::atomic<std::int64_t> own = -1;
  Record record;
  const EventSink inner = record.Sink();
  const auto id = engine->Submit(Request(98, 10, 0, 900), [&](const EngineEvent& event) {
    if (std::holds_alternative<TokenEvent>(event) && record.tokens == 2) {
      while (own < 0) std::this_thread::yield();
      engine->Cancel(RequestId(own.load()));
      EXPECT_TRUE(engine->Submit(Request(99, 5, 0, 2), follow_up.Sink()));
    }
    inner(event);
  });
  ASSERT_TRUE(id);
  own = id->value;
  record.WaitUntilDone();
  follow_up.WaitUntilDone();
  EXPECT_EQ(record.last().reason, FinishReason::kCancelled);
  EXPECT_EQ(follow_up.tokens, 2);
}

}  // namespace
}  // namespace galley::engine
