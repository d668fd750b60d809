// SPDX-License-Identifier: Apache-2.0
// Matrix products of every instruction set that this processor has, against sums in double; and the rule that a row's
// bits do not depend on what shares the call.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "galley/backend/cpu/cpu_backend.h"
#include "galley/backend/cpu/self_test.h"
#include "galley/backend/cpu/tile_model.h"
#include "galley/base/rng.h"
#include "galley/tensor/quantize.h"

namespace galley::backend::cpu {
namespace {

constexpr std::uint64_t kSeed = 20;

float Uniform(std::uint32_t i, std::uint32_t stream) {
  return static_cast<float>(Philox4x32({i, stream, 0, 0}, {kSeed, 0})[0]) * 0x1p-31f - 1.0f;  // [-1, 1)
}

// A matrix in one of the formats with its values in fp32.
struct TestMatrix {
  Weight weight;
  std::vector<float> values;
  std::vector<std::uint8_t> data, scales;

  TestMatrix(WeightFormat format, int rows, int cols) : values(static_cast<std::size_t>(rows * cols)) {
    const auto n = values.size(), width = static_cast<std::size_t>(cols);
    weight = {.format = format, .rows = rows, .cols = cols};
    for (std::size_t i = 0; i < n; ++i) values[i] = Uniform(static_cast<std::uint32_t>(i), 1);
    switch (format) {
      case WeightFormat::kF32:
        data.resize(n * 4);
        std::memcpy(data.data(), values.data(), data.size());
        break;
      case WeightFormat::kBF16:
        data.resize(n * 2);
        for (std::size_t i = 0; i < n; ++i) {
          const BFloat16 x = ToBFloat16(values[i]);
          values[i] = ToFloat(x);
          std::memcpy(data.data() + 2 * i, &x, 2);
        }
        break;
      case WeightFormat::kFp8Block32: {
        // Every code but the NaNs appears, and scales differ from block to block.
        const std::size_t blocks = (width + 31) / 32;
        data.resize(n);
        scales.resize(static_cast<std::size_t>((rows + 31) / 32) * blocks);
        for (std::size_t i = 0; i < scales.size(); ++i) scales[i] = static_cast<std::uint8_t>(110 + i * 7 % 20);
        for (std::size_t i = 0; i < n; ++i) {
          data[i] = static_cast<std::uint8_t>((i * 37 + i / 256) % 256);
          if ((data[i] & 0x7F) == 0x7F) data[i] = 0x80;
          values[i] = DecodeE4M3(data[i]) * DecodeE8M0(scales[i / width / 32 * blocks + i % width / 32]);
        }
        break;
      }
      case WeightFormat::kMxfp4:
        data.resize(n / 2);
        scales.resize(n / 32);
        for (std::size_t i = 0; i < scales.size(); ++i) scales[i] = static_cast<std::uint8_t>(118 + i * 5 % 16);
        for (std::size_t i = 0; i < n / 2; ++i)
          data[i] = static_cast<std::uint8_t>(Philox4x32({static_cast<std::uint32_t>(i), 2, 0, 0}, {kSeed, 0})[0]);
        for (std::size_t i = 0; i < n; ++i) {
          const int code = i % 2 == 0 ? data[i / 2] & 15 : data[i / 2] >> 4;
          values[i] = DecodeE2M1(static_cast<std::uint8_t>(code)) * DecodeE8M0(scales[i / 32]);
        }
        break;
    }
    weight.data = data.data();
    weight.scales = scales.data();
  }
};

std::vector<BFloat16> Activations(int rows, int cols) {
  std::vector<BFloat16> x(static_cast<std::size_t>(rows * cols));
  // Magnitudes over a wide range, so that the quantiser's scales and its subnormal steps both occur.
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = ToBFloat16(Uniform(static_cast<std::uint32_t>(i), 3) * std::exp2(static_cast<float>(i / 32 % 12) - 6.0f));
  }
  return x;
}

class Products : public testing::TestWithParam<std::tuple<const char*, WeightFormat>> {
 protected:
  void SetUp() override {
    const auto isa = FindIsaOrModel(std::get<0>(GetParam()));
    if (!isa) GTEST_SKIP() << isa.error().ToString();
    backend_ = std::make_unique<CpuBackend>(CpuOptions{.threads = 2, .isa = "auto", .processors = {}}, **isa);
  }
  [[nodiscard]] static WeightFormat format() { return std::get<1>(GetParam()); }

