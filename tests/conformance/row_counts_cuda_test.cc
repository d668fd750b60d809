// SPDX-License-Identifier: Apache-2.0
// Products with few rows, with many and with those between run in kernels of different shapes; a row has the same bits
// in all of them.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "galley/backend/cuda/cuda_backend.h"
#include "op_rig.h"

namespace galley::conformance {
namespace {

using backend::WeightFormat;
constexpr int kRowCounts[] = {1100, 1, 5, 8, 13, 16, 20, 40, 64, 70, 128, 200, 300};
constexpr int kRowsMax = kRowCounts[0];

// The outputs of the smaller row counts are what the first one's begin with.
void ExpectPrefixes(OpRig& rig, std::size_t outputs_each) {
  const auto finished = rig.Finish();
  ASSERT_TRUE(finished) << finished.error().ToString();
  const std::vector<Output>& all = *finished;
  for (std::size_t i = outputs_each; i < all.size(); ++i) {
    const Output& whole = all[i % outputs_each];
    EXPECT_EQ(std::memcmp(all[i].bytes.data(), whole.bytes.data(), all[i].bytes.size()), 0)
        << all[i].name << " of " << kRowCounts[i / outputs_each] << " rows";
  }
}

std::unique_ptr<backend::Backend> Make() {
  auto made = backend::MakeCudaBackend({});
  CHECK(made) << made.error().ToString();
  return std::move(*made);
}

// One sequence, of which a step holds the first rows.
backend::StepView StepOf(OpRig& rig, int rows) {
  std::vector<std::int32_t> positions, zeros(static_cast<std::size_t>(rows));
  for (int i = 0; i < rows; ++i) positions.push_back(1000 + i);
  return {.rows = rows,
          .sequences = 1,
          .tokens = rig.Place(zeros),
          .positions = rig.Place(positions),
          .row_sequence = rig.Place(zeros),
          .table = rig.Place(std::vector<backend::SequenceEntry>{{.slot = 0, .rows = rows, .start = 1000}}),
          .blocks = rig.Place(zeros)};
}

TEST(RowCounts, AttnIn) {
  const auto cuda = Make();
  OpRig rig(*cuda, 3);
  constexpr int kDim = 5120, kRank = 1280, kHeads = 24;
  const auto wq_a = rig.Matrix(WeightFormat::kFp8Block32, kRank, kDim),
             wq_b = rig.Matrix(WeightFormat::kFp8Block32, kHeads * 512, kRank),
             wkv = rig.Matrix(WeightFormat::kFp8Block32, 512, kDim);
  const auto *x = rig.Normals(kRowsMax * kDim), *q_norm = rig.Normals(kRank), *kv_norm = rig.Normals(512);
  std::vector<float> frequencies;
  for (int i = 0; i < 32; ++i) frequencies.push_back(std::pow(10000.0f, -static_cast<float>(i) / 32.0f));
  const backend::Rope rope{.frequencies = rig.Place(frequencies), .dims = 64};
  for (const int rows : kRowCounts) {
    const auto t = static_cast<std::size_t>(rows);
    cuda->AttnIn({.step = StepOf(rig, rows),
                  .x = x,
                  .wq_a = wq_a,
                  .wq_b = wq_b,
                  .wkv = wkv,
                  .q_norm = q_norm,
                  .kv_norm = kv_norm,
                  .heads = kHeads,
                  .head_dim = 512,
                  .eps = 1e-20f,
                  .rope = rope,
                  .qr = rig.Out<BFloat16>("qr", t, kRank, Check::kExact),
                  .q = rig.Out<BFloat16>("q", t, kHeads * 512, Check::kExact),
                  .window = rig.Out<std::uint8_t>("window", t, 528, Check::kExact)});
  }
  ExpectPrefixes(rig, 3);
}

TEST(RowCounts, AttnOut) {
  const auto cuda = Make();
  OpRig rig(*cuda, 4);
  constexpr int kGroups = 4, kWidth = 4096, kRank = 1024, kDim = 1280;
  const auto wo_a = rig.Matrix(WeightFormat::kFp8Block32, kGroups * kRank, kWidth),
             wo_b = rig.Matrix(WeightFormat::kFp8Block32, kDim, kGroups * kRank);
  const auto* o = rig.Normals(std::size_t{kRowsMax} * kGroups * kWidth);
  for (const int rows : kRowCounts) {
    auto* y = rig.Out<BFloat16>("y", static_cast<std::size_t>(rows), kDim, Check::kExact);
    cuda->AttnOut({.rows = rows, .groups = kGroups, .o = o, .wo_a = wo_a, .wo_b = wo_b, .y = y});
  }
  ExpectPrefixes(rig, 1);
}

TEST(RowCounts, Route) {
  const auto cuda = Make();
  OpRig rig(*cuda, 6);
  constexpr int kExperts = 384, kDim = 7168, kTopk = 6;
  const auto gate = rig.Matrix(WeightFormat::kBF16, kExperts, kDim);
  const auto* x = rig.Normals(std::size_t{kRowsMax} * kDim);
  const auto* bias = rig.Floats(kExperts, 0.1f);
  for (const int rows : kRowCounts) {
    const auto t = static_cast<std::size_t>(rows);
    cuda->Route({.step = StepOf(rig, rows),
                 .x = x,
                 .gate = gate,
                 .bias = bias,
                 .topk = kTopk,
                 .temperature = 1,
                 .scale = 1.5f,
                 .experts = rig.Out<std::int32_t>("experts", t, kTopk, Check::kExact),
                 .weights = rig.Out<float>("weights", t, kTopk, Check::kExact)});
  }
  ExpectPrefixes(rig, 2);
}

// Experts with few rows, with some and with many, and from 9 rows on other kernels.
TEST(RowCounts, Moe) {
  const auto cuda = Make();
  OpRig rig(*cuda, 7);
  constexpr int kExperts = 48, kTopk = 6, kDim = 512, kInter = 256;
  const auto expert = [&](WeightFormat format, backend::MatrixUse use) -> backend::ExpertWeights {
    return {.w1 = rig.Matrix(format, kInter, kDim, use),
            .w2 = rig.Matrix(format, kDim, kInter, use),
            .w3 = rig.Matrix(format, kInter, kDim, use)};
  };
  std::vector<backend::ExpertWeights> routed;
  for (int e = 0; e < kExperts; ++e) routed.push_back(expert(WeightFormat::kMxfp4, backend::MatrixUse::kChosen));
  const auto shared = expert(WeightFormat::kFp8Block32, backend::MatrixUse::kEveryStep);
  std::vector<std::int32_t> chosen;
  std::vector<float> weights;
  for (int i = 0; i < kRowsMax * kTopk; ++i) {
    chosen.push_back((i / kTopk * 11 + i % kTopk * 29) % kExperts);  // a row's differ, and do not ascend
    weights.push_back(0.1f + 0.05f * static_cast<float>(i % 7));
  }
  const auto* x = rig.Normals(std::size_t{kRowsMax} * kDim);
  const auto* experts = rig.Place(chosen);
  const auto* factors = rig.Place(weights);
  for (const int rows : kRowCounts) {
    cuda->Moe({.rows = rows,
               .x = x,
               .experts = experts,
               .weights = factors,
               .topk = kTopk,
               .expert_count = kExperts,
               .routed = routed.data(),
               .shared = shared,
               .swiglu_limit = 1.5f,
               .y = rig.Out<BFloat16>("y", static_cast<std::size_t>(rows), kDim, Check::kExact)});
  }
  ExpectPrefixes(rig, 1);
}

TEST(RowCounts, Head) {
  const auto cuda = Make();
  OpRig rig(*cuda, 5);
  constexpr int kVocab = 32768, kDim = 1056;
  const auto head = rig.Matrix(WeightFormat::kBF16, kVocab, kDim);
  const auto *x = rig.Normals(kRowsMax * kDim), *norm = rig.Normals(kDim);
  for (const int rows : kRowCounts) {
    auto* logits = rig.Out<float>("logits", static_cast<std::size_t>(rows), kVocab, Check::kExact);
    cuda->Head({.dim = kDim, .count = rows, .x = x, .norm = norm, .eps = 1e-20f, .head = head, .logits = logits});
  }
  ExpectPrefixes(rig, 1);
}

}  // namespace
}  // namespace galley::conformance
