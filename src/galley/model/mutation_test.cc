// SPDX-License-Identifier: Apache-2.0
// Damaged checkpoints, drawn from a seed: whatever happens to the bytes that describe a model, opening it either fails
// with an error that says something or gives views that lie inside the files.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "galley/io/test_files.h"
#include "galley/model/checkpoint.h"
#include "galley/model/inspect.h"

namespace galley::model {
namespace {

constexpr std::uint64_t kSeed = 20261129;

class Mutation : public testing::Test {
 protected:
  Mutation() {
    std::filesystem::copy(std::filesystem::path(GALLEY_SOURCE_DIR) / "tests/golden/v41_probe", dir_.path(),
                          std::filesystem::copy_options::recursive);
    RecordProperty("seed", std::to_string(kSeed));
  }

  // Whether the model opened.
  bool Open(const std::string& what) {
    SCOPED_TRACE(what + ", seed " + std::to_string(kSeed));
    const Result<Checkpoint> opened = Checkpoint::Open(dir_.path());
    if (!opened) {
      EXPECT_FALSE(opened.error().message.empty());
      EXPECT_LT(opened.error().message.size(), 100'000u);
      EXPECT_NE(opened.error().code, ErrorCode::kInternal);
      return false;
    }
    for (const ImpliedTensor& tensor : ImpliedTensors(opened->config())) {
      const TensorView view = opened->Find(tensor.name);
      EXPECT_FALSE(view.empty()) << tensor.name;
      EXPECT_EQ(view.shape, tensor.shape) << tensor.name;
      touched_ += std::to_integer<int>(view.data[0]) + std::to_integer<int>(view.data[view.bytes() - 1]);
    }
    return true;
  }

  std::uint64_t Draw(std::uint64_t below) {
    return std::uniform_int_distribution<std::uint64_t>(0, below - 1)(random_);
  }

  // A byte that is likely to mean something to a JSON parser, or any byte at all.
  char DrawByte() {
    constexpr std::string_view kLikely = "0123456789-+.eE\"\\{}[],: \n\xFF";
    return Draw(2) == 0 ? kLikely[Draw(kLikely.size())] : static_cast<char>(Draw(256));
  }

  io::TempDir dir_;
  std::mt19937_64 random_{kSeed};
  int touched_ = 0;  // keeps the reads of tensor bytes alive
};

TEST_F(Mutation, BytesOfTheShardHeader) {
  const std::filesystem::path path = dir_ / "model-00001-of-00002.safetensors";
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  constexpr std::uint64_t kHeader = 8 + 85768;  // length prefix and header of the probe's first shard
  int opened = 0;
  for (int round = 0; round < 100; ++round) {
    std::vector<std::pair<std::streamoff, char>> old;
    const std::uint64_t changes = 1 + Draw(3);
    for (std::uint64_t i = 0; i < changes; ++i) {
      const auto at = static_cast<std::streamoff>(Draw(10) == 0 ? Draw(8) : Draw(kHeader));
      file.seekg(at);
      old.emplace_back(at, static_cast<char>(file.get()));
      file.seekp(at);
      file.put(DrawByte());
    }
    file.flush();
    opened += Open("round " + std::to_string(round));
    for (auto change = old.rbegin(); change != old.rend(); ++change) {
      file.seekp(change->first);
      file.put(change->second);
    }
    file.flush();
  }
  EXPECT_TRUE(Open("restored"));
  EXPECT_LT(opened, 20);  // most damage is noticed; spaces and equal bytes are not damage
}

TEST_F(Mutation, BytesOfConfigAndIndex) {
  for (const std::string_view name : {"config.json", "inference/config.json", "model.safetensors.index.json"}) {
    const std::string whole = io::ReadBytes(dir_ / name);
    for (int round = 0; round < 40; ++round) {
      std::string damaged = whole;
      const std::uint64_t changes = 1 + Draw(3);
      for (std::uint64_t i = 0; i < changes; ++i) damaged[Draw(damaged.size())] = DrawByte();
      if (Draw(8) == 0) damaged.resize(Draw(damaged.size()));
      if (Draw(8) == 0) damaged.insert(Draw(damaged.size() + 1), 1, DrawByte());
      io::WriteBytes(dir_ / name, damaged);
      Open(std::string(name) + " round " + std::to_string(round));
    }
    io::WriteBytes(dir_ / name, whole);
  }
  EXPECT_TRUE(Open("restored"));
}

TEST_F(Mutation, LengthsOfEveryFile) {
  for (const std::string_view name : {"config.json", "inference/config.json", "model.safetensors.index.json",
                                      "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"}) {
    const std::string whole = io::ReadBytes(dir_ / name);
    for (int round = 0; round < 8; ++round) {
      const std::size_t size = round == 0 ? 0 : round == 1 ? whole.size() - 1 : Draw(whole.size() - 1);
      std::filesystem::resize_file(dir_ / name, size);
      // Without its last byte, a line end, a text file is still whole.
      const bool line_end = size + 1 == whole.size() && name.ends_with("json");
      EXPECT_EQ(Open(std::string(name) + " cut to " + std::to_string(size)), line_end);
      EXPECT_EQ(Inspect(dir_.path()).ok(), line_end);
      io::WriteBytes(dir_ / name, whole);
    }
  }
  EXPECT_TRUE(Open("restored"));
}

}  // namespace
}  // namespace galley::model