  std::vector<BFloat16> Run(const Weight& weight, const BFloat16* x, int rows) {
    std::vector<BFloat16> out(static_cast<std::size_t>(rows * weight.rows));
    backend_->Linear({.rows = rows, .weight = weight, .x = x, .out = out.data()});
    return out;
  }

  std::unique_ptr<CpuBackend> backend_;
};

// Rows in every kernel's range (one decoded in registers, tiles of each size and pairs of them, more than stay in a
// cache), matrices that end inside a chunk, a panel and a block of scales.
TEST_P(Products, AgreeWithSumsInDouble) {
  for (const int cols : {32, 96, 128, 288, 640}) {
    const TestMatrix matrix(format(), 77, cols);
    const std::vector<BFloat16> x = Activations(50, cols);
    std::vector<float> exact(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) exact[i] = ToFloat(x[i]);
    if (IsQuantised(format())) FakeQuantizeFp8(exact);
    const auto width = static_cast<std::size_t>(cols);
    for (const int rows : {1, 2, 3, 4, 5, 6, 7, 11, 50}) {
      const std::vector<BFloat16> out = Run(matrix.weight, x.data(), rows);
      for (std::size_t t = 0; t < static_cast<std::size_t>(rows); ++t) {
        for (std::size_t r = 0; r < 77; ++r) {
          double sum = 0, size = 0;
          for (std::size_t c = 0; c < width; ++c) {
            const double term =
                static_cast<double>(matrix.values[r * width + c]) * static_cast<double>(exact[t * width + c]);
            sum += term;
            size += std::fabs(term);
          }
          // Half a step of bf16 (2^-9) and a few roundings of fp32 on the sum of magnitudes.
          ASSERT_NEAR(static_cast<double>(ToFloat(out[t * 77 + r])), sum, std::fabs(sum) * 0x1p-8 + size * 0x1p-20)
              << cols << " columns, row " << t << " of " << rows << ", output " << r;
        }
      }
    }
  }
}

TEST_P(Products, ARowsBitsDoNotDependOnTheOthers) {
  constexpr int kRows = 61;  // a block, and a group and a tile of the next one
  const TestMatrix matrix(format(), 100, 1184);
  const std::vector<BFloat16> x = Activations(kRows, 1184);
  const std::vector<BFloat16> all = Run(matrix.weight, x.data(), kRows);
  for (const int rows : {1, 2, 3, 4, 6, 9, 13, 25}) {
    for (int first = 0; first + rows <= kRows; first += rows) {
      const std::vector<BFloat16> some = Run(matrix.weight, x.data() + first * 1184, rows);
      ASSERT_EQ(std::memcmp(some.data(), all.data() + first * 100, some.size() * 2), 0)
          << "rows " << first << " … " << first + rows;
    }
  }
}

// More threads than outputs, than rows, than processors: the same bits.
TEST_P(Products, BitsDoNotDependOnThreads) {
  const TestMatrix matrix(format(), 100, 544);
  for (const int rows : {1, 3, 17}) {
    const std::vector<BFloat16> x = Activations(rows, 544);
    const std::vector<BFloat16> two = Run(matrix.weight, x.data(), rows);
    for (const int threads : {1, 3, 64}) {
      CpuBackend other({.threads = threads, .isa = "auto", .processors = {}},
                       **FindIsaOrModel(std::get<0>(GetParam())));
      std::vector<BFloat16> out(two.size());
      other.Linear({.rows = rows, .weight = matrix.weight, .x = x.data(), .out = out.data()});
      ASSERT_EQ(std::memcmp(out.data(), two.data(), out.size() * 2), 0) << threads << " threads, " << rows << " rows";
    }
  }
}

// Scales are powers of two, so results move by as much; tiles add those from 2^-63 to 2^64 to exponents.
TEST_P(Products, ScalesMoveResultsExactly) {
  if (!IsQuantised(format())) GTEST_SKIP() << "a format without scales";
  TestMatrix matrix(format(), 40, 160);
  const std::vector<BFloat16> x = Activations(2, 160);
  std::fill(matrix.scales.begin(), matrix.scales.end(), 127);
  const std::vector<BFloat16> plain = Run(matrix.weight, x.data(), 2);
  for (const int byte : {60, 63, 64, 65, 126, 190, 191, 192, 200}) {
    std::fill(matrix.scales.begin(), matrix.scales.end(), byte);
    const std::vector<BFloat16> moved = Run(matrix.weight, x.data(), 2);
    for (std::size_t i = 0; i < plain.size(); ++i)
      ASSERT_EQ(ToFloat(moved[i]), std::ldexp(ToFloat(plain[i]), byte - 127)) << "scale " << byte << ", value " << i;
  }
}

std::string CaseName(const testing::TestParamInfo<Products::ParamType>& info) {
  constexpr const char* kFormats[] = {"f32", "bf16", "fp8", "mxfp4"};
  return std::string(std::get<0>(info.param)) + "_" + kFormats[static_cast<int>(std::get<1>(info.param))];
}
INSTANTIATE_TEST_SUITE_P(Isa, Products,
                         testing::Combine(testing::Values("generic", "avx2", "avx512", "avx512bf16", "amx",
                                                          "tile_model"),
                                          testing::Values(WeightFormat::kF32, WeightFormat::kBF16,
                                                          WeightFormat::kFp8Block32, WeightFormat::kMxfp4)),
                         CaseName);

// The quantiser that packs activations is the model's, bit by bit: a matrix that is the identity gives it back.
TEST(CpuBackend, ActivationQuantiserIsTheModels) {
  constexpr int kCols = 256;
  std::vector<std::uint8_t> identity(kCols * kCols), scales(kCols / 32 * kCols / 32, 127);
  for (std::size_t i = 0; i < kCols; ++i) identity[i * kCols + i] = 0x38;  // 1.0
  const Weight weight = {WeightFormat::kFp8Block32, kCols, kCols, identity.data(), scales.data()};
  const std::vector<BFloat16> x = Activations(40, kCols);
  for (const IsaEntry& isa : IsaTable()) {
    if (!isa.supported()) continue;
    CpuBackend backend({.threads = 1, .isa = "auto", .processors = {}}, isa);
    std::vector<BFloat16> out(x.size());
    backend.Linear({.rows = 40, .weight = weight, .x = x.data(), .out = out.data()});
    std::vector<float> expected(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) expected[i] = ToFloat(x[i]);
    FakeQuantizeFp8(expected);
    for (std::size_t i = 0; i < x.size(); ++i) ASSERT_EQ(ToFloat(out[i]), expected[i]) << isa.name << ", value " << i;
  }
}

// Logits are fp32, so that nothing of a sum is rounded away.
std::vector<float> Logits(const IsaEntry& isa, const TestMatrix& matrix, const std::vector<BFloat16>& x, int rows) {
  CpuBackend backend({.threads = 2, .isa = isa.name, .processors = {}}, isa);
  const auto cols = static_cast<std::size_t>(matrix.weight.cols);
  const std::vector<BFloat16> norm(cols, ToBFloat16(1.0f));
  std::vector<float> out(static_cast<std::size_t>(rows * matrix.weight.rows));
  HeadArgs args;
  args.count = rows;
  args.dim = static_cast<int>(cols);
  args.x = x.data();
  args.norm = norm.data();
  args.head = matrix.weight;
  args.logits = out.data();
  backend.Head(args);
  return out;
}

// What the manual says of the instruction is what the processor does, bit by bit.
TEST(Tiles, TheModelIsTheProcessors) {
  const auto amx = FindIsa("amx"), model = FindIsaOrModel("tile_model_wide");
  if (!amx || !model) GTEST_SKIP() << "this processor has no tile registers, or the system gives none";
  const TestMatrix matrix(WeightFormat::kBF16, 77, 640);
  for (const int rows : {1, 7, 16, 40}) {
    const std::vector<BFloat16> x = Activations(rows, 640);
    ASSERT_EQ(Logits(**amx, matrix, x, rows), Logits(**model, matrix, x, rows)) << rows << " rows";
  }
}

// One step of 32 columns: even products are summed by themselves, then odd ones, then both. 2^24 + 1 is 2^24 in fp32,
// so (2^24 + 1 + 1) in a row would lose both ones, and they are kept: 2^24 + (1 + 1).
TEST(Tiles, TheModelSumsEvenAndOddColumnsApart) {
  const auto model = FindIsaOrModel("tile_model");
  ASSERT_TRUE(model);
  TestMatrix matrix(WeightFormat::kBF16, 1, 32);
  const BFloat16 one = ToBFloat16(1.0f), zero = ToBFloat16(0.0f), large = ToBFloat16(0x1p24f);
  std::vector<BFloat16> weights(32, zero);
  weights[0] = large;
  weights[1] = weights[3] = one;
  matrix.weight.data = weights.data();
  // The norm of ones is one.
  const std::vector<BFloat16> x(32, one);
  EXPECT_EQ(Logits(**model, matrix, x, 1), std::vector<float>{0x1p24f + 2});
  std::swap(weights[1], weights[2]);  // 2^24 + 1 first, which is 2^24; then 1
  EXPECT_EQ(Logits(**model, matrix, x, 1), std::vector<float>{0x1p24f});
}

TEST(SelfTest, EveryInstructionSetPasses) {
  for (const IsaEntry& isa : IsaTable()) {
    EXPECT_TRUE(!isa.supported() || PassesSelfTest(isa.kernels())) << isa.name;
  }
  for (const char* name : {"tile_model", "tile_model_wide"}) {
    const auto model = FindIsaOrModel(name);
    EXPECT_TRUE(!model || PassesSelfTest((*model)->kernels())) << name;
  }
}

// Wrong by one in a single place; and right, but with other bits for a row alone.
const Kernels& OffByOne() {
  static const Kernels kernels = WithTiles((*FindIsa("generic"))->kernels(), [](Kernels& k) {
    k.product = [](const ProductArgs& a) {
      (*FindIsa("generic"))->kernels().product(a);
      a.out[a.rows * a.out_stride - 1] += 1;
    };
  });
  return kernels;
}
const Kernels& OtherBitsAlone() {
  static const Kernels kernels = WithTiles((*FindIsa("generic"))->kernels(), [](Kernels& k) {
    k.product = [](const ProductArgs& a) {
      (*FindIsa("generic"))->kernels().product(a);
      if (a.rows == 1 && a.out[0] != std::floor(a.out[0])) a.out[0] = std::nextafter(a.out[0], 1e30f);
    };
  });
  return kernels;
}

TEST(SelfTest, FindsWrongProducts) {
  EXPECT_FALSE(PassesSelfTest(OffByOne()));
  EXPECT_FALSE(PassesSelfTest(OtherBitsAlone()));
}

TEST(SelfTest, AFailingInstructionSetGivesWay) {
  const auto always = [] { return true; };
  const IsaEntry& plain = **FindIsa("generic");
  const IsaEntry table[] = {
      plain, {"broken", always, OffByOne, true, true}, {"sound", always, plain.kernels, true, true}};
  EXPECT_EQ((*UsableIsa("broken", table))->name, "generic");
  EXPECT_EQ((*UsableIsa("sound", table))->name, "sound");
  EXPECT_EQ((*UsableIsa("auto", table))->name, "generic") << "the other two are used by name only";
}

TEST(CpuBackend, UnknownInstructionSetsAreRefused) {
  const auto isa = FindIsa("mmx");
  ASSERT_FALSE(isa);
  EXPECT_EQ(isa.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(isa.error().message.find("\"mmx\""), std::string::npos);
  EXPECT_NE(isa.error().message.find("generic"), std::string::npos);
}

}  // namespace
}  // namespace galley::backend::cpu
