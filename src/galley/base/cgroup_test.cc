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

}  // namespace
}  // namespace galley
