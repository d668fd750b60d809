// SPDX-License-Identifier: Apache-2.0
// Where experts and Engram's tables lie changes no bit: nano with each combination against all of it on the device,
// and which of them record their steps. On a GPU (tests/gpu/run.sh).
#include <gtest/gtest.h>

#include <fmt/core.h>

#include <algorithm>
#include <vector>

#include "galley/backend/cuda/cuda_backend.h"
#include "galley/engine/dump.h"
#include "galley/engine/loaded_model.h"
#include "galley/engine/sequence.h"

namespace galley::golden {
namespace {

using engine::WeightPlace;
const std::filesystem::path kNano = std::filesystem::path(GALLEY_SOURCE_DIR) / "models/nano";
constexpr int kPrompt = 40, kDecoded = 40;

struct Placement {
  const char* name;
  WeightPlace experts, engram;
  std::int64_t expert_cache = 0;
};
constexpr WeightPlace kDevice = WeightPlace::kDevice, kHost = WeightPlace::kHost, kDisk = WeightPlace::kDisk;
constexpr Placement kPlacements[] = {
    {"device_host", kDevice, kHost},
    {"device_disk", kDevice, kDisk},
    {"host_device", kHost, kDevice},
    {"host_host", kHost, kHost},
    {"host_disk", kHost, kDisk},
    {"disk_device", kDisk, kDevice},
    {"disk_host", kDisk, kHost},
    {"disk_disk", kDisk, kDisk},
    // Room for a few of the 76 experts, which come and go.
    {"cache_device", kHost, kDevice, 600'000},
    {"cache_disk", kHost, kDisk, 600'000},
    {"disk_cache_host", kDisk, kHost, 600'000},
};

engine::DeviceOptions DeviceOf(const Placement& placement) {
  return {.backend = "cuda",
          .experts = placement.experts,
          .expert_memory = 6 * 25 * 4096,  // of 25 units each, as golden_test.cc counts them
          .expert_cache = placement.expert_cache,
          .engram = placement.engram};
}

std::vector<TokenId> Prompt() {
  std::vector<TokenId> ids;
  for (int i = 0; i < kPrompt; ++i) ids.push_back(100 + 7 * i);
  return ids;
}

struct Decoded {
  std::vector<TokenId> tokens;
  std::vector<float> logits;  // of every step
  backend::CudaGraphCounts graphs;
};

// A prompt and greedy decoding, one token a step.
Decoded Decode(const Placement& placement) {
  Decoded decoded;
  auto loaded = engine::LoadedModel::Load(
      {.model_dir = kNano, .device = DeviceOf(placement), .rows_max = kPrompt, .max_seq_len = 256});
  EXPECT_TRUE(loaded) << loaded.error().ToString();
  if (!loaded) return decoded;
  engine::Sequence sequence(*loaded);
  std::vector<TokenId> next = Prompt();
  for (int step = 0; step < kDecoded; ++step) {
    const auto logits = sequence.Append(next, 1);
    EXPECT_TRUE(logits) << logits.error().ToString();
    if (!logits) return decoded;
    decoded.logits.insert(decoded.logits.end(), logits->begin(), logits->end());
    next = {static_cast<TokenId>(std::max_element(logits->begin(), logits->end()) - logits->begin())};
    decoded.tokens.push_back(next[0]);
  }
  decoded.graphs = backend::GraphCountsOf(loaded->backend());
  return decoded;
}

class PlacementOf : public testing::TestWithParam<Placement> {};

TEST_P(PlacementOf, DecodesTheSameBits) {
  static const Decoded kAllOnDevice = Decode({"device_device", kDevice, kDevice});
  const Placement& placement = GetParam();
  const Decoded decoded = Decode(placement);
  EXPECT_EQ(decoded.tokens, kAllOnDevice.tokens);
  EXPECT_TRUE(decoded.logits == kAllOnDevice.logits);
  // Copying what the router chose cannot be part of a recorded step; everything else is.
  const bool copies = placement.experts == kDisk || placement.expert_cache > 0;
  EXPECT_EQ(decoded.graphs.on, !copies);
  EXPECT_EQ(decoded.graphs.recorded > 0, !copies);
  if (!copies) {
    EXPECT_GT(decoded.graphs.replayed, kDecoded / 2);
  }
}

// Every tensor of a prompt, drafts and a continuation.
TEST_P(PlacementOf, GivesTheSameTensors) {
  const auto dump = [](const Placement& placement) {
    engine::DumpOptions options;
    options.model_dir = kNano;
    options.ids = Prompt();
    options.device = DeviceOf(placement);
    options.greedy = 8;
    return engine::Dump(options);
  };
  static const auto kAllOnDevice = dump({"device_device", kDevice, kDevice});
  ASSERT_TRUE(kAllOnDevice) << kAllOnDevice.error().ToString();
  const auto tensors = dump(GetParam());
  ASSERT_TRUE(tensors) << tensors.error().ToString();
  ASSERT_EQ(tensors->size(), kAllOnDevice->size());
  for (const auto& [name, tensor] : *kAllOnDevice) EXPECT_EQ(tensor.data, tensors->at(name).data) << name;
}

INSTANTIATE_TEST_SUITE_P(Cuda, PlacementOf, testing::ValuesIn(kPlacements),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace galley::golden
