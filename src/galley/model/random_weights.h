// SPDX-License-Identifier: Apache-2.0
// A checkpoint of random weights that is nowhere but in memory, for benchmarks of models that are not at hand. Values
// are of such sizes that activations stay finite and experts are chosen evenly.
#pragma once

#include <cstdint>

#include "galley/model/checkpoint.h"

namespace galley::model {

// Tensors of a kind are cut out of one piece of memory and overlap in it, so the whole takes little more than its
// largest tensors, however many layers and experts there are: Engram tables of true size would be 200 GB. Pure.
[[nodiscard]] Checkpoint RandomCheckpoint(const Config& config, std::uint64_t seed);

}  // namespace galley::model
