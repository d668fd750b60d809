// SPDX-License-Identifier: Apache-2.0
#include "galley/model/dsv4/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace galley::model {

std::vector<float> RopeFrequencies(const Config& config, bool compressed) {
  const int dims = config.rope_head_dim;
  const auto base = static_cast<float>(compressed ? config.compress_rope_theta : config.rope_theta);
  std::vector<float> frequencies;
  for (int i = 0; i < dims / 2; ++i) {
    frequencies.push_back(1.0f / std::pow(base, static_cast<float>(2 * i) / static_cast<float>(dims)));
  }
  if (!compressed || config.original_seq_len <= 0) return frequencies;

  // Dimension whose wavelength makes `rotations` turns over the original context.
  const auto dim_of = [&](double rotations) {
    return dims * std::log(static_cast<double>(config.original_seq_len) / (rotations * 2 * std::numbers::pi)) /
           (2 * std::log(config.compress_rope_theta));
  };
  const double low = std::max(std::floor(dim_of(config.beta_fast)), 0.0);
  const double high = std::min(std::ceil(dim_of(config.beta_slow)), static_cast<double>(dims - 1));
  const auto span = static_cast<float>(std::max(high - low, 1e-3));
  const auto factor = static_cast<float>(config.rope_factor);
  for (int i = 0; i < dims / 2; ++i) {
    float& f = frequencies[static_cast<std::size_t>(i)];
    const float keep = 1.0f - std::clamp((static_cast<float>(i) - static_cast<float>(low)) / span, 0.0f, 1.0f);
    f = f / factor * (1.0f - keep) + f * keep;
  }
  return frequencies;
}

}  // namespace galley::model
