// SPDX-License-Identifier: Apache-2.0
// Hash parameters of the Engram layers, derived from the config alone (specification 2.10). The multipliers follow
// numpy's default_rng, because the checkpoint's tables were filled with it.
#pragma once

#include <cstdint>
#include <vector>

#include "galley/base/error.h"
#include "galley/model/config.h"

namespace galley::model {

struct EngramHash {
  std::vector<std::int64_t> multipliers;  // [max_ngram_size], odd
  std::vector<std::int64_t> primes;       // [columns], n-gram size major, head minor
  std::vector<std::int64_t> offsets;      // [columns], running sum of the primes

  // Rows of the table that the hash can name.
  [[nodiscard]] std::int64_t table_rows() const;
};

// One entry per Engram layer. kInvalidArgument when the config's table sizes are not what the primes add up to.
[[nodiscard]] Result<std::vector<EngramHash>> MakeEngramHashes(const EngramConfig& config);

// numpy.random.default_rng(seed).integers(0, bound, count) for bounds above 2^32.
[[nodiscard]] std::vector<std::int64_t> NumpyIntegers(std::uint32_t seed, std::uint64_t bound, int count);

}  // namespace galley::model
