// SPDX-License-Identifier: Apache-2.0
// What came of one submitted request, event by event, and whether an engine has given everything back.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <variant>
#include <vector>

#include "galley/engine/engine_for_test.h"

namespace galley::engine {

struct Record {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<EngineEvent> events;
  int tokens = 0;
  int finished = 0;
  bool started = false;
  bool done = false;

  EventSink Sink() {
    return [this](const EngineEvent& event) {
      const std::lock_guard lock(mutex);
      EXPECT_FALSE(done) << "an event behind the last one";
      started = started || std::holds_alternative<StartedEvent>(event);
      tokens += std::holds_alternative<TokenEvent>(event) ? 1 : 0;
      if (const auto* end = std::get_if<FinishedEvent>(&event)) {
        ++finished;
        done = end->request_done;
      }
      events.push_back(event);
      changed.notify_all();
    };
  }
  template <typename Condition>
  void WaitFor(Condition condition) {
    std::unique_lock lock(mutex);
    ASSERT_TRUE(changed.wait_for(lock, std::chrono::seconds(60), condition));
  }
  void WaitUntilDone() {
    WaitFor([this] { return done; });
  }
  [[nodiscard]] FinishedEvent last() const { return std::get<FinishedEvent>(events.back()); }
};

// A step that was planned ahead may hold dead rows for a moment.
inline void ExpectNothingHeld(const Engine& engine, int slots = Options().max_seqs) {
  for (int i = 0; i < 5000; ++i) {
    const EngineStats stats = engine.stats();
    if (stats.blocks_active == 0 && stats.running == 0 && stats.waiting == 0) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  const EngineStats stats = engine.stats();
  EXPECT_EQ(stats.blocks_active, 0);
  EXPECT_EQ(stats.running, 0);
  EXPECT_EQ(stats.waiting, 0);
  EXPECT_EQ(stats.slots_free, slots);
}

}  // namespace galley::engine
