// SPDX-License-Identifier: Apache-2.0
#include "galley/backend/cpu/topology.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <fstream>
#include <optional>
#include <thread>
#include <utility>

namespace galley::backend::cpu {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(Topology, ListsOfProcessors) {
  EXPECT_THAT(ParseProcessorList("0-3,8,10-11\n"), ElementsAre(0, 1, 2, 3, 8, 10, 11));
  EXPECT_THAT(ParseProcessorList("5"), ElementsAre(5));
  EXPECT_THAT(ParseProcessorList(""), IsEmpty());
  EXPECT_THAT(ParseProcessorList("2,x"), ElementsAre(2));
  EXPECT_THAT(ParseProcessorList("4-"), IsEmpty());
  EXPECT_THAT(ParseProcessorList("-1"), IsEmpty());
}

// A machine as the system describes it in files.
struct Processor {
  int number, node;      // node -1: none is told
  const char* siblings;  // null: it is offline, or nothing is told of its core
};

class Machine {
 public:
  explicit Machine(std::vector<Processor> processors) : processors_(std::move(processors)) {
    for (const Processor& p : processors_) {
      const auto folder = root_ / ("cpu" + std::to_string(p.number));
      std::filesystem::create_directories(folder / "topology");
      if (p.node >= 0) std::filesystem::create_directories(folder / ("node" + std::to_string(p.node)));
      if (p.siblings != nullptr) std::ofstream(folder / "topology" / "thread_siblings_list") << p.siblings << "\n";
    }
  }
  ~Machine() { std::filesystem::remove_all(root_); }
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  [[nodiscard]] std::vector<Core> Cores(std::vector<int> allowed = {}) const {
    if (allowed.empty()) {
      for (const Processor& p : processors_) allowed.push_back(p.number);
    }
    return FindCores(root_, allowed);
  }
  // "processor@node" of each core, in order.
  [[nodiscard]] std::string Listed(std::vector<int> allowed = {}) const {
    std::string text;
    for (const Core& core : Cores(std::move(allowed)))
      text += (text.empty() ? "" : " ") + std::to_string(core.processor) + "@" + std::to_string(core.node);
    return text;
  }

 private:
  const std::filesystem::path root_ = std::filesystem::path(testing::TempDir()) / ("cpus." + std::to_string(getpid()));
  std::vector<Processor> processors_;
};

// Two nodes of two cores with two processors each, numbered as on many servers: siblings far apart, nodes in turn.
const std::vector<Processor> kTwoNodes = {{0, 0, "0,4"}, {1, 1, "1,5"}, {2, 0, "2,6"}, {3, 1, "3,7"},
                                          {4, 0, "0,4"}, {5, 1, "1,5"}, {6, 0, "2,6"}, {7, 1, "3,7"}};

TEST(Topology, OneProcessorOfEachCoreNodeByNode) {
  struct Case {
    const char* what;
    std::vector<Processor> processors;
    std::vector<int> allowed;
    const char* cores;
  };
  const Case cases[] = {
      {"all", kTwoNodes, {}, "0@0 2@0 1@1 3@1"},
      {"siblings of both kinds in a mask", kTwoNodes, {4, 5, 6}, "4@0 6@0 5@1"},
      {"a core of which both are allowed", kTwoNodes, {1, 5}, "1@1"},
      {"siblings side by side", {{0, 0, "0-1"}, {1, 0, "0-1"}, {2, 0, "2-3"}, {3, 0, "2-3"}}, {}, "0@0 2@0"},
      {"fast cores with two processors, slow ones with one",
       {{0, 0, "0-1"}, {1, 0, "0-1"}, {2, 0, "2"}, {3, 0, "3"}},
       {},
       "0@0 2@0 3@0"},
      {"four processors a core",
       {{0, 0, "0-3"}, {1, 0, "0-3"}, {2, 0, "0-3"}, {3, 0, "0-3"}, {4, 1, "4"}},
       {},
       "0@0 4@1"},
      {"node numbers with gaps and of two digits", {{0, 12, "0"}, {1, 3, "1"}, {2, 12, "2"}}, {}, "1@3 0@12 2@12"},
      {"nothing told of cores or nodes", {{0, -1, nullptr}, {1, -1, nullptr}}, {}, "0@0 1@0"},
      {"a broken list", {{0, 0, "x"}, {1, 0, "9999999999999"}, {2, 0, ""}}, {}, "0@0 1@0 2@0"},
      {"no description at all", {}, {0, 1, 2}, "0@0 1@0 2@0"},
  };
  for (const Case& c : cases) EXPECT_EQ(Machine(c.processors).Listed(c.allowed), c.cores) << c.what;
}

TEST(Topology, ThreadsAreAsManyAsCoresWithinLimits) {
  const Machine machine(kTwoNodes);
  const std::vector<Core> cores = machine.Cores();
  const auto threads = [&](int asked, std::optional<double> quota) {
    return PlaceOn(cores, asked, {{}, quota}, true).threads;
  };
  EXPECT_EQ(threads(0, {}), 4) << "not 8: the other four are free for connections";
  EXPECT_EQ(threads(0, 3.9), 3);
  EXPECT_EQ(threads(0, 0.5), 1);
  EXPECT_EQ(threads(0, 6), 4);
  EXPECT_EQ(threads(7, 1), 7) << "who asks gets what is asked for";
  EXPECT_EQ(PlaceOn({}, 0, {}, true).threads, 1);
}

TEST(Topology, ThreadsArePinnedOnAWholeMachineOfSeveralNodesOnly) {
  const Machine machine(kTwoNodes);
  const std::vector<Core> cores = machine.Cores();
  std::vector<int> processors, nodes;
  for (const Core& core : PlaceOn(cores, 0, {}, true).processors) {
    processors.push_back(core.processor);
    nodes.push_back(core.node);
  }
  EXPECT_THAT(processors, ElementsAre(0, 2, 1, 3));
  EXPECT_THAT(nodes, ElementsAre(0, 0, 1, 1));
  EXPECT_THAT(PlaceOn(cores, 0, {}, false).processors, IsEmpty());
  EXPECT_THAT(PlaceOn(cores, 4, {}, true).processors, IsEmpty());
  EXPECT_THAT(PlaceOn(cores, 0, {{}, 2.0}, true).processors, IsEmpty());
  EXPECT_THAT(PlaceOn(std::span(cores).first(2), 0, {}, true).processors, IsEmpty()) << "one node";
}

// A cpuset shows as the affinity mask, and so does taskset.
TEST(Topology, TheCallersMaskIsTheLimit) {
  std::thread([] {
    cpu_set_t set;
    CPU_ZERO(&set);
    ASSERT_EQ(sched_getaffinity(0, sizeof(set), &set), 0);
    int first = 0;
    while (!CPU_ISSET(first, &set)) ++first;
    CPU_ZERO(&set);
    CPU_SET(first, &set);
    ASSERT_EQ(sched_setaffinity(0, sizeof(set), &set), 0);
    EXPECT_EQ(PlaceThreads(0).threads, 1);
    EXPECT_THAT(PlaceThreads(0).processors, IsEmpty());
  }).join();
}

TEST(Topology, AskedForThreadsAreGiven) {
  EXPECT_EQ(PlaceThreads(3).threads, 3);
  EXPECT_THAT(PlaceThreads(3).processors, IsEmpty());
  EXPECT_GE(PlaceThreads(0).threads, 1);
}

}  // namespace
}  // namespace galley::backend::cpu
