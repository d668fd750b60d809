// SPDX-License-Identifier: Apache-2.0
#include "galley/backend/cpu/team.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <ctime>
#include <fstream>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace galley::backend::cpu {
namespace {

constexpr double kLarge = 1e9;  // a cost that is worth sharing

TEST(Team, RunsEveryTaskOnceOnAnyNumberOfThreads) {
  for (const int threads : {1, 2, 5}) {
    Team team(threads);
    // Loops follow each other at once, and some after a pause in which the workers fall asleep.
    for (int round = 0; round < 200; ++round) {
      std::vector<std::atomic<int>> runs(static_cast<std::size_t>(round % 17));
      team.Run(round % 17, kLarge, [&](std::int64_t task, int worker) {
        EXPECT_GE(worker, 0);
        EXPECT_LT(worker, threads);
        runs[static_cast<std::size_t>(task)].fetch_add(1);
      });
      for (const std::atomic<int>& count : runs) ASSERT_EQ(count.load(), 1) << threads << " threads, round " << round;
      if (round % 50 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }
}

// What a loop wrote is there for the next one, whoever runs it.
TEST(Team, LoopsSeeWhatEarlierOnesWrote) {
  Team team(3);
  std::vector<std::int64_t> values(64, 1);
  for (int round = 0; round < 500; ++round) {
    std::vector<std::int64_t> next(64);
    team.Run(64, kLarge, [&](std::int64_t i, int) {
      next[static_cast<std::size_t>(i)] =
          values[static_cast<std::size_t>(i)] + values[static_cast<std::size_t>((i + 1) % 64)] % 7;
    });
    values.swap(next);
  }
  std::vector<std::int64_t> serial(64, 1);
  for (int round = 0; round < 500; ++round) {
    std::vector<std::int64_t> next(64);
    for (std::size_t i = 0; i < 64; ++i) next[i] = serial[i] + serial[(i + 1) % 64] % 7;
    serial.swap(next);
  }
  EXPECT_EQ(values, serial);
}

TEST(Team, SmallLoopsStayOnTheCaller) {
  Team team(4);
  const auto caller = std::this_thread::get_id();
  team.Run(8, 100, [&](std::int64_t, int worker) {
    EXPECT_EQ(std::this_thread::get_id(), caller);
    EXPECT_EQ(worker, 0);
  });
}

std::vector<int> AffinityOfCaller() {
  cpu_set_t set;
  CPU_ZERO(&set);
  EXPECT_EQ(sched_getaffinity(0, sizeof(set), &set), 0);
  std::vector<int> processors;
  for (int i = 0; i < CPU_SETSIZE; ++i) {
    if (CPU_ISSET(i, &set)) processors.push_back(i);
  }
  return processors;
}

// One task for each worker, each on a worker of its own: nobody goes on before all have begun.
template <typename Body>
void OnEveryWorker(Team& team, const Body& body) {
  std::atomic<int> begun{0};
  team.Run(team.threads(), kLarge, [&](std::int64_t, int worker) {
    begun.fetch_add(1);
    while (begun.load() < team.threads()) std::this_thread::yield();
    body(worker);
  });
}

TEST(Team, WorkersMayRunOnTheirProcessorOnlyAndTheCallerAnywhere) {
  const std::vector<int> all = AffinityOfCaller();
  constexpr int kThreads = 4;
  std::vector<Core> places;
  for (std::size_t i = 0; i < kThreads; ++i) places.push_back({all[i % all.size()], 0});
  Team pinned(kThreads, places), free(kThreads);
  std::vector<std::vector<int>> where(kThreads);
  OnEveryWorker(pinned, [&](int worker) { where[static_cast<std::size_t>(worker)] = AffinityOfCaller(); });
  EXPECT_EQ(where[0], all) << "what else the caller's thread starts must not be pinned with it";
  for (std::size_t i = 1; i < kThreads; ++i) EXPECT_EQ(where[i], std::vector<int>{places[i].processor}) << i;
  OnEveryWorker(free, [&](int worker) { where[static_cast<std::size_t>(worker)] = AffinityOfCaller(); });
  for (std::size_t i = 0; i < kThreads; ++i) EXPECT_EQ(where[i], all) << i;
}

TEST(Team, AProcessorThatIsNotThereIsNoHindrance) {
  const std::vector<Core> places = {{0, 0}, {CPU_SETSIZE - 1, 0}, {1 << 20, 1}, {-1, 7}};
  Team team(4, places);
  std::atomic<int> runs{0};
  OnEveryWorker(team, [&](int) { runs.fetch_add(1); });
  EXPECT_EQ(runs.load(), 4);
}

// Three nodes with one, two and three workers: of 60 tasks the first 10, the next 20 and the last 30. A worker takes
// those of its node in order until none is left, and only then others.
TEST(Team, EachNodeHasItsShareAndHelpsAfterwards) {
  const std::vector<Core> places = {{-1, 4}, {-1, 1}, {-1, 4}, {-1, 9}, {-1, 9}, {-1, 9}};
  const std::vector<std::pair<int, int>> own = {{10, 30}, {0, 10}, {10, 30}, {30, 60}, {30, 60}, {30, 60}};
  Team team(6, places);
  for (int round = 0; round < 50; ++round) {
    std::vector<std::vector<int>> taken(6);
    std::vector<std::atomic<int>> runs(60);
    team.Run(60, kLarge, [&](std::int64_t task, int worker) {
      taken[static_cast<std::size_t>(worker)].push_back(static_cast<int>(task));
      runs[static_cast<std::size_t>(task)].fetch_add(1);
      if (task % 7 == 0) std::this_thread::yield();
    });
    for (const std::atomic<int>& count : runs) ASSERT_EQ(count.load(), 1);
    for (std::size_t worker = 0; worker < 6; ++worker) {
      const auto at_home = [&](int task) { return task >= own[worker].first && task < own[worker].second; };
      const auto first_away = std::find_if_not(taken[worker].begin(), taken[worker].end(), at_home);
      EXPECT_TRUE(std::is_sorted(taken[worker].begin(), first_away));
      EXPECT_TRUE(std::none_of(first_away, taken[worker].end(), at_home)) << "worker " << worker;
    }
  }
  // Fewer tasks than workers, and a share that is empty.
  for (int tasks = 2; tasks < 9; ++tasks) {
    std::atomic<int> runs{0};
    team.Run(tasks, kLarge, [&](std::int64_t, int) { runs.fetch_add(1); });
    EXPECT_EQ(runs.load(), tasks);
  }
}

// The state that the system reports for a thread: 'S' when it sleeps.
char StateOf(pid_t thread) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/stat");
  std::string text;
  std::getline(file, text);
  const std::size_t name_end = text.rfind(')');
  return name_end == text.npos || name_end + 2 >= text.size() ? '?' : text[name_end + 2];
}

double ProcessorSeconds(pthread_t thread) {
  clockid_t clock{};
  timespec time{};
  EXPECT_EQ(pthread_getcpuclockid(thread, &clock), 0);
  EXPECT_EQ(clock_gettime(clock, &time), 0);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

// Threads that serve connections have the processors when nothing computes.
TEST(Team, IdleWorkersSleepAndUseNoProcessorTime) {
  Team team(3);
  std::vector<pid_t> ids(3);
  std::vector<pthread_t> threads(3);
  OnEveryWorker(team, [&](int worker) {
    ids[static_cast<std::size_t>(worker)] = gettid();
    threads[static_cast<std::size_t>(worker)] = pthread_self();
  });
  for (std::size_t i = 1; i < 3; ++i) {
    // It spins for a while first, and on a busy machine gets its turn late.
    const auto patience = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (StateOf(ids[i]) != 'S' && std::chrono::steady_clock::now() < patience)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    ASSERT_EQ(StateOf(ids[i]), 'S');
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  const double before[] = {ProcessorSeconds(threads[1]), ProcessorSeconds(threads[2])};
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  // Spinning would be as much as a tenth of a second.
  EXPECT_LT(ProcessorSeconds(threads[1]) - before[0], 0.01);
  EXPECT_LT(ProcessorSeconds(threads[2]) - before[1], 0.01);
}

}  // namespace
}  // namespace galley::backend::cpu
