// SPDX-License-Identifier: Apache-2.0
// One site of the hyper-connections (2.2) in one launch, for few rows: blocks of threads take two chunks of the hidden
// dimension each, so that a single row fills the device, and the last of them to arrive finish the rows: they add the
// chunks' sums and write the coefficients and the normed values. More rows: mhc_clusters.cu and mhc_wide.cu.
#include <algorithm>

#include "galley/backend/cuda/last_blocks.cuh"
#include "galley/backend/cuda/launch.h"
#include "galley/backend/cuda/mhc_tile.cuh"

namespace galley::backend::cuda {
namespace {

constexpr int kBlockChunks = 2, kBlockTiles = 4, kThreads = 32 * kBlockChunks * kBlockTiles;
constexpr int kBlockRows = kBlockTiles * kTileRows;
constexpr int kGroupsAtOnce = 16, kRowsAtOnce = kBlockRows * kGroupsAtOnce;        // of a launch
constexpr int kFinishersMax = 64;                                                  // of all groups together
static_assert(kGroupsAtOnce <= kArrivalGroups && kGroupsAtOnce <= kFinishersMax);  // each group needs one
constexpr int kNormThreads = kThreads - 32, kNormPieces = 3;  // of 8 values each, that a thread holds

struct Scratch {
  std::uint32_t* arrivals;  // last_blocks.cuh
  float* sums;              // [rows][chunks][kSums]
  int chunks, finishers;    // of a group of kBlockRows rows
};

constexpr int kSlicesMax = 64;  // of hidden values: 20,480
struct Shared {
  uint4 fn[kBlockChunks][kFnPieces * 32];
  float slices[kSlicesMax * kSums];
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
  __syncthreads();
  constexpr int kRounds = 2;  // whose sums are read at once
#pragma unroll 1
  for (int base = tid; base < slices * kSums; base += kRounds * kThreads) {
    float value[kRounds][kSliceChunks];
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
      const int i = base + r * kThreads, first = i / kSums * kSliceChunks;
#pragma unroll
      for (int c = 0; c < kSliceChunks; ++c) {
        value[r][c] = first + c < scratch.chunks ? __ldcg(sums + (first + c) * kSums + i % kSums) : 0.0f;
      }
    }
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
      float sum = 0;
#pragma unroll
      for (int c = 0; c < kSliceChunks; ++c) sum += value[r][c];
      if (base + r * kThreads < slices * kSums) shared.slices[base + r * kThreads] = sum;
    }
  }
  __syncthreads();
  if (tid < kSums) {
    float sum = 0;
#pragma unroll 8
    for (int s = 0; s < slices; ++s) sum += shared.slices[s * kSums + tid];
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
  const int number = ArriveInGroup(scratch.arrivals, group, static_cast<int>(gridDim.x), finishers, shared.number);
#pragma unroll 1
  for (int row = number; row >= 0 && row < rows; row += finishers) FinishRow(args, scratch, first + row, shared);
}

// A step's values of row `t`, from column `d` on.
__device__ __forceinline__ void ReadStep(StepValues& v, const MhcBoundaryArgs& args, std::int64_t t, int d) {
  const auto pairs = [](const BFloat16* from) { return __ldcg(reinterpret_cast<const uint2*>(from)); };
#pragma unroll
  for (int c = 0; c < kCopies; ++c) {
    const uint2 h = pairs(args.h + (t * kCopies + c) * args.dim + d);
    v.h[c][0] = h.x, v.h[c][1] = h.y;
  }
  if (args.y == nullptr) return;
  const uint2 y = pairs(args.y + t * args.dim + d);
  v.y[0] = y.x, v.y[1] = y.y;
}
__device__ __forceinline__ void ReadMixing(Mixing& m, const MhcBoundaryArgs& args, std::int64_t t) {
  if (args.y != nullptr) {
#pragma unroll
    for (int c = 0; c < kCopies; ++c) Read4(m.comb[c], args.comb_in + (t * kCopies + c) * kCopies);
    Read4(m.post, args.post_in + t * kCopies);
  }
  if (args.x != nullptr) Read4(m.pre, args.pre_in + t * kCopies);
}

// A warp's chunk of its 16 rows, of which the first `rows` exist. The two steps take turns in a loop, and rows 8 … are
// left out where there are none: what matters for few rows is how many instructions there are to fetch.
__device__ __forceinline__ void WorkOffChunk(const MhcBoundaryArgs& args, const Scratch& scratch, const uint4* fn,
                                             std::int64_t t0, int chunk, int rows) {
  const int lane = static_cast<int>(threadIdx.x) % 32, d = chunk * kChunk + lane % 4 * 8;
  const bool expand = args.y != nullptr, collapse = args.x != nullptr;
  StepValues values[2][2] = {};  // [step][half]
  Mixing mixing[2] = {};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (half * 8 + lane / 4 >= rows) continue;
    const std::int64_t t = t0 + half * 8 + lane / 4;
    ReadStep(values[0][half], args, t, d);
    ReadStep(values[1][half], args, t, d + 4);
    ReadMixing(mixing[half], args, t);
  }
  Products products = {};
  Squares squares[2];
#pragma unroll 1
  for (int step = 0; step < 2; ++step) {
    StepOperands operands = {};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (half * 8 >= rows) break;
      std::uint32_t x[2];
      Mix(values[0][half], mixing[half], expand, collapse, half, operands, x, squares[half]);
      values[0][half] = values[1][half];
      const std::int64_t t = t0 + half * 8 + lane / 4;
      if (half * 8 + lane / 4 >= rows) continue;
      if (collapse) *reinterpret_cast<uint2*>(args.x + t * args.dim + d + step * 4) = {x[0], x[1]};
#pragma unroll
      for (int c = 0; c < kCopies && expand; ++c) {
        *reinterpret_cast<uint2*>(args.h + (t * kCopies + c) * args.dim + d + step * 4) = {operands.a[c][half],
                                                                                           operands.a[c][half + 2]};
      }
    }
    if (args.fn != nullptr) Multiply(products, fn, step, operands);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = half * 8 + lane / 4;
    const std::int64_t t = t0 + min(row, max(rows - 1, 0));
    StoreSums(scratch.sums + (t * scratch.chunks + chunk) * kSums, products, half, squares[half], row < rows);
  }
}

