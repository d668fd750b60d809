// SPDX-License-Identifier: Apache-2.0
#include "galley/model/tensor_list.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <set>

#include "galley/io/shard_set.h"
#include "galley/io/test_files.h"
#include "galley/model/test_configs.h"

namespace galley::model {
namespace {

const std::filesystem::path kSource = GALLEY_SOURCE_DIR;

// Both stored checkpoints came from another implementation, so that equality here is no tautology.
TEST(ImpliedTensors, AreExactlyThoseOfTheStoredCheckpoints) {
  struct Case {
    std::string_view dir;
    std::size_t tensors;
  };
  for (const Case& c : {Case{"models/nano", 815}, Case{"tests/golden/v41_probe", 888}}) {
    const std::filesystem::path dir = kSource / c.dir;
    const Config config = *ParseConfig(io::ReadBytes(dir / "config.json"), "config.json");
    std::map<std::string, std::pair<std::string, Shape>> stored;
    for (const io::ShardTensor& tensor : io::OpenShards(dir).tensors) {
      stored[tensor.entry.name] = {tensor.entry.dtype, tensor.entry.shape};
    }
    EXPECT_EQ(stored.size(), c.tensors);
    for (const ImpliedTensor& tensor : ImpliedTensors(config)) {
      const auto found = stored.find(tensor.name);
      ASSERT_NE(found, stored.end()) << tensor.name;
      EXPECT_EQ(found->second.first, Info(tensor.dtype).safetensors_name) << tensor.name;
      EXPECT_EQ(found->second.second, tensor.shape) << tensor.name;
      stored.erase(found);
    }
    EXPECT_TRUE(stored.empty()) << stored.begin()->first;
  }
}

// Counts and bytes of the published checkpoint.
TEST(ImpliedTensors, CountsOfTheRealModel) {
  const std::vector<ImpliedTensor> list = ImpliedTensors(*ParseConfig(FlashConfigJson(), "config.json"));
  EXPECT_EQ(list.size(), 96'085u);
  std::set<std::string_view> names;
  std::int64_t bytes = 0, draft = 0, vision = 0;
  for (const ImpliedTensor& tensor : list) {
    EXPECT_TRUE(names.insert(tensor.name).second) << tensor.name;
    bytes += ElementCount(tensor.shape) * static_cast<std::int64_t>(Info(tensor.dtype).bytes);
    draft += tensor.part == Part::kDraft;
    vision += tensor.part == Part::kVision;
  }
  EXPECT_EQ(bytes, 510'286'023'000);
  EXPECT_EQ(draft, 2'401);
  EXPECT_EQ(vision, 266);
}

TEST(ImpliedTensors, ShapesOfTheRealModel) {
  struct Row {
    DType dtype;
    Shape shape;
  };
  std::map<std::string, Row> list;
  for (ImpliedTensor& tensor : ImpliedTensors(*ParseConfig(FlashConfigJson(), "config.json"))) {
    list[tensor.name] = {tensor.dtype, tensor.shape};
  }
  const auto expect = [&](const std::string& name, DType dtype, const Shape& shape) {
    ASSERT_TRUE(list.contains(name)) << name;
    EXPECT_EQ(list[name].dtype, dtype) << name;
    EXPECT_EQ(list[name].shape, shape) << name;
  };
  expect("layers.39.attn.wo_a.weight", DType::kF8E4M3, {8192, 4096});
  expect("layers.39.attn.wo_a.scale", DType::kE8M0, {256, 128});
  expect("layers.0.ffn.experts.383.w2.weight", DType::kI8, {5120, 1152});
  expect("layers.0.ffn.experts.383.w2.scale", DType::kE8M0, {5120, 72});
  expect("layers.36.attn.indexer.weights_proj.weight", DType::kBF16, {32, 5120});
  expect("layers.14.engram.embed.weight", DType::kF8E4M3, {384016682, 256});
  expect("layers.14.engram.wkv.weight", DType::kF8E4M3, {25600, 6144});
  expect("layers.5.hc_ffn_fn", DType::kF32, {24, 20480});
  expect("layers.8.attn.compressor.wgate.weight", DType::kBF16, {512, 5120});
  expect("mtp.0.main_proj.weight", DType::kF8E4M3, {5120, 15360});
  expect("mtp.2.confidence_head.proj.weight", DType::kBF16, {1, 5376});
  expect("vision.blocks.31.mlp.w1.weight", DType::kBF16, {5632, 1024});
  expect("aligner.w1.weight", DType::kBF16, {5120, 9216});
  for (const std::string absent : {"layers.20.attn.compressor.wgate.weight",  // ratio 1 needs no gate
                                   "layers.24.attn.indexer.wk.weight",        // scores layer 20's keys
                                   "layers.3.attn.indexer.wq_b.weight", "layers.2.engram.wkv.weight",
                                   "mtp.1.norm.weight", "mtp.1.main_proj.weight"}) {
    EXPECT_FALSE(list.contains(absent)) << absent;
  }
}

TEST(ImpliedTensors, EveryPartHasAName) {
  std::set<std::string_view> names;
  for (int i = 0; i < kParts; ++i) EXPECT_TRUE(names.insert(Name(static_cast<Part>(i))).second);
}

}  // namespace
}  // namespace galley::model
