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
  float most = -INFINITY;
  int at = -1;
  slice.ForGroups([&](int id, const float(&logits)[4]) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      at = logits[j] > most ? id + j : at;
      most = logits[j] > most ? logits[j] : most;
    }
  });
  return ClusterMax(at < 0 ? 0 : PlaceOf(most, at), shared, word);
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
  const auto bits_at = [](const std::uint32_t* words, int id) { return words[id / 32] >> (id % 32); };
  if (allowed != nullptr || repeated != nullptr) {
    slice.ForGroups([&](int id, const float(&own)[4]) {
      if (id >= args.vocab) return;
      const std::uint32_t may_come = allowed == nullptr ? ~0u : bits_at(allowed, id);
      const std::uint32_t again = repeated == nullptr ? 0u : bits_at(repeated, id);
      float changed[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        changed[j] = (may_come >> j & 1u) != 0 ? own[j] : -INFINITY;
        if ((again >> j & 1u) != 0) changed[j] = ChangedLogit(changed[j], row.repetition, {});
      }
      *reinterpret_cast<float4*>(slice.logits + (id - slice.begin)) = {changed[0], changed[1], changed[2], changed[3]};
    });
  }
  __syncthreads();
  const LogitChange* changes = args.changes + row.changes;
  for (int i = static_cast<int>(threadIdx.x); i < row.change_count; i += kDrawThreads) {
    const LogitChange own = changes[i];
    const int at = own.id - slice.begin;
    if (at < 0 || at >= slice.groups * 4) continue;
    if (allowed != nullptr && (bits_at(allowed, own.id) & 1u) == 0) continue;
    const bool again = repeated != nullptr && (bits_at(repeated, own.id) & 1u) != 0;
    slice.logits[at] = ChangedLogit(logits[own.id], again ? row.repetition : 1.0f, own);
  }
  __syncthreads();
}

// The logarithm of the sum of exponentials.
__device__ __forceinline__ double LogTotal(const Slice& slice, float largest, DrawShared& shared) {
  constexpr double kBits = 1.4426950408889634;
  const float least = largest - 690;  // what is below, or NaN, adds nothing
  double sum = 0;
  slice.ForGroups([&](int, const float(&logits)[4]) {
    double four[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const double x = (static_cast<double>(fmaxf(logits[j], least)) - static_cast<double>(largest)) * kBits;
      four[j] = logits[j] >= least ? PowerOfTwo(x) : 0;
    }
    sum += (four[0] + four[1]) + (four[2] + four[3]);
  });
  return static_cast<double>(largest) + log(ClusterSum(sum, shared));
}

// The tokens of the slice from `border` on, at most kAlternativesMax, into shared.top.
__device__ void KeepTop(const Slice& slice, std::uint64_t border, DrawShared& shared) {
  const Border last(border);
  if (threadIdx.x == 0) shared.top_count = 0;
  __syncthreads();
  slice.ForGroups([&](int id, const float(&logits)[4]) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (last.Holds(logits[j], id + j)) shared.top[atomicAdd(&shared.top_count, 1u)] = PlaceOf(logits[j], id + j);
    }
  });
}

// Writes the tokens that the blocks have kept, most likely first; one warp. Places without a token have id -1.
__device__ void WriteTop(int count, double log_total, const DrawShared& shared, RankedToken* ranked) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  // A lane a place of the lists, block after block.
  std::uint64_t mine = 0;
  int before = 0;
  for (int r = 0; r < kDrawBlocks; ++r) {
    const auto kept = static_cast<int>(ptx::LoadOfBlock(&shared.top_count, r));
    if (lane >= before && lane < before + kept) mine = ptx::LoadOfBlock(&shared.top[lane - before], r);
    before += kept;
  }
  for (int i = 0; i < count; ++i) {
    const std::uint64_t top = WarpMax(mine);
    const auto logprob = static_cast<float>(static_cast<double>(LogitOf(top)) - log_total);
    if (lane == 0) ranked[i] = {.id = top == 0 ? -1 : IdOf(top), .logprob = top == 0 ? 0.0f : logprob};
    if (mine == top) mine = 0;
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
    const float largest = LogitOf(original);
    log_total = LogTotal(slice, largest, shared);
    if (row.alternatives > 0) {
      const std::uint64_t first = FirstNumber(args.vocab);
      BorderSearch search(slice, 1, largest, shared, *BinsOf(args.vocab, memory));
      KeepTop(slice, search.Cut(first, false, row.alternatives, shared.last[0]), shared);
    }
  } else if (threadIdx.x == 0) {
    shared.top_count = 0;
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
    if (row.alternatives > 0) WriteTop(row.alternatives, log_total, shared, args.ranked + at * kAlternativesMax);
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
  if (args.plain) return DrawPlainRows(args, stream);
  LaunchDraws(DrawRowsKernel, args, args.count, args.vocab, args.filters, stream);
}

// Recorded steps replay the launch with other parameters, which may have filters.
void DraftDraw(const DraftStepArgs& args, cudaStream_t stream) {
  LaunchDraws(DraftDrawKernel, args, args.sequences, args.vocab, true, stream);
}

}  // namespace galley::backend::cuda
