// SPDX-License-Identifier: Apache-2.0
// A checkpoint with the headers of the real V4.1-Flash, 96,085 tensors and 510 GB, whose weights are holes: opening
// must cost what the headers cost.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "galley/io/test_files.h"
#include "galley/model/checkpoint.h"
#include "galley/model/inspect.h"
#include "galley/model/test_configs.h"

namespace galley::model {
namespace {

constexpr std::int64_t kShardBytes = 6'700'000'000;  // as in the published checkpoint; larger tensors are alone

struct Shard {
  std::string header = "{";
  std::int64_t bytes = 0;
};

// Writes header and hole. False when the file system cannot hold such a file.
bool WriteShard(const std::filesystem::path& path, Shard& shard) {
  shard.header += '}';
  shard.header.append((8 - shard.header.size() % 8) % 8, ' ');
  io::WriteBytes(path, io::SafetensorsBytes(shard.header, 0));
  return ::truncate(path.c_str(), static_cast<off_t>(8 + shard.header.size()) + shard.bytes) == 0;
}

// The tensors of each shard follow by falling element size, so that all are aligned.
bool WriteCheckpoint(const io::TempDir& dir) {
  io::WriteBytes(dir / "config.json", FlashConfigJson());
  std::vector<ImpliedTensor> list = ImpliedTensors(*ParseConfig(FlashConfigJson(), "config.json"));
  std::stable_sort(list.begin(), list.end(), [](const ImpliedTensor& a, const ImpliedTensor& b) {
    return Info(a.dtype).bytes > Info(b.dtype).bytes;
  });
  std::vector<Shard> shards(1);
  std::string index = "{\"weight_map\": {";
  for (const ImpliedTensor& tensor : list) {
    const std::int64_t bytes = ElementCount(tensor.shape) * static_cast<std::int64_t>(Info(tensor.dtype).bytes);
    if (shards.back().bytes + bytes > kShardBytes && shards.back().bytes > 0) shards.emplace_back();
    Shard& shard = shards.back();
    std::string shape = ToString(tensor.shape);
    shard.header +=
        fmt::format(R"({}"{}":{{"dtype":"{}","shape":{},"data_offsets":[{},{}]}})", shard.header.size() > 1 ? "," : "",
                    tensor.name, Info(tensor.dtype).safetensors_name, shape, shard.bytes, shard.bytes + bytes);
    shard.bytes += bytes;
    index += fmt::format("{}\n\"{}\": \"model-{:05}.safetensors\"", index.back() == '{' ? "" : ",", tensor.name,
                         shards.size());
  }
  io::WriteBytes(dir / "model.safetensors.index.json", index + "}}");
  for (std::size_t i = 0; i < shards.size(); ++i) {
    if (!WriteShard(dir / fmt::format("model-{:05}.safetensors", i + 1), shards[i])) return false;
  }
  return true;
}

TEST(FullSize, OpensInAboutTheTimeOfItsHeaders) {
  const io::TempDir dir;
  if (!WriteCheckpoint(dir)) GTEST_SKIP() << "this file system does not hold files of 200 GB with holes";
  const auto start = std::chrono::steady_clock::now();
  const Result<Checkpoint> opened = Checkpoint::Open(dir.path());
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  ASSERT_TRUE(opened) << opened.error().ToString();
  RecordProperty("open_seconds", std::to_string(took.count()));
  std::printf("opened in %.2f s\n", took.count());
  EXPECT_LT(took.count(), 20);  // about one second when nothing else runs
  const TensorView table = opened->Find("layers.14.engram.embed.weight");
  EXPECT_EQ(table.shape, (Shape{384016682, 256}));
  EXPECT_EQ(table.data[table.bytes() - 1], std::byte{0});  // the last byte of 98 GB of holes
  const InspectReport report = Inspect(dir.path());
  EXPECT_TRUE(report.ok());
  EXPECT_EQ(report.tensors, 96'085);
  EXPECT_GT(report.file_bytes, 510'286'023'000);
}

// The largest list of problems there can be is still a message that a person can read.
TEST(FullSize, MissingShardsMakeAShortMessage) {
  const io::TempDir dir;
  if (!WriteCheckpoint(dir)) GTEST_SKIP() << "this file system does not hold files of 200 GB with holes";
  std::filesystem::remove(dir / "model-00002.safetensors");
  const Result<Checkpoint> opened = Checkpoint::Open(dir.path());
  ASSERT_FALSE(opened);
  EXPECT_LT(opened.error().message.size(), 500u) << opened.error().message;
}

}  // namespace
}  // namespace galley::model
