// SPDX-License-Identifier: Apache-2.0
#include "galley/engine/model_digest.h"

#include <gtest/gtest.h>

#include <chrono>

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

}  // namespace
}  // namespace galley::engine
