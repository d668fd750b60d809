// SPDX-License-Identifier: Apache-2.0
// Index scores of the instruction sets that this processor has: the same bits, whether sums of 32 products are made of
// fp32 values or of whole numbers.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string_view>
#include <vector>

#include "galley/backend/cpu/isa.h"
#include "galley/backend/cpu/kernels.h"
#include "galley/base/rng.h"
#include "galley/tensor/numeric.h"

namespace galley::backend::cpu {
namespace {

std::uint32_t Random(std::uint32_t i, std::uint32_t stream) {
  return Philox4x32({i, stream, 0, 0}, {7, 0})[0];
}

constexpr std::string_view kWithoutFma = "generic";  // rounds between multiplying by a scale and adding

struct Case {
  int heads, dim, keys;
  int low, high;  // scales of queries: powers of two
};

std::vector<float> Scores(const Kernels& kernels, const Case& c, const std::vector<BFloat16>& raw) {
  const auto heads = static_cast<std::size_t>(c.heads), dim = static_cast<std::size_t>(c.dim),
             count = static_cast<std::size_t>(c.keys), lanes = (heads + 15) / 16 * 16;
  std::vector<BFloat16> q = raw;
  for (std::size_t h = 0; h < heads; ++h) kernels.round_fp4_index(q.data() + h * dim, dim);
  std::vector<float> packed(dim * lanes), weights(lanes), out(count);
  kernels.pack_index_queries({.q = q.data(), .heads = c.heads, .dim = c.dim, .out = packed.data()});
  for (std::size_t h = 0; h < heads; ++h)
    weights[h] = static_cast<float>(static_cast<int>(Random(static_cast<std::uint32_t>(h), 2) % 64) - 32) / 16.0f;
  std::vector<std::uint8_t> keys(count * dim / 2), scales(count * dim / 32);
  for (std::size_t i = 0; i < keys.size(); ++i)
    keys[i] = static_cast<std::uint8_t>(Random(static_cast<std::uint32_t>(i), 3));
  for (std::size_t i = 0; i < scales.size(); ++i)
    scales[i] = static_cast<std::uint8_t>(118 + Random(static_cast<std::uint32_t>(i), 4) % 12);
  kernels.index_scores({.q = packed.data(),
                        .weights = weights.data(),
                        .head_groups = static_cast<int>(lanes / 16),
                        .dim = c.dim,
                        .keys = keys.data(),
                        .scales = scales.data(),
                        .count = count,
                        .out = out.data()});
  return out;
}

std::vector<BFloat16> Queries(const Case& c) {
  std::vector<BFloat16> q(static_cast<std::size_t>(c.heads) * static_cast<std::size_t>(c.dim));
  for (std::size_t i = 0; i < q.size(); ++i) {
    const auto at = static_cast<std::uint32_t>(i);
    const int exponent = c.low + static_cast<int>(Random(at / 32, 5) % static_cast<std::uint32_t>(c.high - c.low + 1));
    q[i] = ToBFloat16(std::ldexp(static_cast<float>(Random(at, 1)) * 0x1p-31f - 1.0f, exponent));
  }
  return q;
}

void ExpectSameBits(const Case& c, const std::vector<BFloat16>& queries) {
  std::vector<float> first;
  for (const IsaEntry& isa : IsaTable()) {
    if (!isa.supported() || isa.name == kWithoutFma) continue;
    const std::vector<float> scores = Scores(isa.kernels(), c, queries);
    if (first.empty()) {
      first = scores;
      continue;
    }
    for (std::size_t i = 0; i < scores.size(); ++i) {
      ASSERT_EQ(std::bit_cast<std::uint32_t>(scores[i]), std::bit_cast<std::uint32_t>(first[i]))
          << isa.name << ", " << c.heads << " heads of " << c.dim << ", key " << i << ": " << scores[i]
          << " instead of " << first[i];
    }
  }
}

TEST(IndexScores, AreTheSameBitsEverywhere) {
  for (const Case& c : {Case{64, 128, 200, -3, 3}, Case{32, 128, 61, -1, 0}, Case{5, 64, 7, -2, 2},
                        Case{17, 32, 1, 0, 0}, Case{33, 160, 13, -20, 20}})
    ExpectSameBits(c, Queries(c));
}

TEST(IndexScores, OfVerySmallAndLargeQueries) {
  for (const Case& c : {Case{16, 64, 20, -126, -118}, Case{32, 128, 9, 80, 90}}) ExpectSameBits(c, Queries(c));
}

TEST(IndexScores, OfZerosAndOfWhatIsNoNumber) {
  const Case c{32, 128, 19, -1, 1};
  ExpectSameBits(c, std::vector<BFloat16>(32 * 128));
  for (const float odd : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<BFloat16> queries = Queries(c);
    queries[5 * 128 + 40] = ToBFloat16(odd);
    ExpectSameBits(c, queries);
  }
}

}  // namespace
}  // namespace galley::backend::cpu
