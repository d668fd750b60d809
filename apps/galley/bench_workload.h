// SPDX-License-Identifier: Apache-2.0
// Synthetic requests of a benchmark: prompt and output lengths from distributions, prompts that share prefixes. A pure
// function of its options, so equal options give equal prompts everywhere. Lengths are tokens.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "galley/base/error.h"
#include "galley/base/strong_id.h"

namespace galley::app {

// A stream of uniform numbers that depends on its seed and on how many were taken.
class UniformStream {
 public:
  explicit UniformStream(std::uint64_t seed) : seed_(seed) {}
  // In (0, 1).
  double Next();
  // In [0, count); requires count > 0.
  std::uint64_t Below(std::uint64_t count);

 private:
  std::uint64_t seed_;
  std::uint64_t taken_ = 0;
};

// "256", "uniform:LOW:HIGH", "lognormal:MEDIAN:SIGMA:MAX" (SIGMA of the logarithm; longer draws are cut to MAX) or
// "zipf:EXPONENT:MAX" (length k with a weight of 1 / k^EXPONENT).
class LengthDistribution {
 public:
  // kInvalidArgument naming `where`, the text and what it may be.
  [[nodiscard]] static Result<LengthDistribution> Parse(std::string_view text, std::string_view where);

  // In [1, longest()].
  [[nodiscard]] int Draw(UniformStream& uniform) const;
  [[nodiscard]] int longest() const { return high_; }
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  enum class Kind { kFixed, kUniform, kLogNormal, kZipf };
  std::string text_;
  Kind kind_ = Kind::kFixed;
  int low_ = 1;
  int high_ = 1;
  double median_ = 1;
  double sigma_ = 0;
  std::vector<double> below_;  // kZipf: [k - 1] share of lengths up to k
};

struct WorkloadOptions {
  int requests = 1;
  LengthDistribution prompt;
  LengthDistribution output;
  double shared_ratio = 0;  // part of each prompt that is the beginning of its group's prefix, below 1
  int shared_tokens = 0;    // or so many tokens in front of the `prompt` length, which is then a request's own part
  int groups = 1;           // different prefixes; requests belong to them in turn
  std::uint64_t seed = 0;
};

struct BenchRequest {
  std::vector<TokenId> prompt;
  int shared = 0;  // leading tokens that come from the group's prefix
  int max_tokens = 1;
  std::uint64_t seed = 0;  // of its draws
};

// Prompt tokens are drawn evenly from `vocabulary`, which is not empty.
[[nodiscard]] std::vector<BenchRequest> MakeWorkload(const WorkloadOptions& options,
                                                     std::span<const TokenId> vocabulary);

}  // namespace galley::app