__global__ void __launch_bounds__(kThreads, 1) ChunkKernel(MhcBoundaryArgs args, Scratch scratch) {
  __shared__ Shared shared;
  ptx::LetNextKernelStart();
  const int warp = static_cast<int>(threadIdx.x) / 32, tid = static_cast<int>(threadIdx.x);
  const int chunk0 = static_cast<int>(blockIdx.x) * kBlockChunks, chunk = chunk0 + warp % kBlockChunks;
  constexpr int kItems = kBlockChunks * kFnItems / kThreads;
  static_assert(kItems * kThreads == kBlockChunks * kFnItems);
  FnValues fn[kItems];
#pragma unroll
  for (int j = 0; j < kItems && args.fn != nullptr; ++j) {
    const int i = tid + j * kThreads;
    fn[j].Read(args.fn, args.dim, chunk0 + i / kFnItems, i % kFnItems);
  }
  shared.site.Read(args, tid);
#pragma unroll
  for (int j = 0; j < kItems && args.fn != nullptr; ++j) {
    const int i = tid + j * kThreads;
    fn[j].Place(shared.fn[i / kFnItems], i % kFnItems);
  }
  __syncthreads();
  const std::int64_t t0 = static_cast<std::int64_t>(blockIdx.y) * kBlockRows + warp / kBlockChunks * kTileRows;
  const int rows = static_cast<int>(min(args.rows - t0, static_cast<std::int64_t>(kTileRows)));
  const bool works = rows > 0 && chunk * kChunk < args.dim, finishes = args.fn != nullptr || args.norm != nullptr;
  ptx::WaitForPreviousKernel();
  if (works) WorkOffChunk(args, scratch, shared.fn[warp % kBlockChunks], t0, chunk, rows);
  if (finishes) FinishRows(args, scratch, shared);
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

// The fastest on an H200.
MhcForm FormFor(int rows) {
  constexpr int kClustersMin = 65, kWideMin = 512;
  return rows >= kWideMin ? MhcForm::kWide : rows >= kClustersMin ? MhcForm::kClusters : MhcForm::kChunks;
}

}  // namespace

std::size_t MhcScratchBytes(int rows, int dim) {
  const std::size_t sums = static_cast<std::size_t>(rows < kRowsAtOnce ? rows : kRowsAtOnce) *
                           static_cast<std::size_t>((dim + kChunk - 1) / kChunk) * kSums * sizeof(float);
  return std::max(sums, MhcWideScratchBytes(dim));
}

void MhcBoundary(const MhcBoundaryArgs& args, const MhcScratch& scratch, MhcForm form, cudaStream_t stream) {
  if (form == MhcForm::kAuto) form = FormFor(args.rows);
  if (form == MhcForm::kWide && MhcWide(args, scratch.sums, stream)) return;
  if (form != MhcForm::kChunks && MhcClusters(args, stream)) return;
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
