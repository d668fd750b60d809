// SPDX-License-Identifier: Apache-2.0
// Sizes of the Engram hash tables: consecutive primes, the first not below vocab_size, none used
// twice over all Engram layers; per layer one for each (n-gram size, head), size major. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "galley/model/config.h"

namespace galley::model {

// primes[i][column]: rows of the table of layer engram.layer_ids[i] for that column. Their sum over the columns is
// num_embeddings[i] of a consistent config. The config must have passed its range checks.
[[nodiscard]] std::vector<std::vector<std::int64_t>> EngramPrimes(const EngramConfig& engram);

}  // namespace galley::model
