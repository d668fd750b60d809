// SPDX-License-Identifier: Apache-2.0
// Where the filters of a draw cut: the place of the last token that stays. Top-k and top-p go through histograms, first
// over even steps of the logit, then over finer ones, then over the bits of logit and id, until one token is left in
// the bin that holds the border; mostly two or three. Counts and masses are whole numbers, so their order does not
// matter.
#pragma once

#include "galley/backend/cuda/draw.cuh"

namespace galley::backend::cuda {

constexpr int kBins = 2048;
constexpr double kMassOne = 0x1p44;  // mass of the most likely token; those of kDrawVocabMax tokens are below 2^63

struct DrawBins {
  std::uint32_t counts[kBins];
  std::uint32_t low[kBins], high[kBins];  // of masses; shared memory adds words only
};

// The smallest place of a token that min-p keeps. Each warp by itself: a search in 32 parts over the order of logits.
__device__ __forceinline__ std::uint64_t MinPBorder(const SampleParams& params, float largest) {
  const std::uint32_t top = OrderOf(largest), lane = threadIdx.x % 32;
  const auto stays = [&](std::uint32_t order) {
    if (order >= top) return true;
    if (order <= OrderOf(-INFINITY)) return false;
    const double weight = exp((static_cast<double>(OfOrder(order)) - static_cast<double>(largest)) /
                              static_cast<double>(params.temperature));
    return weight > 0 && weight >= static_cast<double>(params.min_p);
  };
  std::uint32_t from = 0;
  for (int shift = 27; shift >= 0; shift = shift == 2 ? 0 : shift - 5) {
    const std::uint32_t parts = shift == 0 ? 4 : 32;
    const std::uint32_t part = from + (min(lane, parts - 1) << shift);
    const std::uint32_t holds = __ballot_sync(kFullWarp, stays(part + ((1u << shift) - 1)));
    from += static_cast<std::uint32_t>(__ffs(static_cast<int>(holds)) - 1) << shift;
    if (shift == 0) break;
  }
  return static_cast<std::uint64_t>(from) << 32;
}

// Finds borders in one slice of a row.
class BorderSearch {
 public:
  __device__ BorderSearch(const Slice& slice, const SampleParams& params, float largest, DrawShared& shared,
                          DrawBins& bins)
      : slice_(slice),
        shared_(shared),
        bins_(bins),
        largest_(largest),
        inverse_(1.0 / static_cast<double>(params.temperature)),
        scale_(kStepsEach / params.temperature) {}

  // Of the tokens from `border` on, the place of the last one of the smallest set of most likely tokens that has
  // `limit` tokens, or, with `by_mass`, the share `limit` of their mass. `border` when there are fewer.
  __device__ std::uint64_t Cut(std::uint64_t border, bool by_mass, double limit) {
    border_ = border;
    step_mask_ = step_ = 0;
    rest_mask_ = rest_ = 0;
    std::uint64_t above = 0;
    constexpr int kLevels = 7;
    for (int level = 0; level < kLevels; ++level) {
      Count(level, by_mass);
      if (!Choose(above, by_mass, limit, level == 0)) return border;
      Narrow(level, chosen_digit_);
      above = chosen_above_;
      if (chosen_count_ == 1) break;
    }
    std::uint64_t mine = 0;
    ForRange([&](std::uint64_t place, float, std::uint32_t) { mine = place; });
    return ClusterMax(mine, shared_, by_mass ? shared_.single : shared_.border);
  }

 private:
  static constexpr float kStepsEach = 64;  // bins an e-fold of probability
  static constexpr float kStepsMost = 4194303.0f;

