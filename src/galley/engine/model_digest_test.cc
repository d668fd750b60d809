// SPDX-License-Identifier: Apache-2.0
#include "galley/engine/model_digest.h"

#include <gtest/gtest.h>

#include <chrono>
#include <fstream>

#include "galley/io/test_files.h"

namespace galley::engine {
namespace {

// A directory with two small tensor files, a configuration and a tokenizer, all of one time.
class ModelDigestTest : public ::testing::Test {
 protected:
  ModelDigestTest() { Fill(dir_.path()); }

  void Fill(const std::filesystem::path& dir) const {
    Write(dir / "config.json", "{}");
    Write(dir / "tokenizer.json", "{\"model\": 1}");
    Write(dir / "a.safetensors", io::SafetensorsBytes("{\"x\": 1}", 16));
    Write(dir / "b.safetensors", io::SafetensorsBytes("{\"y\": 2}", 32));
  }
  void Write(const std::filesystem::path& path, const std::string& bytes) const {
    io::WriteBytes(path, bytes);
    std::filesystem::last_write_time(path, time_);
  }
  static ModelDigest Of(const std::filesystem::path& dir) {
    const auto digest = DigestModel(dir);
    EXPECT_TRUE(digest) << digest.error().ToString();
    return digest ? *digest : ModelDigest{};
  }

  io::TempDir dir_;
  std::filesystem::file_time_type time_ = std::filesystem::file_time_type::clock::now();
};

TEST_F(ModelDigestTest, IsTheSameWhereverTheModelLies) {
  const io::TempDir other;
  Fill(other.path());
  EXPECT_EQ(Of(dir_.path()).weights, Of(other.path()).weights);
  EXPECT_EQ(Of(dir_.path()).tokenizer, Of(other.path()).tokenizer);
}

TEST_F(ModelDigestTest, WhateverTellsWeightsApartChangesIt) {
  const ModelDigest before = Of(dir_.path());
  std::vector<kv::Digest> seen = {before.weights};
  const auto differs = [&](const char* what) {
    const ModelDigest now = Of(dir_.path());
    for (const kv::Digest& digest : seen) EXPECT_NE(now.weights, digest) << what;
    EXPECT_EQ(now.tokenizer, before.tokenizer) << what;
    seen.push_back(now.weights);
  };
  Write(dir_ / "config.json", "{\"dim\": 1}");
  differs("configuration");
  Write(dir_ / "a.safetensors", io::SafetensorsBytes("{\"z\": 1}", 16));
  differs("header");
  Write(dir_ / "b.safetensors", io::SafetensorsBytes("{\"y\": 2}", 33));
  differs("size");
  std::filesystem::last_write_time(dir_ / "b.safetensors", time_ + std::chrono::milliseconds(5));
  differs("time");
  std::filesystem::rename(dir_ / "a.safetensors", dir_ / "c.safetensors");
  differs("name");
}

TEST_F(ModelDigestTest, TokenizerCountsByItsBytes) {
  const ModelDigest before = Of(dir_.path());
  Write(dir_ / "tokenizer.json", "{\"model\": 2}");
  EXPECT_EQ(Of(dir_.path()).weights, before.weights);
  EXPECT_NE(Of(dir_.path()).tokenizer, before.tokenizer);
}

TEST_F(ModelDigestTest, DamagedFilesAreNoCrash) {
  Write(dir_ / "a.safetensors", "abc");
  Write(dir_ / "b.safetensors", io::LengthPrefix(std::uint64_t{1} << 60) + "{");
  (void)Of(dir_.path());
  std::filesystem::remove(dir_ / "tokenizer.json");
  EXPECT_FALSE(DigestModel(dir_.path()));
}

// A second file of 64 MiB and a bit, so that pieces have a border.
TEST_F(ModelDigestTest, EveryByteOfTheWeightsCounts) {
  const std::uint64_t long_bytes = (std::uint64_t{64} << 20) + 5;
  Write(dir_ / "b.safetensors", "x");
  std::filesystem::resize_file(dir_ / "b.safetensors", long_bytes);
  std::uint64_t told = 0;
  const auto digest = [&](int threads) {
    const auto result = DigestWeights(dir_.path(), threads, [&](std::uint64_t done, std::uint64_t total) {
      EXPECT_GT(done, told);
      told = done == total ? 0 : done;
      return true;
    });
    EXPECT_TRUE(result) << result.error().ToString();
    return result ? result->ToHex() : "";
  };
  const std::string whole = digest(1);
  EXPECT_EQ(whole.size(), 64u);
  EXPECT_EQ(told, 0u) << "the last word is all of it";
  EXPECT_EQ(digest(3), whole);
  std::filesystem::last_write_time(dir_ / "a.safetensors", time_ + std::chrono::hours(1));
  EXPECT_EQ(digest(3), whole) << "a copy has other times";

  for (const std::uint64_t at : {std::uint64_t{0}, long_bytes - 6, long_bytes - 1}) {
    const auto flip = [&] {
      std::fstream file(dir_ / "b.safetensors", std::ios::in | std::ios::out | std::ios::binary);
      file.seekg(static_cast<std::streamoff>(at));
      const int byte = file.get();
      file.seekp(static_cast<std::streamoff>(at));
      file.put(static_cast<char>(byte ^ 1));
    };
    flip();
    EXPECT_NE(digest(2), whole) << at;
    flip();
  }
  EXPECT_EQ(digest(2), whole);
  std::filesystem::rename(dir_ / "b.safetensors", dir_ / "c.safetensors");
  EXPECT_NE(digest(2), whole) << "another name";
}

TEST_F(ModelDigestTest, WeightsThatCannotBeReadAreAnError) {
  const auto code = [this](bool go_on) {
    const auto result = DigestWeights(dir_.path(), 2, [go_on](std::uint64_t, std::uint64_t) { return go_on; });
    return result ? ErrorCode::kInternal : result.error().code;
  };
  EXPECT_EQ(code(false), ErrorCode::kCancelled);
  std::filesystem::remove(dir_ / "a.safetensors");
  std::filesystem::create_directory(dir_ / "a.safetensors");
  EXPECT_EQ(code(true), ErrorCode::kIo);
  std::filesystem::remove(dir_ / "a.safetensors");
  std::filesystem::remove(dir_ / "b.safetensors");
  EXPECT_EQ(code(true), ErrorCode::kNotFound);
}

}  // namespace
}  // namespace galley::engine
