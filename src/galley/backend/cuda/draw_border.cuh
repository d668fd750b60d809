// SPDX-License-Identifier: Apache-2.0
// Where a row is cut: the place of the last token that stays. Top-k and top-p go through histograms, first over even
// steps of the logit, then over finer ones, then over the bits of logit and id, until so few tokens are left in the bin
// that holds the border that each can be compared with all; mostly one. Counts and masses are whole numbers, so their
// order does not matter.
#pragma once

#include "galley/backend/cuda/draw.cuh"
#include "galley/backend/cuda/kernels.h"

namespace galley::backend::cuda {

constexpr int kBins = 2048;
constexpr double kMassOne = 0x1p44;  // mass of the most likely token; those of kDrawVocabMax tokens are below 2^63

struct DrawBins {
  std::uint64_t masses[kBins];
  std::uint32_t counts[kBins];
};

// What is left in a bin, in its place: of this block, and of all.
constexpr int kFew = 256;
struct FewTokens {
  std::uint64_t places[kFew], masses[kFew];
  std::uint64_t all_places[kFew], all_masses[kFew];
  std::uint32_t count;  // of this block, more than kFew where they do not fit
};
static_assert(sizeof(FewTokens) <= sizeof(DrawBins) && kFew <= kDrawThreads);

// The places of all tokens that are numbers begin here.
__device__ __forceinline__ std::uint64_t FirstNumber(int vocab) {
  return PlaceOf(-INFINITY, vocab - 1);
}

// The smallest place of a token that min-p keeps. Each warp by itself: a search in 32 parts over the order of logits.
__device__ __noinline__ std::uint64_t MinPBorder(float temperature, float min_p, float largest) {
  const std::uint32_t top = OrderOf(largest), lane = threadIdx.x % 32;
  const auto stays = [&](std::uint32_t order) {
    if (order >= top) return true;
    if (order <= OrderOf(-INFINITY)) return false;
    const double weight =
        exp((static_cast<double>(OfOrder(order)) - static_cast<double>(largest)) / static_cast<double>(temperature));
    return weight > 0 && weight >= static_cast<double>(min_p);
  };
  std::uint32_t from = 0;
#pragma unroll 1
  for (int shift = 27; shift >= 0; shift = shift == 2 ? 0 : shift - 5) {
    const std::uint32_t parts = shift == 0 ? 4 : 32;
    const std::uint32_t part = from + (min(lane, parts - 1) << shift);
    const std::uint32_t holds = __ballot_sync(kFullWarp, stays(part + ((1u << shift) - 1)));
    from += static_cast<std::uint32_t>(__ffs(static_cast<int>(holds)) - 1) << shift;
    if (shift == 0) break;
  }
  return static_cast<std::uint64_t>(from) << 32 | 0x80000000u;  // whatever its id
}

// One search for a border, by all blocks of the cluster.
class BorderSearch {
 public:
  __device__ BorderSearch(const Slice& slice, float temperature, float largest, DrawShared& shared, DrawBins& bins)
      : slice_(slice),
        shared_(shared),
        bins_(bins),
        largest_(largest),
        lowest_(largest - kLogitsMost * temperature),
        bits_(1.4426950408889634 / static_cast<double>(temperature)),
        scale_(kStepsEach / temperature) {}

  // Of the tokens from `border` on, the place of the last one of the smallest set of most likely tokens that has
  // `limit` tokens, or, with `by_mass`, the share `limit` of their mass. `border` when there are fewer. `word`: of
  // DrawShared, for this search.
  __device__ __forceinline__ std::uint64_t Cut(std::uint64_t border, bool by_mass, double limit, std::uint64_t& word) {
    low_ = 0, high_ = kBins;
    rest_mask_ = rest_ = 0;
    std::uint64_t above = 0;
    constexpr int kLevels = 7;
#pragma unroll 1
    for (int level = 0; level < kLevels; ++level) {
      Count(Border(border), level, by_mass);
      if (!Choose(above, by_mass, limit, level == 0)) return border;
      Narrow(level);
      above = chosen_above_;
      if (chosen_count_ <= kFew && ChooseAmongFew(Border(border), above, by_mass, limit, word)) return word;
    }
    return border;  // not reached: the last digits leave one token
  }

 private:
  static constexpr float kLogitsMost = 40;                // e-folds below the largest, where masses are 0
  static constexpr float kStepsEach = 64;                 // bins an e-fold of probability
  static constexpr float kStepsMost = 4194303.0f / 2048;  // the last part of the last bin

