// SPDX-License-Identifier: Apache-2.0
#include "galley/model/dsv4/engram_hash.h"

#include <fmt/core.h>

#include <array>
#include <bit>
#include <limits>

#include "galley/base/check.h"
#include "galley/model/engram_primes.h"

namespace galley::model {
namespace {

using Uint128 = unsigned __int128;

// The mixing constants and steps of numpy's SeedSequence with its pool of four words.
class SeedSequence {
 public:
  explicit SeedSequence(std::uint32_t entropy) {
    std::uint32_t constant = 0x43b0d7e5;
    const auto hash = [&constant](std::uint32_t value) {
      value ^= constant;
      constant *= 0x931e8875;
      value *= constant;
      return value ^ (value >> 16);
    };
    for (std::size_t i = 0; i < pool_.size(); ++i) pool_[i] = hash(i == 0 ? entropy : 0);
    for (std::size_t from = 0; from < pool_.size(); ++from) {
      for (std::size_t to = 0; to < pool_.size(); ++to) {
        if (from == to) continue;
        const std::uint32_t mixed = 0xca01f9dd * pool_[to] - 0x4973f715 * hash(pool_[from]);
        pool_[to] = mixed ^ (mixed >> 16);
      }
    }
  }

  // The first four 64-bit words of the generated state.
  [[nodiscard]] std::array<std::uint64_t, 4> State() const {
    std::array<std::uint64_t, 4> words{};
    std::uint32_t constant = 0x8b51f9dd;
    for (std::size_t i = 0; i < 2 * words.size(); ++i) {
      std::uint32_t value = pool_[i % pool_.size()] ^ constant;
      constant *= 0x58f38ded;
      value *= constant;
      value ^= value >> 16;
      words[i / 2] |= static_cast<std::uint64_t>(value) << (i % 2 * 32);
    }
    return words;
  }

 private:
  std::array<std::uint32_t, 4> pool_{};
};

// PCG64, XSL-RR output on a 128-bit state.
class Pcg64 {
 public:
  explicit Pcg64(const std::array<std::uint64_t, 4>& seed) : increment_((Join(seed[2], seed[3]) << 1) | 1) {
    Step();
    state_ += Join(seed[0], seed[1]);
    Step();
  }

  std::uint64_t Next() {
    Step();
    const auto folded = static_cast<std::uint64_t>(state_ >> 64) ^ static_cast<std::uint64_t>(state_);
    return std::rotr(folded, static_cast<int>(state_ >> 122));
  }

  // Uniform in [0, bound): multiply and shift, with the few biased products rejected.
  std::uint64_t Bounded(std::uint64_t bound) {
    Uint128 product = static_cast<Uint128>(Next()) * bound;
    if (static_cast<std::uint64_t>(product) < bound) {
      const std::uint64_t threshold = (0 - bound) % bound;
      while (static_cast<std::uint64_t>(product) < threshold) product = static_cast<Uint128>(Next()) * bound;
    }
    return static_cast<std::uint64_t>(product >> 64);
  }

 private:
  static Uint128 Join(std::uint64_t high, std::uint64_t low) { return (static_cast<Uint128>(high) << 64) | low; }
  void Step() { state_ = state_ * Join(0x2360ED051FC65DA4, 0x4385DF649FCCF645) + increment_; }

  Uint128 increment_;
  Uint128 state_ = 0;
};

}  // namespace

std::int64_t EngramHash::table_rows() const {
  return offsets.empty() ? 0 : offsets.back() + primes.back();
}

std::vector<std::int64_t> NumpyIntegers(std::uint32_t seed, std::uint64_t bound, int count) {
  CHECK(bound > std::numeric_limits<std::uint32_t>::max()) << "bound " << bound << " takes numpy's 32-bit path";
  Pcg64 generator(SeedSequence(seed).State());
  std::vector<std::int64_t> values;
  for (int i = 0; i < count; ++i) values.push_back(static_cast<std::int64_t>(generator.Bounded(bound)));
  return values;
}

Result<std::vector<EngramHash>> MakeEngramHashes(const EngramConfig& config) {
  std::vector<EngramHash> hashes;
  if (config.layer_ids.empty()) return hashes;
  const std::uint64_t bound = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()) /
                              static_cast<std::uint64_t>(config.compressed_vocab_size) / 2;
  const std::vector<std::vector<std::int64_t>> primes = EngramPrimes(config);
  for (std::size_t i = 0; i < config.layer_ids.size(); ++i) {
    EngramHash hash;
    const auto layer = static_cast<std::uint32_t>(config.layer_ids[i]);
    for (const std::int64_t value : NumpyIntegers(10007 * layer, bound, config.max_ngram_size)) {
      hash.multipliers.push_back(value * 2 + 1);
    }
    hash.primes = primes[i];
    std::int64_t offset = 0;
    for (const std::int64_t prime : hash.primes) {
      hash.offsets.push_back(offset);
      offset += prime;
    }
    if (offset != config.num_embeddings[i]) {
      return Err(ErrorCode::kInvalidArgument,
                 fmt::format("the Engram table of layer {} has {} rows, but its {} primes from {} on add up to {}; the "
                             "config does not belong to these tables",
                             layer, config.num_embeddings[i], hash.primes.size(), config.vocab_size, offset),
                 "engram_num_embeddings");
    }
    hashes.push_back(std::move(hash));
  }
  return hashes;
}

}  // namespace galley::model
