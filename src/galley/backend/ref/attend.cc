// SPDX-License-Identifier: Apache-2.0
#include "galley/backend/ref/attend.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "galley/backend/ref/math.h"
#include "galley/tensor/quantize.h"

namespace galley::backend::ref {
namespace {

constexpr std::size_t kListBlock =
    64;  // list entries that the official kernel handles between two updates of the maximum

}  // namespace

void AttendHead(const KeyRows& keys, const std::vector<float>& q, float scale, float sink, std::span<float> out) {
  const std::size_t places = keys.end(), head_dim = q.size();
  float running = -1e30f, denominator = 0;
  std::fill(out.begin(), out.end(), 0.0f);
  std::vector<float> p(kListBlock);
  for (std::size_t begin = 0; begin < places; begin += kListBlock) {
    const std::size_t end = std::min(places, begin + kListBlock);
    if (begin >= keys.window_rows && end <= keys.window_places) continue;  // unused places only
    float largest = running;
    for (std::size_t i = begin; i < end; ++i) {
      const std::optional<std::size_t> row = keys.RowAt(i);
      p[i - begin] = row ? Dot(q.data(), keys.values.data() + *row * head_dim, head_dim) * scale
                         : -std::numeric_limits<float>::infinity();
      largest = std::max(largest, p[i - begin]);
    }
    const float rescale = std::exp(running - largest);
    float sum = 0;
    for (std::size_t i = begin; i < end; ++i) sum += p[i - begin] = std::exp(p[i - begin] - largest);
    denominator = denominator * rescale + sum;
    for (float& value : out) value *= rescale;
    for (std::size_t i = begin; i < end; ++i) {
      const float weight = RoundToBFloat16(p[i - begin]);
      const std::optional<std::size_t> row = keys.RowAt(i);
      if (weight == 0.0f || !row) continue;
      const float* values = keys.values.data() + *row * head_dim;
      for (std::size_t d = 0; d < head_dim; ++d) out[d] += weight * values[d];
    }
    running = largest;
  }
  denominator += std::exp(sink - running);
  for (float& value : out) value = RoundToBFloat16(value / denominator);
}

void StoreWindowRecord(std::span<float> kv, const BFloat16* norm, float eps, const Rope& rope, std::int64_t position,
                       std::uint8_t* record) {
  RmsNorm(kv, norm, eps);
  Rotate(kv, rope, position);
  QuantizeFp8(kv, record, record + kv.size());
}

void DecodeWindowRecord(const std::uint8_t* record, std::span<float> out) {
  DequantizeFp8(record, record + out.size(), out);
}

}  // namespace galley::backend::ref