  // Steps of a token below the largest, in parts of a bin: kBins bins of kBins parts.
  __device__ std::uint32_t StepsOf(float logit) const {
    return __float2uint_rz(fminf((largest_ - logit) * scale_ * static_cast<float>(kBins), kStepsMost));
  }
  template <typename Visit>
  __device__ void ForRange(Visit&& visit) const {
    slice_.ForTokens([&](int id, float logit) {
      if (!(logit > -INFINITY)) return;
      const std::uint64_t place = PlaceOf(logit, id);
      const std::uint32_t steps = StepsOf(logit);
      if (place < border_ || (steps & step_mask_) != step_ || (~place & rest_mask_) != rest_) return;
      visit(place, logit, steps);
    });
  }
  // The digit by which a level tells tokens apart; it rises as tokens get less likely.
  __device__ static std::uint32_t DigitOf(int level, std::uint64_t place, std::uint32_t steps) {
    constexpr int kShift[] = {11, 0, 53, 42, 32, 11, 0};
    const std::uint64_t digits = level < 2 ? steps : ~place;
    return static_cast<std::uint32_t>(digits >> kShift[level]) & (level == 4 ? 1023u : 2047u);
  }
  __device__ void Narrow(int level, std::uint32_t digit) {
    constexpr int kShift[] = {11, 0, 53, 42, 32, 11, 0};
    const std::uint64_t mask = (level == 4 ? 1023ull : 2047ull) << kShift[level];
    const std::uint64_t value = static_cast<std::uint64_t>(digit) << kShift[level];
    if (level < 2) {
      step_mask_ |= static_cast<std::uint32_t>(mask), step_ |= static_cast<std::uint32_t>(value);
    } else {
      rest_mask_ |= mask, rest_ |= value;
    }
  }
  __device__ void Count(int level, bool by_mass) {
    for (int i = static_cast<int>(threadIdx.x); i < kBins; i += kDrawThreads) {
      bins_.counts[i] = bins_.low[i] = bins_.high[i] = 0;
    }
    __syncthreads();
    ForRange([&](std::uint64_t place, float logit, std::uint32_t steps) {
      const std::uint32_t digit = DigitOf(level, place, steps);
      atomicAdd(&bins_.counts[digit], 1u);
      if (!by_mass) return;
      const double weight = exp((static_cast<double>(logit) - static_cast<double>(largest_)) * inverse_);
      const auto mass = static_cast<std::uint64_t>(__double2ull_rn(weight * kMassOne));
      const auto low = static_cast<std::uint32_t>(mass);
      const std::uint32_t before = low == 0 ? 0 : atomicAdd(&bins_.low[digit], low);
      const std::uint32_t high = static_cast<std::uint32_t>(mass >> 32) + (before + low < before ? 1u : 0u);
      if (high != 0) atomicAdd(&bins_.high[digit], high);
    });
    ptx::SyncCluster();
  }
  // The first bin at whose end `limit` is reached, `above` being what lies before all bins; false when it never is. A
  // share becomes an amount at the first level. Each block adds up its part of the bins over the cluster.
  __device__ bool Choose(std::uint64_t above, bool by_mass, double& limit, bool first) {
    constexpr int kEach = kBins / kDrawBlocks, kEachWarps = kEach / 32;
    const int tid = static_cast<int>(threadIdx.x), lane = tid % 32, warp = tid / 32;
    const int bin = slice_.rank * kEach + tid;
    std::uint64_t count = 0, mass = 0;
    if (tid < kEach) {
#pragma unroll
      for (int r = 0; r < kDrawBlocks; ++r) {
        count += ptx::LoadOfBlock(&bins_.counts[bin], r);
        if (!by_mass) continue;
        mass += ptx::LoadOfBlock(&bins_.low[bin], r);
        mass += static_cast<std::uint64_t>(ptx::LoadOfBlock(&bins_.high[bin], r)) << 32;
      }
    }
    const std::uint64_t own = by_mass ? mass : count;
    std::uint64_t sum = own;
#pragma unroll
    for (int step = 1; step < 32; step <<= 1) {
      const std::uint64_t other = __shfl_up_sync(kFullWarp, sum, step);
      if (lane >= step) sum += other;
    }
    if (lane == 31) shared_.warps[warp] = sum;
    __syncthreads();
    std::uint64_t all = 0;
#pragma unroll
    for (int w = 0; w < kEachWarps; ++w) {
      if (w < warp) sum += shared_.warps[w];
      all += shared_.warps[w];
    }
    if (tid == 0) shared_.segment = all;
    ptx::SyncCluster();
    std::uint64_t before = above, total = above;
    std::uint64_t ends[kDrawBlocks];
#pragma unroll
    for (int r = 0; r < kDrawBlocks; ++r) {
      const std::uint64_t segment = ptx::LoadOfBlock(&shared_.segment, r);
      if (r < slice_.rank) before += segment;
      total += segment;
      ends[r] = total;
    }
    // At least a fraction of one, so that one token stays.
    if (first) limit = fmax(by_mass ? limit * static_cast<double>(total) : limit, 0.5);
    if (static_cast<double>(total) < limit) return false;
    int owner = 0;
#pragma unroll
    for (int r = kDrawBlocks - 1; r >= 0; --r) {
      if (static_cast<double>(ends[r]) >= limit) owner = r;
    }
    const std::uint64_t end = before + sum, begin = end - own;
    if (tid < kEach && static_cast<double>(end) >= limit && static_cast<double>(begin) < limit) {
      shared_.chosen_above = begin;
      shared_.chosen_digit = static_cast<std::uint64_t>(bin);
      shared_.chosen_count = count;
    }
    ptx::SyncCluster();
    chosen_above_ = ptx::LoadOfBlock(&shared_.chosen_above, owner);
    chosen_digit_ = static_cast<std::uint32_t>(ptx::LoadOfBlock(&shared_.chosen_digit, owner));
    chosen_count_ = ptx::LoadOfBlock(&shared_.chosen_count, owner);
    return true;
  }

  const Slice& slice_;
  DrawShared& shared_;
  DrawBins& bins_;
  float largest_;
  double inverse_;
  float scale_;
  std::uint64_t border_ = 0;
  // Tokens in question: those whose masked steps, and masked places from the top, are these.
  std::uint32_t step_mask_ = 0, step_ = 0;
  std::uint64_t rest_mask_ = 0, rest_ = 0;
  std::uint64_t chosen_above_ = 0, chosen_count_ = 0;
  std::uint32_t chosen_digit_ = 0;
};

// The place from which on tokens take part in the race.
__device__ __forceinline__ std::uint64_t BorderOf(const Slice& slice, const SampleParams& params, float largest,
                                                  DrawShared& shared, DrawBins* bins) {
  std::uint64_t border = params.min_p > 0 ? MinPBorder(params, largest) : 0;
  if (params.top_k <= 0 && params.top_p >= 1.0f) return border;
  BorderSearch search(slice, params, largest, shared, *bins);
  if (params.top_k > 0) border = search.Cut(border, false, static_cast<double>(params.top_k));
  if (params.top_p < 1.0f) border = search.Cut(border, true, static_cast<double>(params.top_p));
  return border;
}

}  // namespace galley::backend::cuda
