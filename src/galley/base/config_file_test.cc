// SPDX-License-Identifier: Apache-2.0
#include "galley/base/config_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace galley::options {
namespace {

using ::testing::HasSubstr;

std::string ErrorOf(std::string_view toml) {
  const Result<std::vector<FileEntry>> entries = ParseConfigFile(toml, "galley.toml");
  return entries ? "no error" : entries.error().ToString();
}

TEST(ConfigFile, ReadsEveryTypeWithItsLine) {
  const auto entries = ParseConfigFile(
      "[sampling]\nseed = 7\ntemperature = 0.5\nstop = [\"a\", \"b\"]\n\n[prompt]\nthinking = true\n", "galley.toml");
  ASSERT_TRUE(entries.has_value()) << entries.error().ToString();
  ASSERT_EQ(entries->size(), 4u);
  const auto find = [&](std::string_view key) {
    return *std::find_if(entries->begin(), entries->end(), [&](const FileEntry& e) { return e.key == key; });
  };
  EXPECT_EQ(find("seed").value, Value(std::int64_t{7}));
  EXPECT_EQ(find("seed").section, "sampling");
  EXPECT_EQ(find("seed").line, 2);
  EXPECT_EQ(find("temperature").value, Value(0.5));
  EXPECT_EQ(find("stop").value, Value(std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(find("thinking").value, Value(true));
  EXPECT_EQ(find("thinking").line, 7);
}

TEST(ConfigFile, AnEmptyFileHasNoEntries) {
  const auto entries = ParseConfigFile("# nothing\n", "galley.toml");
  ASSERT_TRUE(entries.has_value());
  EXPECT_TRUE(entries->empty());
}

TEST(ConfigFile, ErrorsNameTheLine) {
  EXPECT_THAT(ErrorOf("[sampling]\nseed = = 3\n"), HasSubstr("galley.toml:2: not valid TOML"));
  EXPECT_THAT(ErrorOf("[sampling]\nseed = 1\nseed = 2\n"), HasSubstr("not valid TOML"));
  EXPECT_THAT(ErrorOf("seed = 3\n"), HasSubstr("galley.toml:1: seed stands outside a section"));
  EXPECT_THAT(ErrorOf("[a]\nb = 2020-01-01\n"), HasSubstr("galley.toml:2: b must be a string, number"));
  EXPECT_THAT(ErrorOf("[a]\nb = [1]\n"), HasSubstr("b must be"));
  EXPECT_THAT(ErrorOf("[a.b]\nc = 1\n"), HasSubstr("b must be"));
}

TEST(ConfigFile, RefusesHostileSizesAndDepths) {
  EXPECT_THAT(ErrorOf(std::string((std::size_t{1} << 20) + 1, '#')),
              HasSubstr("at most 1048576 bytes, this one has 1048577"));
  EXPECT_THAT(ErrorOf("[a]\nb = " + std::string(100'000, '[')), HasSubstr("not valid TOML"));
  EXPECT_THAT(ErrorOf("[a]\nb = \"\xff\"\n"), HasSubstr("not valid TOML"));
  std::string dotted;
  for (int i = 0; i < 200'000; ++i) dotted += "a.";
  EXPECT_THAT(ErrorOf(dotted + "a = 1"), HasSubstr("galley.toml:1: a line has more than 2000 dots"));
  EXPECT_THAT(ErrorOf("\n[" + dotted + "a]\n"), HasSubstr("galley.toml:2: a line has more than 2000 dots"));
  // As deep as it gets.
  const std::string deep = dotted.substr(0, 4000) + "a";
  EXPECT_THAT(ErrorOf("[" + deep + "]\n" + deep + " = 1\n"), HasSubstr("a must be a string"));
}

}  // namespace
}  // namespace galley::options
