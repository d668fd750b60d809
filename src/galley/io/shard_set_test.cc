// SPDX-License-Identifier: Apache-2.0
#include "galley/io/shard_set.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "galley/io/test_files.h"

namespace galley::io {
namespace {

using ::testing::HasSubstr;

// Writes a shard of one-byte tensors.
void WriteShard(const std::filesystem::path& path, const std::vector<std::string>& names) {
  std::string header = "{";
  for (std::size_t i = 0; i < names.size(); ++i) {
    header += fmt::format(R"({}"{}":{{"dtype":"U8","shape":[1],"data_offsets":[{},{}]}})", i > 0 ? "," : "", names[i],
                          i, i + 1);
  }
  WriteBytes(path, SafetensorsBytes(header + "}", names.size()));
}

void WriteIndex(const TempDir& dir, const std::vector<std::pair<std::string, std::string>>& map) {
  std::string json = "{\"weight_map\":{";
  for (std::size_t i = 0; i < map.size(); ++i) {
    json += fmt::format(R"({}"{}":"{}")", i > 0 ? "," : "", map[i].first, map[i].second);
  }
  WriteBytes(dir / kIndexFile, json + "}}");
}

std::string Problems(const ShardSet& set) {
  std::string all;
  for (const Error& problem : set.problems) all += problem.ToString() + "\n";
  return all;
}

TEST(ShardSet, OpensIndexedShards) {
  const TempDir dir;
  WriteShard(dir / "a.safetensors", {"x", "y"});
  WriteShard(dir / "b.safetensors", {"z"});
  WriteIndex(dir, {{"x", "a.safetensors"}, {"z", "b.safetensors"}, {"y", "a.safetensors"}});
  const ShardSet set = OpenShards(dir.path());
  EXPECT_EQ(Problems(set), "");
  ASSERT_EQ(set.tensors.size(), 3u);
  EXPECT_EQ(set.files.size(), 2u);
  for (const ShardTensor& tensor : set.tensors) {
    EXPECT_EQ(set.Data(tensor).size(), 1u);
    EXPECT_EQ(set.Data(tensor)[0], std::byte{1});
  }
}

TEST(ShardSet, OpensOneFileWithoutIndex) {
  const TempDir dir;
  WriteShard(dir / kSingleFile, {"x", "y"});
  const ShardSet set = OpenShards(dir.path());
  EXPECT_EQ(Problems(set), "");
  EXPECT_EQ(set.tensors.size(), 2u);
}

TEST(ShardSet, EmptyDirectoryNamesWhatItLooksFor) {
  const TempDir dir;
  const ShardSet set = OpenShards(dir.path());
  ASSERT_EQ(set.problems.size(), 1u);
  EXPECT_EQ(set.problems[0].code, ErrorCode::kNotFound);
  EXPECT_THAT(set.problems[0].message, HasSubstr("model.safetensors.index.json"));
}

TEST(ShardSet, MissingShardSaysWhatItHolds) {
  const TempDir dir;
  WriteShard(dir / "a.safetensors", {"x"});
  WriteIndex(dir, {{"x", "a.safetensors"}, {"y", "b.safetensors"}, {"z", "b.safetensors"}});
  const ShardSet set = OpenShards(dir.path());
  ASSERT_EQ(set.problems.size(), 1u);
  EXPECT_EQ(set.problems[0].code, ErrorCode::kNotFound);
  EXPECT_EQ(set.problems[0].ToString(),
            (dir / "b.safetensors").string() +
                ": cannot open: No such file or directory; the index says that it holds 2 of 3 tensors");
  EXPECT_EQ(set.unreadable, (std::vector<std::string>{"y", "z"}));
  EXPECT_EQ(set.tensors.size(), 1u);  // the rest is still usable for a report
}

TEST(ShardSet, ManyMissingShardsAreCounted) {
  const TempDir dir;
  std::vector<std::pair<std::string, std::string>> map;
  for (int i = 0; i < 45; ++i) map.emplace_back(fmt::format("t{}", i), fmt::format("{:02}.safetensors", i / 2));
  WriteIndex(dir, map);
  const ShardSet set = OpenShards(dir.path());  // 23 shards of two tensors, the last of one
  ASSERT_EQ(set.problems.size(), 21u);
  EXPECT_EQ(set.problems[20].ToString(),
            dir.path().string() + ": 3 more shards cannot be read; the index says that they hold 5 of 45 tensors");
  EXPECT_EQ(set.unreadable.size(), 45u);
}

TEST(ShardSet, ShardsAreLimited) {
  const TempDir dir;
  std::vector<std::pair<std::string, std::string>> map;
  for (int i = 0; i < 10'001; ++i) map.emplace_back(fmt::format("t{}", i), fmt::format("{}.safetensors", i));
  WriteIndex(dir, map);
  const ShardSet set = OpenShards(dir.path());
  ASSERT_EQ(set.problems.size(), 1u);
  EXPECT_THAT(set.problems[0].message, HasSubstr("the index names 10001 shards; the limit is 10000"));
}

TEST(ShardSet, EveryDisagreementOfIndexAndShardsIsReported) {
  const TempDir dir;
  WriteShard(dir / "a.safetensors", {"x", "unlisted", "moved"});
  WriteShard(dir / "b.safetensors", {"z"});
  WriteIndex(dir,
             {{"x", "a.safetensors"}, {"absent", "a.safetensors"}, {"moved", "b.safetensors"}, {"z", "b.safetensors"}});
  const ShardSet set = OpenShards(dir.path());
  const std::string problems = Problems(set);
  const std::string a = (dir / "a.safetensors").string(), b = (dir / "b.safetensors").string();
  EXPECT_THAT(problems, HasSubstr(a + ": 1 tensor of this shard not listed in the index: unlisted"));
  EXPECT_THAT(problems, HasSubstr(a + ": 1 tensor of this shard listed in the index as part of another shard: moved"));
  EXPECT_THAT(problems, HasSubstr(a + ": 1 tensor listed in the index as part of this shard not in it: absent"));
  EXPECT_THAT(problems, HasSubstr(b + ": 1 tensor listed in the index as part of this shard not in it: moved"));
  EXPECT_EQ(set.problems.size(), 4u);
}

TEST(ShardSet, LongListsAreCut) {
  const TempDir dir;
  std::vector<std::string> names;
  for (int i = 0; i < 25; ++i) names.push_back(fmt::format("t{:02}", i));
  WriteShard(dir / "a.safetensors", names);
  WriteIndex(dir, {{"t00", "a.safetensors"}});
  const ShardSet set = OpenShards(dir.path());
  ASSERT_EQ(set.problems.size(), 1u);
  EXPECT_THAT(set.problems[0].message, HasSubstr("24 tensors of this shard not listed"));
  EXPECT_THAT(set.problems[0].message, HasSubstr("t01, t02"));
  EXPECT_THAT(set.problems[0].message, HasSubstr("t20 and 4 more"));  // twenty names, t01 to t20
}

TEST(ParseIndex, RefusesWhatIsNoIndex) {
  struct Case {
    std::string_view json;
    std::string_view message;
  };
  const Case cases[] = {
      {"{", "not valid JSON"},
      {"[]", "no \"weight_map\""},
      {"{}", "no \"weight_map\""},
      {R"({"weight_map": []})", "no \"weight_map\""},
      {R"({"weight_map": {}})", "lists no tensor"},
      {R"({"weight_map": {"a": 1}})", "weight_map \"a\" is 1"},
      {R"({"weight_map": {"a": "../b.safetensors"}})", "must name a file"},
      {R"({"weight_map": {"a": "/b.safetensors"}})", "must name a file"},
      {R"({"weight_map": {"a": "c/b.safetensors"}})", "must name a file"},
      {R"({"weight_map": {"a": "b.safetensors\u0000"}})", "must name a file"},
      {R"({"weight_map": {"a": "b\u0000.safetensors"}})", "must name a file"},
      {R"({"weight_map": {"a": ".."}})", "must name a file"},
      {R"({"weight_map": {"a": ".safetensors"}})", "must name a file"},
      {R"({"weight_map": {"a": "passwd"}})", "must name a file"},
      {R"({"weight_map": {"a": "b.safetensors", "a": "c.safetensors"}})", "appears twice"},
  };
  for (const Case& c : cases) {
    const Result<WeightMap> map = ParseIndex(c.json, "index");
    ASSERT_FALSE(map) << c.json;
    EXPECT_EQ(map.error().code, ErrorCode::kCorrupt);
    EXPECT_THAT(map.error().ToString(), HasSubstr(std::string(c.message))) << c.json;
  }
}

}  // namespace
}  // namespace galley::io
