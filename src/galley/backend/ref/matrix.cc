// SPDX-License-Identifier: Apache-2.0
#include "galley/backend/ref/matrix.h"

#include <algorithm>

#include "galley/backend/ref/math.h"
#include "galley/base/check.h"
#include "galley/base/math.h"
#include "galley/tensor/quantize.h"

namespace galley::backend::ref {
namespace {

void DecodeFp8Row(const Weight& weight, std::int64_t r, std::span<float> out) {
  const auto* codes = static_cast<const std::uint8_t*>(weight.data) + r * weight.cols;
  const std::uint8_t* scales = weight.scales + r / 32 * CeilDiv<std::int64_t>(weight.cols, 32);
  for (std::size_t block = 0; block * 32 < out.size(); ++block) {
    const float scale = DecodeE8M0(scales[block]);
    const std::size_t end = std::min(out.size(), block * 32 + 32);
    for (std::size_t i = block * 32; i < end; ++i) out[i] = kE4M3Values[codes[i]] * scale;
  }
}

// Products of fewer multiplications than this run on the calling thread: waking the others costs more.
constexpr std::int64_t kParallelWork = 1 << 16;
constexpr std::int64_t kRowsPerTask = 16;

using DotFunction = float (*)(const float*, const float*, std::size_t);

std::vector<float> MultiplyWith(ThreadPool& pool, const Weight& weight, const std::vector<float>& x, int rows,
                                DotFunction dot) {
  CHECK(static_cast<std::int64_t>(x.size()) == rows * weight.cols) << x.size() << " values for " << rows << " rows";
  std::vector<float> out(static_cast<std::size_t>(rows * weight.rows));
  const auto cols = static_cast<std::size_t>(weight.cols);
  const auto run = [&](std::int64_t task) {
    std::vector<float> w(cols);
    const std::int64_t end = std::min(weight.rows, (task + 1) * kRowsPerTask);
    for (std::int64_t r = task * kRowsPerTask; r < end; ++r) {
      DecodeWeightRow(weight, r, w);
      for (int t = 0; t < rows; ++t) {
        out[static_cast<std::size_t>(t * weight.rows + r)] =
            dot(x.data() + static_cast<std::size_t>(t) * cols, w.data(), cols);
      }
    }
  };
  const std::int64_t tasks = CeilDiv(weight.rows, kRowsPerTask);
  if (rows * weight.rows * weight.cols < kParallelWork) {
    for (std::int64_t task = 0; task < tasks; ++task) run(task);
  } else {
    pool.ParallelFor(tasks, run);
  }
  return out;
}

}  // namespace

void DecodeWeightRow(const Weight& weight, std::int64_t r, std::span<float> out) {
  const auto cols = static_cast<std::int64_t>(out.size());
  switch (weight.format) {
    case WeightFormat::kF32:
      std::copy_n(static_cast<const float*>(weight.data) + r * cols, cols, out.data());
      return;
    case WeightFormat::kBF16:
      LoadBf16(static_cast<const BFloat16*>(weight.data) + r * cols, out);
      return;
    case WeightFormat::kFp8Block32:
      DecodeFp8Row(weight, r, out);
      return;
    case WeightFormat::kMxfp4:
      DequantizeFp4Index(static_cast<const std::uint8_t*>(weight.data) + r * cols / 2, weight.scales + r * cols / 32,
                         out);
      return;
  }
}

std::vector<float> Multiply(ThreadPool& pool, const Weight& weight, std::vector<float> x, int rows) {
  if (weight.format == WeightFormat::kF32 || weight.format == WeightFormat::kBF16) {
    return MultiplyWith(pool, weight, x, rows, Dot);
  }
  FakeQuantizeFp8(x);
  return MultiplyWith(pool, weight, x, rows, DotBlocks32);
}

std::vector<float> MultiplyUnquantized(ThreadPool& pool, const Weight& weight, const std::vector<float>& x, int rows) {
  return MultiplyWith(pool, weight, x, rows, Dot);
}

std::vector<float> ToFloats(const BFloat16* x, std::int64_t count) {
  std::vector<float> out(static_cast<std::size_t>(count));
  LoadBf16(x, out);
  return out;
}

}  // namespace galley::backend::ref
