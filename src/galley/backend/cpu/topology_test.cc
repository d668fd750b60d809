// SPDX-License-Identifier: Apache-2.0
#include "galley/backend/cpu/topology.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

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

// Two nodes of two cores with two processors each, numbered as on real machines: siblings far apart, nodes in turn.
TEST(Topology, OneProcessorOfEachCoreNodeByNode) {
  const std::filesystem::path root = std::filesystem::path(testing::TempDir()) / ("cpus." + std::to_string(getpid()));
  for (int p = 0; p < 8; ++p) {
    const auto folder = root / ("cpu" + std::to_string(p));
    std::filesystem::create_directories(folder / "topology");
    std::filesystem::create_directories(folder / ("node" + std::to_string(p % 2)));
    std::ofstream(folder / "topology" / "thread_siblings_list") << p % 4 << "," << p % 4 + 4 << "\n";
  }
  const auto processors = [&](std::vector<int> allowed) {
    std::vector<int> found;
    for (const Core& core : FindCores(root, allowed)) found.push_back(core.processor);
    return found;
  };
  EXPECT_THAT(processors({0, 1, 2, 3, 4, 5, 6, 7}), ElementsAre(0, 2, 1, 3));
  EXPECT_THAT(processors({4, 5, 6}), ElementsAre(4, 6, 5));
  EXPECT_THAT(processors({1, 5}), ElementsAre(1));
  std::filesystem::remove_all(root);
  // Nothing known about the machine: every processor is a core.
  EXPECT_THAT(processors({0, 1, 2}), ElementsAre(0, 1, 2));
}

TEST(Topology, AskedForThreadsAreGiven) {
  EXPECT_EQ(PlaceThreads(3).threads, 3);
  EXPECT_THAT(PlaceThreads(3).processors, IsEmpty());
  EXPECT_GE(PlaceThreads(0).threads, 1);
}

}  // namespace
}  // namespace galley::backend::cpu
