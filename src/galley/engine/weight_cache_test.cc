// SPDX-License-Identifier: Apache-2.0
// The weight cache: the same tensors, whatever is found at its place, and a start that it never stops.
#include "galley/engine/weight_cache.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <string>
#include <vector>

#include "galley/engine/loaded_model.h"
#include "galley/engine/sequence.h"
#include "galley/io/test_files.h"
#include "galley/model/tensor_list.h"

namespace galley::engine {
namespace {

namespace fs = std::filesystem;

const fs::path kProbe = fs::path(GALLEY_SOURCE_DIR) / "tests/golden/v41_probe";

// Every tensor is the model's own.
bool SameTensors(const model::Checkpoint& checkpoint) {
  const auto own = model::Checkpoint::Open(kProbe);
  if (!own) return false;
  for (const model::ImpliedTensor& tensor : model::ImpliedTensors(own->config())) {
    const TensorView a = own->Find(tensor.name), b = checkpoint.Find(tensor.name);
    if (b.empty() || a.dtype != b.dtype || a.shape != b.shape || std::memcmp(a.data, b.data, a.bytes()) != 0)
      return false;
  }
  return true;
}

class WeightCacheTest : public testing::Test {
 protected:
  // Whether tensors come from the cache; they must be right either way.
  [[nodiscard]] static bool Uses(const fs::path& cache, const fs::path& dir = kProbe) {
    const auto opened = OpenWithCache(dir, cache);
    EXPECT_TRUE(opened) << opened.error().ToString();
    if (!opened) return false;
    EXPECT_TRUE(SameTensors(*opened));
    const auto files = opened->files();
    return files.size() == 1 && files.front().path == cache;
  }
  [[nodiscard]] std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(dir_.path())) names.push_back(entry.path().filename());
    return names;
  }

  io::TempDir dir_;
  const fs::path cache_ = dir_ / "weights.cache";
};

TEST_F(WeightCacheTest, IsWrittenOnceAndThenUsed) {
  ASSERT_TRUE(Uses(cache_));
  const auto time = fs::last_write_time(cache_) - std::chrono::hours(1);
  fs::last_write_time(cache_, time);
  EXPECT_TRUE(Uses(cache_));
  EXPECT_EQ(fs::last_write_time(cache_), time) << "it was written again";
  fs::remove(cache_);
  EXPECT_TRUE(Uses(cache_)) << "it may be deleted";
  EXPECT_EQ(Names(), std::vector<std::string>{"weights.cache"}) << "temporary files are left";
}

