// SPDX-License-Identifier: Apache-2.0
// One site of the hyper-connections (2.2) in one launch, for few rows: blocks of threads take two chunks of the hidden
// dimension each, so that a single row fills the device, and the last of them to arrive finish the rows: they add the
// chunks' sums and write the coefficients and the normed values. Many rows: mhc_clusters.cu.
#include "galley/backend/cuda/last_blocks.cuh"
#include "galley/backend/cuda/launch.h"
#include "galley/backend/cuda/mhc_tile.cuh"

namespace galley::backend::cuda {
namespace {

constexpr int kBlockChunks = 2, kBlockTiles = 4, kThreads = 32 * kBlockChunks * kBlockTiles;
constexpr int kBlockRows = kBlockTiles * kTileRows;
constexpr int kRowsAtOnce = kBlockRows * kArrivalGroups;  // of a launch
constexpr int kFinishersMax = 128;                        // of all groups together
constexpr int kNormThreads = kThreads - 32, kNormPieces = 3;  // of 8 values each, that a thread holds

struct Scratch {
  std::uint32_t* arrivals;  // last_blocks.cuh
  float* sums;              // [rows][chunks][kSums]
  int chunks, finishers;    // of a group of kBlockRows rows
};

struct Shared {
  uint4 fn[kBlockChunks][kFnPieces * 32];  // later the sums of slices
  float totals[kSums];
  Site site;
  int number;  // of the row of the group that the block finishes first
};

// Values of a row of x, by all warps but the first, which is busy with the coefficients. They are read before the sums
// are known; what a thread cannot hold comes after it.
struct NormRow {
  uint4 x[kNormPieces], norm[kNormPieces];

  __device__ __forceinline__ void Read(const BFloat16* row, const BFloat16* weight, int pieces, int thread) {
#pragma unroll
    for (int j = 0; j < kNormPieces; ++j) {
      const int piece = thread + j * kNormThreads;
      if (piece >= pieces) continue;
      x[j] = __ldcg(reinterpret_cast<const uint4*>(row) + piece);
      norm[j] = reinterpret_cast<const uint4*>(weight)[piece];
    }
  }
  __device__ __forceinline__ static uint4 Normed(const uint4& x, const uint4& norm, float r) {
    return {NormPair(x.x, norm.x, r), NormPair(x.y, norm.y, r), NormPair(x.z, norm.z, r), NormPair(x.w, norm.w, r)};
  }
  __device__ __forceinline__ void Write(BFloat16* row, const BFloat16* weight, int pieces, int thread, float r) const {
    uint4* to = reinterpret_cast<uint4*>(row);
#pragma unroll
    for (int j = 0; j < kNormPieces; ++j) {
      const int piece = thread + j * kNormThreads;
      if (piece < pieces) to[piece] = Normed(x[j], norm[j], r);
    }
    for (int piece = thread + kNormPieces * kNormThreads; piece < pieces; piece += kNormThreads) {
      to[piece] = Normed(__ldcg(to + piece), reinterpret_cast<const uint4*>(weight)[piece], r);
    }
  }
};

__device__ __forceinline__ void FinishRow(const MhcBoundaryArgs& args, const Scratch& scratch, std::int64_t t,
                                          Shared& shared) {
  const int tid = static_cast<int>(threadIdx.x), pieces = args.dim / 8;
  const bool norms = args.norm != nullptr && args.x != nullptr && tid >= 32;
  BFloat16* x = norms ? args.x + t * args.dim : nullptr;
  NormRow held;
  if (norms) held.Read(x, args.norm, pieces, tid - 32);
  const float* sums = scratch.sums + t * scratch.chunks * kSums;
  const int slices = (scratch.chunks + kSliceChunks - 1) / kSliceChunks;
  float* slice_sums = reinterpret_cast<float*>(shared.fn);  // [slices][kSums]
  __syncthreads();
#pragma unroll 2
  for (int i = tid; i < slices * kSums; i += kThreads) {
    const int first = i / kSums * kSliceChunks;
    float value[kSliceChunks], sum = 0;
#pragma unroll
    for (int c = 0; c < kSliceChunks; ++c) {
      value[c] = first + c < scratch.chunks ? __ldcg(sums + (first + c) * kSums + i % kSums) : 0.0f;
    }
#pragma unroll
    for (int c = 0; c < kSliceChunks; ++c) sum += value[c];
    slice_sums[i] = sum;
  }
  __syncthreads();
  if (tid < kSums) {
    float sum = 0;
#pragma unroll 8
    for (int s = 0; s < slices; ++s) sum += slice_sums[s * kSums + tid];
    shared.totals[tid] = sum;
  }
  __syncthreads();
  if (args.fn != nullptr && tid == 0) WriteCoefficients(args, shared.site, t, shared.totals);
  if (!norms) return;
  const float r = InverseRms(shared.totals[kSquaresOfX], 1.0f / static_cast<float>(args.dim), args.norm_eps);
  held.Write(x, args.norm, pieces, tid - 32, r);
}

// The last blocks of a group of rows to arrive finish one row after the other each.
__device__ __forceinline__ void FinishRows(const MhcBoundaryArgs& args, const Scratch& scratch, Shared& shared) {
  const int group = static_cast<int>(blockIdx.y), first = group * kBlockRows;
  const int rows = min(args.rows - first, kBlockRows), finishers = min(rows, scratch.finishers);
  const int number =
      ArriveInGroup(scratch.arrivals, group, static_cast<int>(gridDim.x), finishers, shared.number);
  for (int row = number; row >= 0 && row < rows; row += finishers) FinishRow(args, scratch, first + row, shared);
}

__global__ void __launch_bounds__(kThreads, 2) ChunkKernel(MhcBoundaryArgs args, Scratch scratch) {
  __shared__ Shared shared;
  ptx::LetNextKernelStart();
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int chunk0 = static_cast<int>(blockIdx.x) * kBlockChunks, chunk = chunk0 + warp % kBlockChunks;
  // The matrix is under way while the previous kernel runs, and is brought into place while the rows are.
  constexpr int kItems = kBlockChunks * kFnItems / kThreads;
  static_assert(kItems * kThreads == kBlockChunks * kFnItems);
  FnValues fn[kItems];
#pragma unroll
  for (int j = 0; j < kItems && args.fn != nullptr; ++j) {
    const int i = static_cast<int>(threadIdx.x) + j * kThreads;
    fn[j].Read(args.fn, args.dim, chunk0 + i / kFnItems, i % kFnItems);
  }
  shared.site.Read(args, static_cast<int>(threadIdx.x));
  ptx::WaitForPreviousKernel();
  const int d = chunk * kChunk + lane % 4 * 8;
  const std::int64_t t0 = static_cast<std::int64_t>(blockIdx.y) * kBlockRows + warp / kBlockChunks * kTileRows;
  const bool expand = args.y != nullptr, collapse = args.x != nullptr, works = t0 < args.rows && d < args.dim;
  RowValues rows[2];
  Mixing mixing[2] = {};
  if (works) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const std::int64_t t = t0 + half * 8 + lane / 4;
      ReadValues(rows[half], args, t, d);
      if (t >= args.rows) continue;
#pragma unroll
      for (int c = 0; c < kCopies && expand; ++c) Read4(mixing[half].comb[c], args.comb_in + (t * kCopies + c) * kCopies);
      if (expand) Read4(mixing[half].post, args.post_in + t * kCopies);
      if (collapse) Read4(mixing[half].pre, args.pre_in + t * kCopies);
    }
  }
#pragma unroll
  for (int j = 0; j < kItems && args.fn != nullptr; ++j) {
    const int i = static_cast<int>(threadIdx.x) + j * kThreads;
    fn[j].Place(shared.fn[i / kFnItems], i % kFnItems);
  }
  __syncthreads();
  if (works) {
    Collapsed collapsed[2];
    Operands operands;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      collapsed[half] = Mix(rows[half], mixing[half], expand, collapse, half, operands);
    }
    Products products = {};
    if (args.fn != nullptr) Multiply(products, shared.fn[warp % kBlockChunks], operands);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const std::int64_t t = t0 + half * 8 + lane / 4;
      float* sums = scratch.sums + (min(t, static_cast<std::int64_t>(args.rows) - 1) * scratch.chunks + chunk) * kSums;
      StoreSums(sums, products, half, collapsed[half].square, t < args.rows);
      if (expand) WriteH(operands, half, args, t, d);
      if (collapse && t < args.rows) Write8(args.x + t * args.dim + d, collapsed[half].x);
    }
  }
  if (args.fn != nullptr || (collapse && args.norm != nullptr)) FinishRows(args, scratch, shared);
}

