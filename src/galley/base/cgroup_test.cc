// SPDX-License-Identifier: Apache-2.0
// Limits of groups, from folders like the system's.
#include "galley/base/cgroup.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>

namespace galley {
namespace {

class CgroupTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string path = testing::TempDir() + "cgroup.XXXXXX";
    ASSERT_NE(mkdtemp(path.data()), nullptr);
    root_ = path;
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  void Write(const std::filesystem::path& name, std::string_view text) const {
    std::filesystem::create_directories((root_ / name).parent_path());
    std::ofstream(root_ / name) << text;
  }
  [[nodiscard]] CgroupLimits Read() const { return ReadCgroupLimits(root_, root_ / "self"); }

  std::filesystem::path root_;
};

TEST_F(CgroupTest, NothingIsNoLimit) {
  EXPECT_FALSE(Read().memory_bytes);
  Write("self", "0::/a\n");
  Write("a/memory.max", "max\n");
  Write("a/cpu.max", "max 100000\n");
  EXPECT_FALSE(Read().memory_bytes);
  EXPECT_FALSE(Read().processors);
}

// A container sees its own group as the root, whatever its path is called outside.
TEST_F(CgroupTest, TheRootOfAContainer) {
  Write("self", "0::/../../elsewhere\n");
  Write("memory.max", "320000000\n");
  Write("cpu.max", "150000 100000\n");
  EXPECT_EQ(Read().memory_bytes, 320'000'000u);
  EXPECT_EQ(Read().processors, 1.5);
}

// Without a name space of its own: the group and those above it, the least of all.
TEST_F(CgroupTest, TheLeastOfAllGroupsAbove) {
  Write("self", "1:name=systemd:/x\n0::/slice/unit\n");
  Write("x/memory.max", "1\n");  // of another hierarchy
  Write("slice/memory.max", "1000\n");
  Write("slice/cpu.max", "400000 100000\n");
  Write("slice/unit/memory.max", "2000\n");
  Write("slice/unit/cpu.max", "50000 100000\n");
  EXPECT_EQ(Read().memory_bytes, 1000u);
  EXPECT_EQ(Read().processors, 0.5);
}

// Version 1: a folder for each controller or set of them, each with a path of its own.
TEST_F(CgroupTest, ControllersOfVersion1) {
  Write("self", "9:name=systemd:/\n4:memory:/pod/box\n2:cpu,cpuacct:/pod\n0::/\n");
  Write("memory/memory.limit_in_bytes", "9223372036854771712\n");  // no limit
  Write("memory/pod/memory.limit_in_bytes", "5000\n");
  Write("memory/pod/box/memory.limit_in_bytes", "6000\n");
  Write("cpu,cpuacct/cpu.cfs_quota_us", "-1\n");  // none
  Write("cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  Write("cpu,cpuacct/pod/cpu.cfs_quota_us", "250000\n");
  Write("cpu,cpuacct/pod/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(Read().memory_bytes, 5000u);
  EXPECT_EQ(Read().processors, 2.5);
  // The folder of a set may carry one controller's name.
  std::filesystem::rename(root_ / "cpu,cpuacct", root_ / "cpu");
  EXPECT_EQ(Read().processors, 2.5);
}

// A container of version 1: its own group is the root of the folder, and groups above it are known by their least.
TEST_F(CgroupTest, LimitsAboveAContainerOfVersion1) {
  Write("self", "4:memory:/process/1\n1:cpu:/\n");
  Write("memory/memory.limit_in_bytes", "9223372036854771712\n");
  Write("memory/memory.stat", "cache 12\nhierarchical_memory_limit 7000\nhierarchical_memsw_limit 1\n");
  EXPECT_EQ(Read().memory_bytes, 7000u);
  EXPECT_FALSE(Read().processors);
  Write("memory/memory.limit_in_bytes", "6500\n");
  EXPECT_EQ(Read().memory_bytes, 6500u);
}

// Both at once: memory is still a controller of version 1, the quota already one of version 2.
TEST_F(CgroupTest, BothVersions) {
  Write("self", "4:memory:/a\n0::/b\n");
  Write("memory/a/memory.limit_in_bytes", "5000\n");
  Write("unified/b/cpu.max", "150000 100000\n");
  Write("unified/memory.high", "4000\n");
  EXPECT_EQ(Read().memory_bytes, 4000u);
  EXPECT_EQ(Read().processors, 1.5);
}

TEST_F(CgroupTest, BrokenListsAreNoLimits) {
  for (const char* list : {"", "x", "4:memory", "::\n:\n", "0::", "4::/../..\n", "4:memoryx:/\n"}) {
    Write("self", list);
    Write("memory/memory.limit_in_bytes", "abc\n");
    EXPECT_FALSE(Read().memory_bytes) << list;
    EXPECT_FALSE(Read().processors) << list;
  }
}

TEST(ProcessorsWithinTest, WholeOnesAndAtLeastOne) {
  const auto within = [](int processors, double quota) { return ProcessorsWithin(processors, {{}, quota}); };
  EXPECT_EQ(ProcessorsWithin(8, {}), 8);
  EXPECT_EQ(within(8, 100), 8);
  EXPECT_EQ(within(8, 8), 8);
  EXPECT_EQ(within(8, 2.5), 2);
  EXPECT_EQ(within(8, 0.5), 1);
  EXPECT_EQ(within(8, 0.01), 1);
  EXPECT_EQ(within(0, 4), 1);
}

}  // namespace
}  // namespace galley
