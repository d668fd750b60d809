// SPDX-License-Identifier: Apache-2.0
#include "galley/model/random_weights.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <set>
#include <span>

#include "galley/model/config.h"
#include "galley/model/tensor_list.h"
#include "galley/tensor/numeric.h"

namespace galley::model {
namespace {

Config Nano() {
  return Checkpoint::Open(std::filesystem::path(GALLEY_SOURCE_DIR) / "models/nano")->config();
}

std::span<const std::byte> BytesOf(const TensorView& tensor) {
  return {tensor.data, tensor.bytes()};
}

TEST(RandomWeights, HasEveryImpliedTensor) {
  const Config config = Nano();
  const Checkpoint checkpoint = RandomCheckpoint(config, 1);
  EXPECT_TRUE(checkpoint.files().empty());
  for (const ImpliedTensor& implied : ImpliedTensors(config)) {
    const TensorView tensor = checkpoint.Find(implied.name);
    ASSERT_FALSE(tensor.empty()) << implied.name;
    EXPECT_EQ(tensor.dtype, implied.dtype) << implied.name;
    EXPECT_EQ(tensor.shape, implied.shape) << implied.name;
  }
}

TEST(RandomWeights, ValuesAreNumbersOfModestSize) {
  const Config config = Nano();
  const Checkpoint checkpoint = RandomCheckpoint(config, 2);
  for (const ImpliedTensor& implied : ImpliedTensors(config)) {
    const TensorView tensor = checkpoint.Find(implied.name);
    std::set<std::byte> seen;
    for (const std::byte byte : BytesOf(tensor)) seen.insert(byte);
    if (tensor.dtype == DType::kF8E4M3) {
      EXPECT_FALSE(seen.contains(std::byte{0x7F}) || seen.contains(std::byte{0xFF})) << implied.name << " holds NaN";
    }
    if (tensor.dtype == DType::kE8M0) {
      EXPECT_GE(*seen.begin(), std::byte{0x70}) << implied.name;
      EXPECT_LE(*seen.rbegin(), std::byte{0x80}) << implied.name;
    }
    if (tensor.dtype == DType::kBF16) {
      for (const BFloat16 value : std::span(tensor.as<BFloat16>(), static_cast<std::size_t>(tensor.elements())))
        ASSERT_LE(std::abs(ToFloat(value)), 1.0f) << implied.name;
    }
    if (tensor.dtype == DType::kF32) {
      for (const float value : std::span(tensor.as<float>(), static_cast<std::size_t>(tensor.elements())))
        ASSERT_LE(std::abs(value), 0.1f) << implied.name;
    }
  }
}

TEST(RandomWeights, FollowTheSeed) {
  const Config config = Nano();
  const Checkpoint one = RandomCheckpoint(config, 3), same = RandomCheckpoint(config, 3),
                   other = RandomCheckpoint(config, 4);
  int differ = 0;
  for (const ImpliedTensor& implied : ImpliedTensors(config)) {
    const auto bytes = BytesOf(one.Find(implied.name));
    EXPECT_EQ(std::memcmp(bytes.data(), same.Find(implied.name).data, bytes.size()), 0) << implied.name;
    if (std::memcmp(bytes.data(), other.Find(implied.name).data, bytes.size()) != 0) ++differ;
  }
  EXPECT_GT(differ, 100);
}

}  // namespace
}  // namespace galley::model
