// SPDX-License-Identifier: Apache-2.0
// Draws with a temperature and nothing else, from rows of which nothing else is asked: one pass over memory, in which
// each thread keeps its largest logit and runs its race. draw.cu's rule and results.
#include "galley/backend/cuda/draw.cuh"
#include "galley/backend/cuda/kernels.h"
#include "galley/backend/cuda/launch.h"

namespace galley::backend::cuda {
namespace {

// Scores of single precision decide only while their rounding stays far below the race's margin.
constexpr float kScoreMost = 4096;

// The part of the row that a block reads, where the row lies; whole groups of four.
template <int Blocks>
__device__ __forceinline__ Slice SliceOf(const float* row, int vocab) {
  const int rank = static_cast<int>(blockIdx.z), groups = (vocab / 4 + Blocks - 1) / Blocks, begin = rank * groups * 4;
  return {.logits = const_cast<float*>(row) + begin,  // nothing is written
          .begin = begin,
          .groups = max(min(groups, (vocab - begin) / 4), 0),
          .rank = rank};
}

template <int Blocks>
__global__ void __launch_bounds__(kDrawThreads, 2) DrawPlainKernel(DrawLaunch args) {
  ptx::BeginKernel();
  __shared__ DrawShared shared;
  const DrawRow row = args.rows[blockIdx.x];
  const Slice slice = SliceOf<Blocks>(args.logits + static_cast<std::int64_t>(row.row) * args.vocab, args.vocab);
  const bool greedy = !(row.params.temperature > 0.0f);
  const float bits = greedy ? 1.0f : 1.44269504f / row.params.temperature, reach = kRaceReach / bits;
  float most = -INFINITY;
  int at = -1;
  Racer racer;
  const auto read = [&](int g) {
    return g < slice.groups ? reinterpret_cast<const float4*>(slice.logits)[g] : float4{};
  };
  float4 next = read(static_cast<int>(threadIdx.x));
#pragma unroll 1
  for (int g = static_cast<int>(threadIdx.x); g < slice.groups; g += kDrawThreads) {
    const float logits[4] = {next.x, next.y, next.z, next.w};
    next = read(g + kDrawThreads);
    const int id = slice.begin + g * 4;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      at = logits[j] > most ? id + j : at;
      most = logits[j] > most ? logits[j] : most;
    }
    // Nothing that is so far below the thread's largest wins, which the row's can only exceed.
    const float group = fmaxf(fmaxf(logits[0], logits[1]), fmaxf(logits[2], logits[3]));
    if (greedy || !(group >= most - reach)) continue;
    float noise[4];
    NoiseBits(NoiseWords(row.params, id), noise);
#pragma unroll
    for (int j = 0; j < 4; ++j) racer.Enter(id + j, logits[j] > -INFINITY ? fmaf(logits[j], bits, noise[j]) : kNoScore);
  }
  const std::uint64_t best = ClusterMax<Blocks>(at < 0 ? 0 : PlaceOf(most, at), shared, shared.best);
  const float largest = LogitOf(best);
  int token = best == 0 ? kBrokenRow : IdOf(best);
  if (best != 0 && !greedy && !isinf(largest)) {
    const bool exact = fabsf(largest * bits) > kScoreMost;
    token = Winner<Blocks>(slice, row.params, largest, FirstLikely(), racer, exact, shared);
  }
  if (slice.rank == 0 && threadIdx.x == 0) args.drawn[blockIdx.x] = {.id = token, .logprob = 0};
  ptx::SyncCluster();  // nobody's shared memory is read any more
}

template <int Blocks>
void Launch(const DrawLaunch& args, cudaStream_t stream) {
  LaunchClusters(DrawPlainKernel<Blocks>, dim3(static_cast<unsigned>(args.count), 1, Blocks), kDrawThreads, 0, stream,
                 args);
}

}  // namespace

// As many blocks as an H200 takes at a time.
void DrawPlainRows(const DrawLaunch& args, cudaStream_t stream) {
  args.count <= 32 ? Launch<8>(args, stream) : Launch<4>(args, stream);
}

}  // namespace galley::backend::cuda
