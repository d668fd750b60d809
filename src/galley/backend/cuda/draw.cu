// SPDX-License-Identifier: Apache-2.0
// Draws from rows of logits, and those of the draft block's chain, whose logits are a sum. A cluster of blocks of
// threads a row; changes of the request, the draw and log-probabilities in one launch.
#include "galley/backend/cuda/draw.cuh"
#include "galley/backend/cuda/draw_border.cuh"
#include "galley/backend/cuda/kernels.h"
#include "galley/backend/cuda/launch.h"
#include "galley/backend/cuda/ptx/async_copy.cuh"

namespace galley::backend::cuda {
namespace {

// Tokens a block; a multiple of 32, so that a word of a mask belongs to one of them.
__host__ __device__ constexpr int SliceTokens(int vocab) {
  return (vocab + 32 * kDrawBlocks - 1) / (32 * kDrawBlocks) * 32;
}
__device__ __forceinline__ Slice SliceOf(int vocab, std::uint8_t* memory) {
  const int rank = static_cast<int>(blockIdx.z), tokens = SliceTokens(vocab);
  return {.logits = reinterpret_cast<float*>(memory), .begin = rank * tokens, .groups = tokens / 4, .rank = rank};
}
__device__ __forceinline__ DrawBins* BinsOf(int vocab, std::uint8_t* memory) {
  return reinterpret_cast<DrawBins*>(memory + SliceTokens(vocab) * sizeof(float));
}

// Each thread its own groups, so that the first pass needs no barrier.
__device__ void Load(const Slice& slice, const float* row, int vocab) {
  const bool aligned = vocab % 4 == 0;
  for (int g = static_cast<int>(threadIdx.x); g < slice.groups; g += kDrawThreads) {
    const int id = slice.begin + g * 4;
    if (aligned && id < vocab) {
      ptx::CopyAsync16(slice.logits + g * 4, row + id, true);
    } else {
      for (int j = 0; j < 4; ++j) slice.logits[g * 4 + j] = id + j < vocab ? row[id + j] : -INFINITY;
    }
  }
  ptx::CommitCopies();
  ptx::WaitCopies<0>();
}

// The same of a sum, which is stored over the first.
__device__ void LoadSum(const Slice& slice, float* row, const float* bias, int vocab) {
  constexpr int kAhead = 4;
  const bool aligned = vocab % 4 == 0;
  for (int first = static_cast<int>(threadIdx.x); first < slice.groups; first += kAhead * kDrawThreads) {
    float sums[kAhead][4];
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      const int id = slice.begin + (first + a * kDrawThreads) * 4;
      if (aligned && id < vocab) {
        const float4 x = *reinterpret_cast<const float4*>(row + id), y = *reinterpret_cast<const float4*>(bias + id);
        sums[a][0] = x.x + y.x, sums[a][1] = x.y + y.y, sums[a][2] = x.z + y.z, sums[a][3] = x.w + y.w;
        continue;
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) sums[a][j] = id + j < vocab ? row[id + j] + bias[id + j] : -INFINITY;
    }
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      const int g = first + a * kDrawThreads, id = slice.begin + g * 4;
      if (g >= slice.groups) break;
      *reinterpret_cast<float4*>(slice.logits + g * 4) = {sums[a][0], sums[a][1], sums[a][2], sums[a][3]};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (id + j < vocab) row[id + j] = sums[a][j];
      }
    }
  }
}

// The place of the row's largest logit; 0 when none is a number above minus infinity.
__device__ __forceinline__ std::uint64_t Best(const Slice& slice, DrawShared& shared, std::uint64_t& word) {
  std::uint64_t best = 0;
  slice.ForTokens([&](int id, float logit) {
    if (logit > -INFINITY) best = max(best, PlaceOf(logit, id));
  });
  return ClusterMax(best, shared, word);
}