TEST_F(WeightCacheTest, WhatIsNotWholeOrOfAnotherModelIsWrittenAnew) {
  ASSERT_TRUE(Uses(cache_));
  const std::string good = io::ReadBytes(cache_);
  const std::size_t version = good.find("_cache\":\"1\"") + 9, digest = good.find("\"model\":\"") + 9;
  ASSERT_LT(version, digest);
  ASSERT_LT(digest, std::size_t{100});
  struct Damage {
    const char* what;
    std::string bytes;
  };
  const auto with = [&](std::size_t at, char c) {
    std::string bytes = good;
    bytes[at] = c;
    return bytes;
  };
  const Damage damages[] = {
      {"empty", ""},
      {"the mark alone", good.substr(0, 8 + std::string_view(R"({"__metadata__":{"galley_weight_cache":")").size())},
      {"the header alone", good.substr(0, 400)},
      {"half of it", good.substr(0, good.size() / 2)},
      {"all but one byte", good.substr(0, good.size() - 1)},
      {"one byte too many", good + "x"},
      {"another version", with(version, '0')},
      {"another model", with(digest, good[digest] == '0' ? '1' : '0')},
      {"a broken header", with(digest + 64 + 3, '}')},
      {"a length beyond the file", with(6, '\x7F')},
  };
  for (const Damage& damage : damages) {
    io::WriteBytes(cache_, damage.bytes);
    EXPECT_TRUE(Uses(cache_)) << damage.what;
    EXPECT_TRUE(io::ReadBytes(cache_) == good) << damage.what << ": not written anew";
  }
}

TEST_F(WeightCacheTest, AChangedModelHasAnotherCache) {
  const io::TempDir copy;
  fs::copy(kProbe, copy.path(), fs::copy_options::recursive);
  ASSERT_TRUE(Uses(cache_, copy.path()));
  const std::string before = io::ReadBytes(cache_);
  for (const auto& entry : fs::directory_iterator(copy.path()))
    fs::last_write_time(entry.path(), fs::last_write_time(entry.path()) + std::chrono::seconds(5));
  EXPECT_TRUE(Uses(cache_, copy.path()));
  EXPECT_NE(io::ReadBytes(cache_), before);
}

TEST_F(WeightCacheTest, OtherFilesAreLeftAlone) {
  const io::TempDir other;
  ASSERT_TRUE(Uses(other / "cache"));
  const std::string cache = io::ReadBytes(other / "cache");
  std::vector<std::string> texts = {"my notes, which are longer than a mark would be; keep them"};
  for (std::size_t bytes = 1; bytes <= 9; ++bytes) texts.push_back(std::string("0 secret\n").substr(0, bytes));
  texts.push_back("12345678{");
  for (const std::size_t bytes : {5, 8, 20}) texts.push_back(cache.substr(0, bytes));  // too little to tell
  texts.push_back(io::SafetensorsBytes(R"({"x":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 4));
  for (const std::string& text : texts) {
    io::WriteBytes(cache_, text);
    const auto refused = OpenWithCache(kProbe, cache_);
    ASSERT_FALSE(refused) << text;
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(refused.error().message.find("no weight cache"), std::string::npos);
    EXPECT_EQ(io::ReadBytes(cache_), text);
  }
  const auto among = OpenWithCache(kProbe, kProbe / "cache.safetensors");
  ASSERT_FALSE(among);
  EXPECT_NE(among.error().message.find("among the model's own"), std::string::npos);
  EXPECT_FALSE(fs::exists(kProbe / "cache.safetensors"));
}

TEST_F(WeightCacheTest, ChangedWeightsAreNoticedWhenAsked) {
  ASSERT_TRUE(Uses(cache_));
  const std::string good = io::ReadBytes(cache_);
  for (const std::size_t at : {good.size() - 1, good.size() / 2}) {
    std::string changed = good;
    changed[at] = static_cast<char>(changed[at] ^ 1);
    io::WriteBytes(cache_, changed);
    ASSERT_TRUE(OpenWithCache(kProbe, cache_));
    EXPECT_TRUE(io::ReadBytes(cache_) == changed) << "not asked";
    const auto opened = OpenWithCache(kProbe, cache_, CacheCheck::kBytes);
    ASSERT_TRUE(opened);
    EXPECT_TRUE(SameTensors(*opened));
    EXPECT_TRUE(io::ReadBytes(cache_) == good) << "not written anew";
  }
}

TEST_F(WeightCacheTest, WhereItCannotBeWrittenTheModelStartsWithoutIt) {
  io::WriteBytes(dir_ / "file", "x");
  EXPECT_FALSE(Uses(dir_ / "no/such/folder/cache"));
  EXPECT_FALSE(Uses(dir_ / "file" / "cache"));
  fs::create_directory(dir_ / "folder");
  EXPECT_FALSE(Uses(dir_ / "folder"));
  ASSERT_EQ(mkfifo((dir_ / "pipe").c_str(), 0600), 0);
  EXPECT_FALSE(Uses(dir_ / "pipe"));  // and nobody waits for a writer
  EXPECT_TRUE(fs::is_fifo(dir_ / "pipe"));
}

// Runs `body` in a process of its own; true when it returns true and no test of it failed.
template <typename Body>
pid_t Fork(const Body& body) {
  const pid_t child = fork();
  if (child == 0) _exit(body() && !testing::Test::HasFailure() ? 0 : 1);
  return child;
}
bool Succeeded(pid_t child) {
  int status = -1;
  return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST_F(WeightCacheTest, ADiskThatIsFullLeavesNothingBehind) {
  EXPECT_TRUE(Succeeded(Fork([&] {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit = {100'000, 100'000};
    return setrlimit(RLIMIT_FSIZE, &limit) == 0 && !Uses(cache_);
  })));
  EXPECT_TRUE(Names().empty());
}

TEST_F(WeightCacheTest, ProcessesThatStartTogetherDoNotDisturbEachOther) {
  for (int round = 0; round < 5; ++round) {
    std::vector<pid_t> children;
    for (int i = 0; i < 3; ++i) children.push_back(Fork([&] { return Uses(cache_); }));
    for (const pid_t child : children) EXPECT_TRUE(Succeeded(child)) << "round " << round;
    EXPECT_EQ(Names(), std::vector<std::string>{"weights.cache"});
    fs::remove(cache_);
  }
}

// Experts are read from the cache's file, which is gone meanwhile; logits are the same bits as without one.
TEST_F(WeightCacheTest, MayBeDeletedWhileInUse) {
  std::vector<std::vector<float>> logits;
  for (const fs::path& cache : {fs::path(), cache_}) {
    auto loaded = LoadedModel::Load({.model_dir = kProbe,
                                     .device = {.backend = "cpu",
                                                .threads = 1,
                                                .experts = WeightPlace::kDisk,
                                                .expert_memory = 250'000,
                                                .weight_cache = cache},
                                     .rows_max = 16,
                                     .max_seq_len = 256});
    ASSERT_TRUE(loaded) << loaded.error().ToString();
    EXPECT_TRUE(cache.empty() || fs::remove(cache));
    Sequence sequence(*loaded);
    std::vector<TokenId> tokens = {5, 6, 7, 8};
    for (int i = 0; i < 6; ++i) {
      auto row = sequence.Append(tokens, 1);
      ASSERT_TRUE(row) << row.error().ToString();
      tokens = {static_cast<TokenId>(std::max_element(row->begin(), row->end()) - row->begin())};
      logits.push_back(std::move(*row));
    }
  }
  for (std::size_t i = 0; i < 6; ++i) EXPECT_EQ(logits[i], logits[i + 6]) << "token " << i;
}

}  // namespace
}  // namespace galley::engine
