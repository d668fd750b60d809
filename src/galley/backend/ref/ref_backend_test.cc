// SPDX-License-Identifier: Apache-2.0
#include "galley/backend/ref/ref_backend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "galley/tensor/quantize.h"

namespace galley::backend {
namespace {

// Weights may hold any bits. Experts without a comparable score come last, in ascending order like all equals.
TEST(RefBackend, RouterOrdersNanAndInfinity) {
  constexpr int kExperts = 64, kDim = 32, kTopk = 5;
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();
  RefBackend backend(1);
  const std::vector<BFloat16> x(kDim, ToBFloat16(1.0f));
  std::vector<BFloat16> gate(kExperts * kDim);  // zero: every score is sqrt(softplus(0)), 0.83
  for (int d = 0; d < kDim; ++d) gate[7 * kDim + d] = ToBFloat16(kNan);
  std::vector<float> bias(kExperts, -kInf);
  for (std::size_t e = 0; e < kExperts; e += 2) bias[e] = kNan;
  bias[31] = 0;
  bias[7] = 5;  // of the expert whose score is NaN
  bias[9] = kInf;
  const std::int32_t sequence = 0;
  std::array<std::int32_t, kTopk> experts{};
  std::array<float, kTopk> weights{};
  backend.Route({.step = {.rows = 1, .sequences = 1, .row_sequence = &sequence},
                 .x = x.data(),
                 .gate = {.format = WeightFormat::kBF16, .rows = kExperts, .cols = kDim, .data = gate.data()},
                 .bias = bias.data(),
                 .topk = kTopk,
                 .experts = experts.data(),
                 .weights = weights.data()});
  EXPECT_THAT(experts, testing::ElementsAre(9, 31, 0, 1, 2));
}

// Memory and time of attention follow the rows that exist, not the places that a config reserves: here 65,536 of the
// window and 2^20 of the list, of 4,096 values each, would be 17 GB.
TEST(RefBackend, UnusedPlacesOfAttentionCostNothing) {
  constexpr int kHeadDim = 4096, kWindow = 1 << 16, kTopk = 1 << 20;
  RefBackend backend(1);
  const std::vector<float> values(kHeadDim, 0.5f);
  std::vector<std::uint8_t> record(WindowRecordBytes(kHeadDim));
  QuantizeFp8(values, record.data(), record.data() + kHeadDim);
  const std::vector<BFloat16> q(kHeadDim, ToBFloat16(0.0f));  // the score of the only row is 0
  const std::vector<std::int32_t> list(kTopk, -1);
  const std::int32_t position = 0, sequence = 0;
  const SequenceEntry entry{.rows = 1};
  const float sink = std::log(3.0f);
  std::vector<BFloat16> out(kHeadDim);
  backend.Attention(
      {.step = {.rows = 1, .sequences = 1, .positions = &position, .row_sequence = &sequence, .table = &entry},
       .q = q.data(),
       .window = record.data(),
       .ring = {.rows = kWindow, .row_bytes = record.size()},
       .window_size = kWindow,
       .window_places = kWindow,
       .heads = 1,
       .head_dim = kHeadDim,
       .sink = &sink,
       .rope = {},
       .list = list.data(),
       .topk = kTopk,
       .slab = {},
       .out = out.data()});
  for (const BFloat16 value : out) ASSERT_EQ(ToFloat(value), 0.125f);  // 0.5 * 1 / (1 + 3)
}

}  // namespace
}  // namespace galley::backend
