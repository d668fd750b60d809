// SPDX-License-Identifier: Apache-2.0
// Rotary frequencies of the two kinds of layers (specification 2.5).
#pragma once

#include <vector>

#include "galley/model/config.h"

namespace galley::model {

// [rope_head_dim / 2] fp32 frequencies. `compressed`: layers with a compressed history, base compress_rope_theta with
// YaRN; the others use rope_theta and no YaRN.
[[nodiscard]] std::vector<float> RopeFrequencies(const Config& config, bool compressed);

}  // namespace galley::model