__device__ __forceinline__ int DrawFrom(const Slice& slice, std::uint64_t best, const SampleParams& params,
                                        DrawShared& shared, DrawBins* bins) {
  const float largest = LogitOf(best);
  if (!(params.temperature > 0.0f) || isinf(largest)) return IdOf(best);
  return Race(slice, params, largest, BorderOf(slice, params, largest, shared, bins), shared);
}

// Applies what the request changes to the slice.
__device__ void Change(const Slice& slice, const DrawRow& row, const DrawLaunch& args, const float* logits) {
  const std::uint32_t* allowed = row.allowed < 0 ? nullptr : args.words + row.allowed;
  const std::uint32_t* repeated = row.repeated < 0 ? nullptr : args.words + row.repeated;
  const auto change = [&](int id, float logit, const LogitChange& own) {
    if (allowed != nullptr && (allowed[id / 32] >> (id % 32) & 1u) == 0) return -INFINITY;
    const bool again = repeated != nullptr && (repeated[id / 32] >> (id % 32) & 1u) != 0;
    return ChangedLogit(logit, again ? row.repetition : 1.0f, own);
  };
  if (allowed != nullptr || repeated != nullptr) {
    slice.ForGroups([&](int id, const float4& group) {
      if (id >= args.vocab) return;
      *reinterpret_cast<float4*>(slice.logits + (id - slice.begin)) = {
          change(id, group.x, {}), change(id + 1, group.y, {}), change(id + 2, group.z, {}),
          change(id + 3, group.w, {})};
    });
  }
  __syncthreads();
  const LogitChange* changes = args.changes + row.changes;
  for (int i = static_cast<int>(threadIdx.x); i < row.change_count; i += kDrawThreads) {
    const LogitChange own = changes[i];
    const int at = own.id - slice.begin;
    if (at >= 0 && at < slice.groups * 4) slice.logits[at] = change(own.id, logits[own.id], own);
  }
  __syncthreads();
}

// The `count` most likely tokens of the slice, NaN not counting, into shared.top.
__device__ void FindTop(const Slice& slice, int vocab, int count, DrawShared& shared) {
  const auto most_below = [&](std::uint64_t limit) {
    std::uint64_t most = 0;
    slice.ForTokens([&](int id, float logit) {
      const std::uint64_t place = PlaceOf(logit, id);
      if (id < vocab && !isnan(logit) && place < limit) most = max(most, place);
    });
    return most;
  };
  std::uint64_t mine = most_below(~std::uint64_t{0});
  for (int i = 0; i < count; ++i) {
    const std::uint64_t top = BlockMax(mine, shared.warps);
    if (threadIdx.x == 0) shared.top[i] = top;
    if (top != 0 && mine == top) mine = most_below(top);
  }
}

// Joins the lists of the blocks, if there are any; one warp. Places without a token have id -1.
__device__ void WriteTop(int count, bool scored, double log_total, const DrawShared& shared, RankedToken* ranked) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int next = 0;
  std::uint64_t head = lane < kDrawBlocks && scored ? ptx::LoadOfBlock(&shared.top[0], lane) : 0;
  for (int i = 0; i < count; ++i) {
    const std::uint64_t top = WarpMax(head);
    if (lane == 0) {
      const bool none = top == 0;
      const auto logprob = static_cast<float>(static_cast<double>(LogitOf(top)) - log_total);
      ranked[i] = {.id = none ? -1 : IdOf(top), .logprob = none ? 0.0f : logprob};
    }
    if (top != 0 && head == top) head = ++next < count ? ptx::LoadOfBlock(&shared.top[next], lane) : 0;
  }
}

