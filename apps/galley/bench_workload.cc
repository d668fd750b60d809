// SPDX-License-Identifier: Apache-2.0
#include "bench_workload.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numbers>
#include <optional>

#include "galley/base/rng.h"

namespace galley::app {
namespace {

constexpr int kLengthMax = 1 << 20;

std::vector<std::string_view> SplitAtColons(std::string_view text) {
  std::vector<std::string_view> parts;
  for (;;) {
    const std::size_t colon = text.find(':');
    parts.push_back(text.substr(0, colon));
    if (colon == std::string_view::npos) return parts;
    text.remove_prefix(colon + 1);
  }
}

template <typename Number>
std::optional<Number> ParseNumber(std::string_view text, Number low, Number high) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !(value >= low && value <= high)) return std::nullopt;
  return value;
}

std::optional<int> ParseLength(std::string_view text, int low = 1) {
  return ParseNumber<int>(text, low, kLengthMax);
}

}  // namespace

double UniformStream::Next() {
  return (static_cast<double>(MixBits(seed_ ^ MixBits(taken_++)) >> 11) + 0.5) * 0x1p-53;
}

std::uint64_t UniformStream::Below(std::uint64_t count) {
  return static_cast<std::uint64_t>(Next() * static_cast<double>(count));
}

Result<LengthDistribution> LengthDistribution::Parse(std::string_view text, std::string_view where) {
  LengthDistribution made;
  made.text_ = text;
  const std::vector<std::string_view> parts = SplitAtColons(text);
  const std::string_view kind = parts.front();
  if (const auto fixed = ParseLength(text)) {
    made.low_ = made.high_ = *fixed;
    return made;
  }
  if (kind == "uniform" && parts.size() == 3) {
    const auto low = ParseLength(parts[1]), high = ParseLength(parts[2], low.value_or(1));
    if (low && high) {
      made.kind_ = Kind::kUniform;
      made.low_ = *low;
      made.high_ = *high;
      return made;
    }
  }
  if (kind == "lognormal" && parts.size() == 4) {
    const auto median = ParseNumber<double>(parts[1], 1, kLengthMax);
    const auto sigma = ParseNumber<double>(parts[2], 0, 10);
    const auto most = ParseLength(parts[3]);
    if (median && sigma && most) {
      made.kind_ = Kind::kLogNormal;
      made.high_ = *most;
      made.median_ = *median;
      made.sigma_ = *sigma;
      return made;
    }
  }
  if (kind == "zipf" && parts.size() == 3) {
    const auto exponent = ParseNumber<double>(parts[1], 0, 10);
    const auto most = ParseLength(parts[2]);
    if (exponent && most) {
      made.kind_ = Kind::kZipf;
      made.high_ = *most;
      double sum = 0;
      for (int length = 1; length <= *most; ++length) made.below_.push_back(sum += std::pow(length, -*exponent));
      for (double& share : made.below_) share /= sum;
      return made;
    }
  }
  return Err(ErrorCode::kInvalidArgument,
             fmt::format("\"{}\" is no distribution of lengths; use N, uniform:LOW:HIGH, lognormal:MEDIAN:SIGMA:MAX or "
                         "zipf:EXPONENT:MAX with lengths of 1 to {}, SIGMA and EXPONENT of 0 to 10",
                         text, kLengthMax),
             std::string(where));
}

int LengthDistribution::Draw(UniformStream& uniform) const {
  switch (kind_) {
    case Kind::kFixed:
      return low_;
    case Kind::kUniform:
      return low_ + static_cast<int>(uniform.Below(static_cast<std::uint64_t>(high_ - low_ + 1)));
    case Kind::kLogNormal: {
      // Box-Muller.
      const double radius = std::sqrt(-2 * std::log(uniform.Next()));
      const double normal = radius * std::cos(2 * std::numbers::pi * uniform.Next());
      const double length = std::round(median_ * std::exp(sigma_ * normal));
      return static_cast<int>(std::clamp<double>(length, 1, high_));
    }
    case Kind::kZipf: {
      const auto place = std::ranges::lower_bound(below_, uniform.Next());
      return std::min(high_, static_cast<int>(place - below_.begin()) + 1);
    }
  }
  return low_;
}

std::vector<BenchRequest> MakeWorkload(const WorkloadOptions& options, std::span<const TokenId> vocabulary) {
  std::vector<BenchRequest> requests;
  UniformStream lengths(MixBits(options.seed));
  for (int i = 0; i < options.requests; ++i) {
    BenchRequest request;
    const int drawn = options.prompt.Draw(lengths);
    const int length = drawn + options.shared_tokens;
    const int by_ratio = static_cast<int>(std::round(options.shared_ratio * drawn));
    request.shared = options.shared_tokens > 0 ? options.shared_tokens : std::min(by_ratio, length - 1);
    request.max_tokens = options.output.Draw(lengths);
    // Below 2^63, as seeds of requests are.
    request.seed = (MixBits(options.seed + 1) >> 2) + static_cast<std::uint64_t>(i);
    UniformStream prefix(MixBits(options.seed + 2) + static_cast<std::uint64_t>(i % options.groups));
    UniformStream own(MixBits(options.seed + 3) + static_cast<std::uint64_t>(i));
    for (int position = 0; position < length; ++position) {
      UniformStream& from = position < request.shared ? prefix : own;
      request.prompt.push_back(vocabulary[from.Below(vocabulary.size())]);
    }
    requests.push_back(std::move(request));
  }
  return requests;
}

}  // namespace galley::app