// `args` from row `first` on, `count` of them.
MhcBoundaryArgs RowsOf(MhcBoundaryArgs args, std::int64_t first, int count) {
  const auto advance = [first](auto*& pointer, std::int64_t stride) {
    if (pointer != nullptr) pointer += first * stride;
  };
  args.rows = count;
  advance(args.h, std::int64_t{kCopies} * args.dim);
  advance(args.y, args.dim);
  advance(args.post_in, kCopies);
  advance(args.comb_in, kCopies * kCopies);
  advance(args.pre_out, kCopies);
  advance(args.post_out, kCopies);
  advance(args.comb_out, kCopies * kCopies);
  advance(args.pre_in, kCopies);
  advance(args.x, args.dim);
  return args;
}

}  // namespace

std::size_t MhcScratchBytes(int rows, int dim) {
  return static_cast<std::size_t>(rows < kRowsAtOnce ? rows : kRowsAtOnce) *
         static_cast<std::size_t>((dim + kChunk - 1) / kChunk) * kSums * sizeof(float);
}

void MhcBoundary(const MhcBoundaryArgs& args, const MhcScratch& scratch, MhcForm form, cudaStream_t stream) {
  if (form != MhcForm::kChunks && MhcClusters(args, form == MhcForm::kClusters, stream)) return;
  const int chunks = (args.dim + kChunk - 1) / kChunk;
  for (int first = 0; first < args.rows; first += kRowsAtOnce) {
    const int count = min(args.rows - first, kRowsAtOnce), groups = (count + kBlockRows - 1) / kBlockRows;
    const int blocks = (chunks + kBlockChunks - 1) / kBlockChunks;
    const Scratch s{.arrivals = scratch.arrivals,
                    .sums = scratch.sums,
                    .chunks = chunks,
                    .finishers = min(blocks, kFinishersMax / groups)};
    LaunchKernel(ChunkKernel, dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(groups)), kThreads, 0, stream,
                 RowsOf(args, first, count), s);
  }
}

}  // namespace galley::backend::cuda