  // How far below the largest a token is, in bins; each has kBins parts.
  __device__ __forceinline__ float StepsOf(float logit) const {
    return fminf((largest_ - logit) * scale_, kStepsMost);
  }
  // Of a number from 0 to 2^23, rounded down.
  __device__ static __forceinline__ std::uint32_t WholeOf(float x) {
    return __float_as_uint(__fadd_rz(x, 8388608.0f)) & 0x7FFFFFu;
  }
  __device__ __forceinline__ std::uint64_t MassOf(float logit) const {
    const double x = (static_cast<double>(fmaxf(logit, lowest_)) - static_cast<double>(largest_)) * bits_;
    return static_cast<std::uint64_t>(__double_as_longlong(fma(PowerOfTwo(x), kMassOne, 0x1p52))) & 0xFFFFFFFFFFFFFull;
  }
  // Tokens that are still in question: their steps are within the bin chosen so far, and the masked bits of their
  // places from the top are these.
  template <typename Visit>
  __device__ __forceinline__ void ForRange(const Border& border, Visit&& visit) const {
    slice_.ForGroups([&](int id, const float(&logits)[4]) {
      float steps[4];
      bool inside[4], any = false;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        steps[j] = StepsOf(logits[j]);
        inside[j] = steps[j] >= low_ && steps[j] < high_;
        any = any || inside[j];
      }
      if (!any) return;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (!inside[j] || !border.Holds(logits[j], id + j)) continue;
        if ((~PlaceOf(logits[j], id + j) & rest_mask_) == rest_) visit(id + j, logits[j], steps[j]);
      }
    });
  }
  __device__ static int ShiftOf(int level) {
    return level == 2 ? 53 : level == 3 ? 42 : level == 4 ? 32 : level == 5 ? 11 : 0;
  }
  __device__ static std::uint32_t DigitsOf(int level) {
    return level == 4 ? 1023u : 2047u;
  }
  // The digit by which a level tells tokens apart; it rises as tokens get less likely.
  __device__ __forceinline__ std::uint32_t DigitOf(int level, int id, float logit, float steps) const {
    if (level == 0) return WholeOf(steps);
    if (level == 1) return WholeOf(steps * kBins) % kBins;
    return static_cast<std::uint32_t>(~PlaceOf(logit, id) >> ShiftOf(level)) & DigitsOf(level);
  }
  __device__ __forceinline__ void AddMass(std::uint32_t digit, std::uint64_t mass) {
    // Shared memory adds words only.
    auto* words = reinterpret_cast<std::uint32_t*>(&bins_.masses[digit]);
    const auto low = static_cast<std::uint32_t>(mass);
    const std::uint32_t before = atomicAdd(&words[0], low);
    const std::uint32_t high = static_cast<std::uint32_t>(mass >> 32) + (before + low < before ? 1u : 0u);
    if (high != 0) atomicAdd(&words[1], high);
  }
  __device__ __forceinline__ void Count(const Border& border, int level, bool by_mass) {
    auto* words = reinterpret_cast<uint4*>(&bins_);
    for (int i = static_cast<int>(threadIdx.x); i < static_cast<int>(sizeof(DrawBins) / sizeof(uint4));
         i += kDrawThreads) {
      words[i] = {};
    }
    __syncthreads();
    if (level == 0 && by_mass) {
      // Every token has its mass taken, so four go side by side; how many there are does not matter yet.
      slice_.ForGroups([&](int id, const float(&logits)[4]) {
        std::uint64_t masses[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) masses[j] = MassOf(logits[j]);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          if (logits[j] >= lowest_ && border.Holds(logits[j], id + j)) AddMass(WholeOf(StepsOf(logits[j])), masses[j]);
        }
      });
    } else {
      ForRange(border, [&](int id, float logit, float steps) {
        const std::uint32_t digit = DigitOf(level, id, logit, steps);
        atomicAdd(&bins_.counts[digit], 1u);
        if (by_mass && logit >= lowest_) AddMass(digit, MassOf(logit));
      });
    }
    ptx::SyncCluster();
  }
  // The first bin at whose end `limit` is reached, `above` being what lies before all bins; false when it never is. A
  // share becomes an amount at the first level. Each block adds up its part of the bins over the cluster.
  __device__ __forceinline__ bool Choose(std::uint64_t above, bool by_mass, double& limit, bool first) {
    constexpr int kEach = kBins / kDrawBlocks, kEachWarps = kEach / 32;
    const int tid = static_cast<int>(threadIdx.x), lane = tid % 32, warp = tid / 32;
    const int bin = slice_.rank * kEach + tid;
    const auto count_of_bin = [&] {
      std::uint32_t count = 0;
#pragma unroll
      for (int r = 0; r < kDrawBlocks; ++r) count += ptx::LoadOfBlock(&bins_.counts[bin], r);
      return count;
    };
    std::uint64_t own = 0, sum = 0;
    if (tid < kEach) {
      if (by_mass) {
#pragma unroll
        for (int r = 0; r < kDrawBlocks; ++r) own += ptx::LoadOfBlock(&bins_.masses[bin], r);
      } else {
        own = count_of_bin();
      }
      sum = own;
#pragma unroll
      for (int step = 1; step < 32; step <<= 1) {
        const std::uint64_t other = __shfl_up_sync(kFullWarp, sum, step);
        if (lane >= step) sum += other;
      }
      if (lane == 31) shared_.warps[warp] = sum;
    }
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
    int owner = kDrawBlocks - 1;
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
#pragma unroll
    for (int r = kDrawBlocks - 1; r >= 0; --r) {
      if (static_cast<double>(ends[r]) >= limit) owner = r;
    }
    const std::uint64_t end = before + sum, begin = end - own;
    if (owner == slice_.rank && tid < kEach && static_cast<double>(end) >= limit &&
        static_cast<double>(begin) < limit) {
      shared_.chosen_above = begin;
      shared_.chosen = static_cast<std::uint64_t>(count_of_bin()) << 32 | static_cast<std::uint32_t>(bin);
    }
    ptx::SyncCluster();
    chosen_above_ = ptx::LoadOfBlock(&shared_.chosen_above, owner);
    const std::uint64_t chosen = ptx::LoadOfBlock(&shared_.chosen, owner);
    chosen_digit_ = static_cast<std::uint32_t>(chosen), chosen_count_ = static_cast<std::uint32_t>(chosen >> 32);
    return true;
  }
  // The token at which `limit` is reached, into `word` of every block, where all that are in question fit; false
  // otherwise.
  __device__ __forceinline__ bool ChooseAmongFew(const Border& border, std::uint64_t above, bool by_mass, double limit,
                                                 std::uint64_t& word) {
    const int tid = static_cast<int>(threadIdx.x);
    FewTokens& few = reinterpret_cast<FewTokens&>(bins_);  // whose bins nobody reads any more
    if (tid == 0) few.count = 0;
    __syncthreads();
    ForRange(border, [&](int id, float logit, float) {
      const std::uint32_t i = atomicAdd(&few.count, 1u);
      if (i >= kFew) return;
      few.places[i] = PlaceOf(logit, id);
      few.masses[i] = !by_mass ? 1 : logit >= lowest_ ? MassOf(logit) : 0;
    });
    ptx::SyncCluster();
    int count = 0, owner = -1, at = 0;
#pragma unroll
    for (int r = 0; r < kDrawBlocks; ++r) {
      const auto own = static_cast<int>(ptx::LoadOfBlock(&few.count, r));
      if (tid >= count && tid < count + own) owner = r, at = tid - count;
      count += own;
    }
    if (count > kFew) {
      ptx::SyncCluster();  // everybody has seen that
      return false;
    }
    if (owner >= 0) {
      few.all_places[tid] = ptx::LoadOfBlock(&few.places[at], owner);
      few.all_masses[tid] = ptx::LoadOfBlock(&few.masses[at], owner);
    }
    ptx::SyncCluster();  // from here on only of this block
    if (owner >= 0) {
      const std::uint64_t place = few.all_places[tid];
      std::uint64_t before = above;
      for (int i = 0; i < count; ++i) before += few.all_places[i] > place ? few.all_masses[i] : 0;
      const std::uint64_t end = before + few.all_masses[tid];
      if (static_cast<double>(before) < limit && static_cast<double>(end) >= limit) word = place;
    }
    __syncthreads();
    return true;
  }
  __device__ __forceinline__ void Narrow(int level) {
    if (level < 2) {
      const float size = level == 0 ? 1.0f : 1.0f / kBins;
      low_ += static_cast<float>(chosen_digit_) * size;
      high_ = low_ + size;
    } else {
      rest_mask_ |= static_cast<std::uint64_t>(DigitsOf(level)) << ShiftOf(level);
      rest_ |= static_cast<std::uint64_t>(chosen_digit_) << ShiftOf(level);
    }
  }

  const Slice& slice_;
  DrawShared& shared_;
  DrawBins& bins_;
  float largest_, lowest_;
  double bits_;
  float scale_;
  float low_ = 0, high_ = kBins;
  std::uint64_t rest_mask_ = 0, rest_ = 0;
  std::uint64_t chosen_above_ = 0;
  std::uint32_t chosen_count_ = 0, chosen_digit_ = 0;
};

// The place from which on tokens take part in the race.
__device__ __forceinline__ std::uint64_t BorderOf(const Slice& slice, const SampleParams& params, float largest,
                                                  DrawShared& shared, DrawBins* bins) {
  std::uint64_t border = params.min_p > 0 ? MinPBorder(params.temperature, params.min_p, largest) : FirstLikely();
  if (params.top_k <= 0 && params.top_p >= 1.0f) return border;
  BorderSearch search(slice, params.temperature, largest, shared, *bins);
#pragma unroll 1
  for (int i = 1; i <= 2; ++i) {
    const bool by_mass = i == 2;
    const double limit = by_mass ? static_cast<double>(params.top_p) : static_cast<double>(params.top_k);
    if (by_mass ? params.top_p < 1.0f : params.top_k > 0) border = search.Cut(border, by_mass, limit, shared.last[i]);
  }
  return border;
}

}  // namespace galley::backend::cuda