__global__ void __launch_bounds__(kDrawThreads, 2) DrawRowsKernel(DrawLaunch args) {
  ptx::BeginKernel();
  extern __shared__ __align__(16) std::uint8_t memory[];
  __shared__ DrawShared shared;
  const DrawRow row = args.rows[blockIdx.x];
  const Slice slice = SliceOf(args.vocab, memory);
  const float* logits = args.logits + static_cast<std::int64_t>(row.row) * args.vocab;
  Load(slice, logits, args.vocab);
  const std::uint64_t original = Best(slice, shared, shared.best);
  double log_total = 0;
  const bool scored = row.alternatives >= 0 && original != 0;
  if (scored) {
    const auto largest = static_cast<double>(LogitOf(original));
    double sum = 0;
    slice.ForTokens([&](int, float logit) {
      if (!isnan(logit)) sum += exp(static_cast<double>(logit) - largest);
    });
    log_total = largest + log(ClusterSum(sum, shared));
    FindTop(slice, args.vocab, row.alternatives, shared);
  }
  int token = row.given;
  if (token < 0) {
    std::uint64_t best = original;
    if (row.allowed >= 0 || row.repeated >= 0 || row.change_count > 0) {
      Change(slice, row, args, logits);
      best = Best(slice, shared, shared.changed_best);
    }
    token = original == 0 ? kBrokenRow
            : best == 0   ? kNothingLeft
                          : DrawFrom(slice, best, row.params, shared, BinsOf(args.vocab, memory));
  }
  ptx::SyncCluster();  // tops are there
  if (slice.rank == 0 && threadIdx.x < 32) {
    const std::int64_t at = blockIdx.x;
    if (row.alternatives > 0)
      WriteTop(row.alternatives, scored, log_total, shared, args.ranked + at * kAlternativesMax);
    if (threadIdx.x == 0) {
      float logprob = 0;
      if (row.alternatives >= 0 && token >= 0) {
        logprob = scored ? static_cast<float>(static_cast<double>(logits[token]) - log_total) : -INFINITY;
      }
      args.drawn[at] = {.id = token, .logprob = logprob};
    }
  }
  ptx::SyncCluster();  // nobody's shared memory is read any more
}

__global__ void __launch_bounds__(kDrawThreads, 2) DraftDrawKernel(DraftStepArgs args) {
  ptx::BeginKernel();
  extern __shared__ __align__(16) std::uint8_t memory[];
  __shared__ DrawShared shared;
  const int s = static_cast<int>(blockIdx.x);
  const std::int64_t row = static_cast<std::int64_t>(s) * args.block + args.row;
  const Slice slice = SliceOf(args.vocab, memory);
  LoadSum(slice, args.logits + row * args.vocab, args.bias + static_cast<std::int64_t>(s) * args.vocab, args.vocab);
  SampleParams params = args.params[s];
  params.position += args.row;
  const std::uint64_t best = Best(slice, shared, shared.best);
  // A row without a usable logit drafts token 0.
  const int token = best == 0 ? 0 : DrawFrom(slice, best, params, shared, BinsOf(args.vocab, memory));
  if (slice.rank == 0 && threadIdx.x == 0) args.tokens[row] = token;
  ptx::SyncCluster();  // nobody's shared memory is read any more
}

template <typename Args>
void LaunchDraws(void (*kernel)(Args), const Args& args, int rows, int vocab, bool filters, cudaStream_t stream) {
  const std::size_t bytes =
      static_cast<std::size_t>(SliceTokens(vocab)) * sizeof(float) + (filters ? sizeof(DrawBins) : 0);
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  LaunchClusters(kernel, dim3(static_cast<unsigned>(rows), 1, kDrawBlocks), kDrawThreads, bytes, stream, args);
}

}  // namespace

void DrawRows(const DrawLaunch& args, cudaStream_t stream) {
  LaunchDraws(DrawRowsKernel, args, args.count, args.vocab, args.filters, stream);
}

// Recorded steps replay the launch with other parameters, which may have filters.
void DraftDraw(const DraftStepArgs& args, cudaStream_t stream) {
  LaunchDraws(DraftDrawKernel, args, args.sequences, args.vocab, true, stream);
}

}  // namespace galley::backend::cuda
