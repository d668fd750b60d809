// SPDX-License-Identifier: Apache-2.0
#include "galley/model/engram_primes.h"

namespace galley::model {
namespace {

bool IsPrime(std::int64_t n) {
  if (n < 4) return n >= 2;
  if (n % 2 == 0) return false;
  for (std::int64_t d = 3; d * d <= n; d += 2) {
    if (n % d == 0) return false;
  }
  return true;
}

}  // namespace

std::vector<std::vector<std::int64_t>> EngramPrimes(const EngramConfig& engram) {
  std::vector<std::vector<std::int64_t>> primes(engram.layer_ids.size());
  std::int64_t candidate = engram.vocab_size;
  for (auto& layer : primes) {
    for (int column = 0; column < engram.columns(); ++column) {
      while (!IsPrime(candidate)) ++candidate;
      layer.push_back(candidate++);
    }
  }
  return primes;
}

}  // namespace galley::model
