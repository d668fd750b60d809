// SPDX-License-Identifier: Apache-2.0
#include "galley/backend/cpu/self_test.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "galley/backend/cpu/scratch.h"
#include "galley/base/log.h"
#include "galley/base/rng.h"

namespace galley::backend::cpu {
namespace {

constexpr int kOutputs = 51, kColumns = 416, kRows = 37;  // no multiple of a tile, a panel or a chunk

std::vector<BFloat16> Values(std::size_t count, std::uint32_t stream, bool integers) {
  std::vector<BFloat16> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t bits = Philox4x32({static_cast<std::uint32_t>(i), stream, 0, 0}, {6, 0})[0];
    // -8 to 7; otherwise both signs and eight exponents.
    const float x = integers
                        ? static_cast<float>(bits % 16) - 8.0f
                        : std::ldexp(static_cast<float>(bits >> 8) * 0x1p-23f - 1.0f, static_cast<int>(bits % 8) - 4);
    values[i] = ToBFloat16(x);
  }
  return values;
}

std::vector<float> Products(const Kernels& kernels, const std::vector<BFloat16>& weights, const BFloat16* x, int rows) {
  const std::size_t stride = PackedBytes(kColumns), count = static_cast<std::size_t>(rows);
  const AlignedBytes packed(stride * count), gathered(stride * (count + kGathered));
  const AlignedBytes scratch(ProductScratchBytes(kColumns));
  for (std::size_t t = 0; t < count; ++t) {
    kernels.pack({.x = x + t * kColumns,
                  .cols = kColumns,
                  .packing = PackingOf(WeightFormat::kBF16),
                  .out = packed.data() + t * stride});
  }
  std::vector<float> out(count * kOutputs);
  ProductArgs product;
  product.weight = {WeightFormat::kBF16, kOutputs, kColumns, weights.data(), nullptr};
  product.row_end = kOutputs;
  product.x = packed.data();
  product.x_stride = stride;
  product.rows = rows;
  product.out = out.data();
  product.out_stride = kOutputs;
  product.scratch = scratch.data();
  if (kernels.gather != nullptr && rows > 1) {
    const int columns = std::min(rows, kGathered);
    product.x = gathered.data();
    product.x_stride = PaddedColumns(kColumns) * 2 * static_cast<std::size_t>(columns);
    for (int first = 0; first < rows; first += kGathered) {
      kernels.gather({.x = packed.data() + static_cast<std::size_t>(first) * stride,
                      .x_stride = stride,
                      .rows = std::min(rows - first, kGathered),
                      .columns = columns,
                      .cols = kColumns,
                      .out = gathered.data() + static_cast<std::size_t>(first / kGathered) * product.x_stride});
    }
  }
  kernels.product(product);
  return out;
}

bool Right(const Kernels& kernels, bool integers) {
  const std::vector<BFloat16> weights = Values(std::size_t{kOutputs} * kColumns, 1, integers);
  const std::vector<BFloat16> x = Values(std::size_t{kRows} * kColumns, 2, integers);
  const std::vector<float> all = Products(kernels, weights, x.data(), kRows);
  for (std::size_t t = 0; t < kRows; ++t) {
    for (std::size_t r = 0; r < kOutputs; ++r) {
      double sum = 0, size = 0;
      for (std::size_t c = 0; c < kColumns; ++c) {
        const double term =
            static_cast<double>(ToFloat(weights[r * kColumns + c])) * static_cast<double>(ToFloat(x[t * kColumns + c]));
        sum += term;
        size += std::fabs(term);
      }
      const double difference = std::fabs(static_cast<double>(all[t * kOutputs + r]) - sum);
      if (!(difference <= (integers ? 0.0 : size * 0x1p-20))) return false;
    }
  }
  for (const int rows : {1, 3, 16, 17}) {
    for (int first = 0; first + rows <= kRows; first += rows) {
      const std::vector<float> some = Products(kernels, weights, x.data() + first * kColumns, rows);
      if (std::memcmp(some.data(), all.data() + first * kOutputs, some.size() * sizeof(float)) != 0) return false;
    }
  }
  return true;
}

}  // namespace

bool PassesSelfTest(const Kernels& kernels) {
  return Right(kernels, true) && Right(kernels, false);
}

Result<const IsaEntry*> UsableIsa(std::string_view name, std::span<const IsaEntry> table) {
  ASSIGN_OR_RETURN(const IsaEntry* isa, FindIsa(name, table));
  if (!isa->self_test || PassesSelfTest(isa->kernels())) return isa;
  ASSIGN_OR_RETURN(const IsaEntry* other, FindIsa("auto", table));
  log::Warning("the self-test of --isa {} failed: this processor's products are not what they must be; using {}",
               isa->name, other->name);
  return other;
}

}  // namespace galley::backend::cpu
