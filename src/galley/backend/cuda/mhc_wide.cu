// SPDX-License-Identifier: Apache-2.0
// Sites of the hyper-connections for many rows: clusters of eight blocks of threads stay on the device and take 64 rows
// at once. Each of the two warpgroups of a block that mix has a slice of the hidden dimension, which it goes through in
// chunks. Another warp brings a chunk's values of all rows by bulk copies of boxes, and the chunk's part of the
// coefficient matrix, which a launch of its own has split into bf16. The collapsed values stay in shared memory until
// the sums of all slices are there, and leave while the next 64 rows are mixed, so that h, y and x are moved once. The
// same bits as mhc.cu.
#include "galley/backend/cuda/launch.h"
#include "galley/backend/cuda/mhc_tile.cuh"
#include "galley/backend/cuda/ptx/bulk_copy.cuh"
#include "galley/backend/cuda/ptx/cluster.cuh"
#include "galley/backend/cuda/ptx/tensor_copy.cuh"
#include "galley/backend/cuda/ptx/wgmma.cuh"
#include "galley/backend/cuda/tensor_map.h"

namespace galley::backend::cuda {
namespace {

constexpr int kBlocks = 8, kGroups = 2, kGroupThreads = 128;  // of a cluster; warpgroups of a block that mix
constexpr int kMixThreads = kGroups * kGroupThreads, kThreads = kMixThreads + 32 * (kGroups + 1);
constexpr int kSlices = kBlocks * kGroups, kDimMax = kSlices * kSliceChunks * kChunk;
constexpr int kRows = 64, kOwnRows = kRows / kBlocks;  // of a tile; of those a block makes the coefficients

// A chunk of the matrix in bf16: for each step, copy and part two halves of 8 values of K, and in each the coefficients
// by eights, 16 bytes a coefficient.
constexpr int kHalfBytes = kCoefficients * 16, kPartBytes = 2 * kHalfBytes, kCopyBytes = kParts * kPartBytes;
constexpr int kStepBytes = kCopies * kCopyBytes, kChunkBytes = 2 * kStepBytes;

// Splits the matrix: a thread has 8 neighbouring values of one coefficient and copy (FnValues).
constexpr int kSplitThreads = 128;
__global__ void __launch_bounds__(kSplitThreads) SplitKernel(const float* fn, int dim, std::uint8_t* to) {
  const int item = static_cast<int>(blockIdx.x) * kSplitThreads + static_cast<int>(threadIdx.x);
  const int chunk = item / kFnItems, i = item % kFnItems, lane = i % 32;
  FnValues values;
  values.Read(fn, dim, chunk, i);
  ptx::BeginKernel();
  if (chunk * kChunk >= dim) return;
  const int copy = i / 32 / kOutputTiles, coefficient = i / 32 % kOutputTiles * 8 + lane / 4;
  std::uint8_t* at =
      to + static_cast<std::int64_t>(chunk) * kChunkBytes + copy * kCopyBytes + coefficient * 16 + lane % 4 * 4;
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    std::uint32_t pairs[4];
    values.Split(pairs);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      *reinterpret_cast<std::uint32_t*>(at + j / 2 * kStepBytes + part * kPartBytes + j % 2 * kHalfBytes) = pairs[j];
    }
  }
}

// A chunk of all rows of a tile: 64 bytes a row.
struct Values {
  uint4 h[kCopies][kRows][4], y[kRows][4];
};
constexpr int kStages = 2;
struct Shared {
  Values values[kGroups][kStages];
  uint4 fn[kGroups][kChunkBytes / 16];
  uint4 x[kGroups][kSliceChunks][2][kGroupThreads];  // collapsed values of a tile, each for the thread that made it
  // What all slices have sent of a tile: sums of this block's rows, and the squares of x of all rows.
  float own[kSlices][kOwnRows][kSums], squares[kSlices][kRows];
  Site site;
  // Barriers: values of a stage are there, were read; the matrix is there, was read; a tile's sums are there, were read
  // by the mixing warps, by all blocks.
  std::uint64_t loaded[kGroups][kStages], read[kGroups][kStages], matrix[kGroups], multiplied[kGroups];
  std::uint64_t received, taken, free;
};
constexpr int kReceivedBytes = (kOwnRows * kSquaresOfX + kRows) * 4;  // from a slice

struct Maps {
  CUtensorMap h, y;  // [copies][rows][dim] and [rows][dim], in boxes of a chunk of all copies of a tile
};

// What a block does.
struct Place {
  int rank, first_tile, tile_step, tiles;
  int slices, groups;  // of all blocks; of this one

  // The first chunk of the hidden dimension of a warpgroup of this block, and how many it has.
  [[nodiscard]] __device__ int FirstChunk(int group) const { return (rank * kGroups + group) * kSliceChunks; }
  [[nodiscard]] __device__ int Chunks(const MhcBoundaryArgs& args, int group) const {
    return min(args.dim / kChunk - FirstChunk(group), kSliceChunks);
  }
};

// Where a warpgroup is on its way through chunks of tiles.
struct Step {
  int chunk = 0, tile = 0, stage = 0;
  std::uint32_t stage_parity = 0, parity = 0;  // of the stage's turn; of the step

  __device__ __forceinline__ void Advance(int chunks, int tile_step) {
    if (++chunk == chunks) chunk = 0, tile += tile_step;
    if (++stage == kStages) stage = 0, stage_parity ^= 1;
    parity ^= 1;
  }
};

// One warp fetches all that a warpgroup mixes. Boxes keep the bulk copies' unit busy, so the matrix comes by ordinary
// copies.
__device__ __forceinline__ void FetchValues(const MhcBoundaryArgs& args, const Maps& maps, const std::uint8_t* fn,
                                            const Place& place, int group, Shared& shared) {
  const int chunks = place.Chunks(args, group), first_chunk = place.FirstChunk(group);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  Step load{.tile = place.first_tile}, fetch = load;
  const auto load_values = [&] {
    if (lane == 0 && load.tile < place.tiles) {
      const std::uint32_t loaded = ptx::SharedAddress(&shared.loaded[group][load.stage]);
      Values& values = shared.values[group][load.stage];
      ptx::ArriveAndExpect(loaded, sizeof(Values));
      const int x = (first_chunk + load.chunk) * kChunk, row = load.tile * kRows;
      ptx::CopyBox3(ptx::SharedAddress(values.h), maps.h, x, row, 0, loaded);
      ptx::CopyBox2(ptx::SharedAddress(values.y), maps.y, x, row, loaded);
    }
    load.Advance(chunks, place.tile_step);
  };
  const auto fetch_matrix = [&] {
    if (fetch.tile >= place.tiles) return;
    const std::uint8_t* from = fn + static_cast<std::int64_t>(first_chunk + fetch.chunk) * kChunkBytes;
#pragma unroll 4
    for (int i = lane; i < kChunkBytes / 16; i += 32) {
      ptx::CopyAsync16(&shared.fn[group][i], from + i * 16, true);
    }
    ptx::CommitCopies();
    fetch.Advance(chunks, place.tile_step);
  };
  const auto publish_matrix = [&] {
    ptx::WaitCopies<0>();
    ptx::FenceForWarpgroup();
    ptx::Arrive(ptx::SharedAddress(&shared.matrix[group]));
  };
  for (int i = 0; i < kStages; ++i) load_values();
  fetch_matrix();
  publish_matrix();
  for (Step at{.tile = place.first_tile}; at.tile < place.tiles; at.Advance(chunks, place.tile_step)) {
    ptx::WaitPhase(ptx::SharedAddress(&shared.read[group][at.stage]), at.stage_parity);
    load_values();
    __syncwarp();
    ptx::WaitPhase(ptx::SharedAddress(&shared.multiplied[group]), at.parity);
    fetch_matrix();
    publish_matrix();
  }
}

// One warp adds the sums of all slices and makes the coefficients of this block's rows of each tile.
__device__ __forceinline__ void FinishTiles(const MhcBoundaryArgs& args, const Place& place, Shared& shared) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::uint32_t received = ptx::SharedAddress(&shared.received);
  std::uint32_t parity = 0;
  for (int tile = place.first_tile; tile < place.tiles; tile += place.tile_step, parity ^= 1) {
    ptx::WaitPhase(received, parity);
    for (int row = 0; row < kOwnRows && lane < kSquaresOfX; ++row) {
      float sum = 0;
#pragma unroll 4
      for (int s = 0; s < place.slices; ++s) sum += shared.own[s][row][lane];
      shared.own[0][row][lane] = sum;
    }
    __syncwarp();
    const std::int64_t t = static_cast<std::int64_t>(tile) * kRows + place.rank * kOwnRows + lane;
    if (lane < kOwnRows && t < args.rows) WriteCoefficients(args, shared.site, t, shared.own[0][lane]);
    if (place.groups > 0) ptx::WaitPhase(ptx::SharedAddress(&shared.taken), parity);
    if (lane == 0) ptx::ArriveAndExpect(received, place.slices * kReceivedBytes);
    __syncwarp();
    if (lane < kBlocks) ptx::ArriveInBlock(ptx::AddressInBlock(ptx::SharedAddress(&shared.free), lane));
  }
}

// A warpgroup that mixes its slice of every row. A lane has rows l/4 and l/4 + 8 of the 16 of its warp, and of a chunk
// 8 neighbouring values of each copy.
class Mixer {
 public:
  __device__ __forceinline__ Mixer(const MhcBoundaryArgs& args, const Place& place, Shared& shared)
      : args_(args),
        place_(place),
        shared_(shared),
        group_(__shfl_sync(kFullWarp, static_cast<int>(threadIdx.x) / kGroupThreads, 0)),
        thread_(static_cast<int>(threadIdx.x) % kGroupThreads),
        row_(thread_ / 32 * kTileRows + thread_ % 32 / 4),
        d_(place.FirstChunk(group_) * kChunk + thread_ % 4 * 8) {}

  __device__ __forceinline__ void Run() {
    const int chunks = place_.Chunks(args_, group_);
    Step at{.tile = place_.first_tile};
    Mixing mixing[2];
    ReadMixing(mixing, at.tile);
    std::uint32_t tile_parity = 1;  // of the tile before
    for (; at.tile < place_.tiles; tile_parity ^= 1) {
      float sums[kSumRegisters] = {}, inverse_rms[2] = {};
      Squares squares[2];
      const bool follows = at.tile != place_.first_tile;
#pragma unroll 1
      for (int chunk = 0; chunk < chunks; ++chunk) {
        const uint4 norm = Norm(chunk);
        StepOperands operands[2];
        uint4 x[2];
        Squares of_chunk[2];
        const Values& values = shared_.values[group_][at.stage];
        ptx::WaitPhase(ptx::SharedAddress(&shared_.loaded[group_][at.stage]), at.stage_parity);
        MixRow(values, mixing[0], 0, operands, x[0], of_chunk[0]);
        MixRow(values, mixing[1], 1, operands, x[1], of_chunk[1]);
        ArriveByWarp(shared_.read[group_][at.stage]);
        // Before the products, which tie the values to registers that are no neighbours in memory.
        WriteH(operands, at.tile, chunk, 0);
        WriteH(operands, at.tile, chunk, 1);
        float products[kSumRegisters] = {};
        Multiply(products, operands, at.parity);
        if (chunk + 1 == chunks) ReadMixing(mixing, at.tile + place_.tile_step);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          of_chunk[half].AddLanes();
          squares[half].h += of_chunk[half].h, squares[half].x += of_chunk[half].x;
        }
        ptx::WarpgroupWait<0>();
        ptx::HoldSums(products);
        ArriveByWarp(shared_.multiplied[group_]);
#pragma unroll
        for (int i = 0; i < kSumRegisters; ++i) sums[i] += products[i];
        if (follows && chunk == 0) TakeSquares(tile_parity, inverse_rms);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          uint4& held = shared_.x[group_][chunk][half][thread_];
          if (follows) WriteX(held, norm, inverse_rms[half], at.tile - place_.tile_step, chunk, half);
          held = x[half];
        }
        at.Advance(chunks, place_.tile_step);
      }
      // All blocks have read what was sent of the tile before.
      if (follows) ptx::WaitPhase(ptx::SharedAddress(&shared_.free), tile_parity);
      Send(sums, squares);
    }
    float inverse_rms[2];
    TakeSquares(tile_parity, inverse_rms);
    for (int chunk = 0; chunk < chunks; ++chunk) {
      const uint4 norm = Norm(chunk);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        WriteX(shared_.x[group_][chunk][half][thread_], norm, inverse_rms[half], at.tile - place_.tile_step, chunk,
               half);
      }
    }
  }

 private:
  static constexpr int kSumRegisters = kCoefficients / 2;

  __device__ __forceinline__ void ArriveByWarp(std::uint64_t& barrier) const {
    __syncwarp();
    if (thread_ % 32 == 0) ptx::Arrive(ptx::SharedAddress(&barrier));
  }
  [[nodiscard]] __device__ __forceinline__ int Row(int tile, int half) const {
    return tile * kRows + row_ + half * 8;
  }
  __device__ __forceinline__ void ReadMixing(Mixing (&mixing)[2], int tile) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int t = min(Row(tile, half), args_.rows - 1);
#pragma unroll
      for (int c = 0; c < kCopies; ++c) Read4(mixing[half].comb[c], args_.comb_in + (t * kCopies + c) * kCopies);
      Read4(mixing[half].post, args_.post_in + t * kCopies);
      Read4(mixing[half].pre, args_.pre_in + t * kCopies);
    }
  }
  __device__ __forceinline__ void MixRow(const Values& values, const Mixing& mixing, int half,
                                         StepOperands (&operands)[2], uint4& x, Squares& squares) const {
    const int row = row_ + half * 8, quad = thread_ % 4;
    RowValues v;
#pragma unroll
    for (int c = 0; c < kCopies; ++c) v.h[c] = values.h[c][row][quad];
    v.y = values.y[row][quad];
    std::uint32_t pairs[2][2];
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      Mix(v.Step(step), mixing, true, true, half, operands[step], pairs[step], squares);
    }
    x = {pairs[0][0], pairs[0][1], pairs[1][0], pairs[1][1]};
  }
  __device__ __forceinline__ void WriteH(const StepOperands (&v)[2], int tile, int chunk, int half) const {
    const int t = Row(tile, half);
    if (t >= args_.rows) return;
    BFloat16* h = args_.h + (static_cast<std::int64_t>(t) * kCopies * args_.dim + d_ + chunk * kChunk);
#pragma unroll
    for (int c = 0; c < kCopies; ++c) {
      ptx::Store16(h + c * args_.dim, v[0].a[c][half], v[0].a[c][half + 2], v[1].a[c][half], v[1].a[c][half + 2]);
    }
  }
  // Begins sums += a chunk's values times the matrix: pairs of copies, then parts, then the two copies, as Multiply of
  // mhc_tile.cuh adds them.
  __device__ __forceinline__ void Multiply(float (&sums)[kSumRegisters], const StepOperands (&h)[2],
                                           std::uint32_t parity) const {
    ptx::WaitPhase(ptx::SharedAddress(&shared_.matrix[group_]), parity);
    const std::uint64_t matrix = ptx::CoreDescriptor(ptx::SharedAddress(shared_.fn[group_]), kHalfBytes);
    ptx::WarpgroupFence();
#pragma unroll
    for (int step = 0; step < 2; ++step) {
#pragma unroll
      for (int pair = 0; pair < kCopies / 2; ++pair) {
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
#pragma unroll
          for (int c = 2 * pair; c < 2 * pair + 2; ++c) {
            ptx::Wgmma<kCoefficients>::Add(
                sums, h[step].a[c], ptx::MovedBy(matrix, step * kStepBytes + c * kCopyBytes + part * kPartBytes));
          }
        }
      }
    }
    ptx::WarpgroupCommit();
  }
  // Sends the slice's sums of a tile to the blocks that need them. Eight rows of a warp belong to one block.
  __device__ __forceinline__ void Send(const float (&sums)[kSumRegisters], const Squares (&squares)[2]) const {
    const int quad = thread_ % 4, slice = place_.rank * kGroups + group_;
    const std::uint32_t barrier = ptx::SharedAddress(&shared_.received);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int owner = thread_ / 32 * 2 + half;
      const std::uint32_t there = ptx::AddressInBlock(barrier, owner),
                          to = ptx::AddressInBlock(ptx::SharedAddress(shared_.own[slice][thread_ % 32 / 4]), owner);
#pragma unroll
      for (int n = 0; n < kOutputTiles; ++n) {
        ptx::SendTwo(to + static_cast<std::uint32_t>(n * 8 + quad * 2) * 4,
                     {__float_as_uint(sums[n * 4 + half * 2]), __float_as_uint(sums[n * 4 + half * 2 + 1])}, there);
      }
      if (quad == 0) ptx::SendOne(to + kSquaresOfH * 4, squares[half].h, there);
#pragma unroll
      for (int block = quad; block < kBlocks; block += 4) {
        ptx::SendOne(ptx::AddressInBlock(ptx::SharedAddress(&shared_.squares[slice][row_ + half * 8]), block),
                     squares[half].x, ptx::AddressInBlock(barrier, block));
      }
    }
  }
  // What the rows of a tile are normed by, once all slices have sent their squares.
  __device__ __forceinline__ void TakeSquares(std::uint32_t parity, float (&inverse_rms)[2]) const {
    ptx::WaitPhase(ptx::SharedAddress(&shared_.received), parity);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = 0;
#pragma unroll 4
      for (int s = 0; s < place_.slices; ++s) sum += shared_.squares[s][row_ + half * 8];
      inverse_rms[half] = InverseRms(sum, 1.0f / static_cast<float>(args_.dim), args_.norm_eps);
    }
    ArriveByWarp(shared_.taken);
  }
  // Of the lane's values of a chunk.
  [[nodiscard]] __device__ __forceinline__ uint4 Norm(int chunk) const {
    return *reinterpret_cast<const uint4*>(args_.norm + d_ + chunk * kChunk);
  }
  __device__ __forceinline__ void WriteX(const uint4& x, const uint4& norm, float r, int tile, int chunk,
                                         int half) const {
    const int t = Row(tile, half);
    if (t >= args_.rows) return;
    *reinterpret_cast<uint4*>(args_.x + static_cast<std::int64_t>(t) * args_.dim + d_ + chunk * kChunk) =
        Normed(x, norm, r);
  }

  const MhcBoundaryArgs& args_;
  const Place& place_;
  Shared& shared_;
  int group_, thread_, row_, d_;
};

__global__ void __launch_bounds__(kThreads, 1) WideKernel(const __grid_constant__ MhcBoundaryArgs args,
                                                          const __grid_constant__ Maps maps, const std::uint8_t* fn) {
  extern __shared__ __align__(128) std::uint8_t bytes[];
  Shared& shared = *reinterpret_cast<Shared*>(bytes);
  ptx::LetNextKernelStart();
  Place place{.rank = static_cast<int>(blockIdx.z),
              .first_tile = static_cast<int>(blockIdx.x),
              .tile_step = static_cast<int>(gridDim.x),
              .tiles = (args.rows + kRows - 1) / kRows,
              .slices = (args.dim / kChunk + kSliceChunks - 1) / kSliceChunks,
              .groups = 0};
  place.groups = min(max(place.slices - place.rank * kGroups, 0), kGroups);
  shared.site.Read(args, static_cast<int>(threadIdx.x));
  if (threadIdx.x == 0) {
    constexpr int kGroupWarps = kGroupThreads / 32;
    for (int group = 0; group < kGroups; ++group) {
      for (int stage = 0; stage < kStages; ++stage) {
        ptx::InitBarrier(ptx::SharedAddress(&shared.loaded[group][stage]), 1);
        ptx::InitBarrier(ptx::SharedAddress(&shared.read[group][stage]), kGroupWarps);
      }
      ptx::InitBarrier(ptx::SharedAddress(&shared.matrix[group]), 32);
      ptx::InitBarrier(ptx::SharedAddress(&shared.multiplied[group]), kGroupWarps);
    }
    ptx::InitBarrier(ptx::SharedAddress(&shared.received), 1);
    ptx::InitBarrier(ptx::SharedAddress(&shared.taken), max(place.groups, 1) * kGroupWarps);
    ptx::InitBarrier(ptx::SharedAddress(&shared.free), kBlocks);
    ptx::FenceBarriers();
    ptx::ArriveAndExpect(ptx::SharedAddress(&shared.received), place.slices * kReceivedBytes);
  }
  ptx::WaitForPreviousKernel();
  ptx::SyncCluster();
  const int warp = __shfl_sync(kFullWarp, static_cast<int>(threadIdx.x) / 32, 0), other = warp - kMixThreads / 32;
  if (other < 0) {
    if (warp < place.groups * (kGroupThreads / 32)) Mixer(args, place, shared).Run();
  } else if (other == kGroups) {
    FinishTiles(args, place, shared);
  } else if (other < place.groups) {
    FetchValues(args, maps, fn, place, other, shared);
  }
  // Blocks stay until nothing is sent to them any more.
  __syncwarp();
  ptx::SyncCluster();
}

bool DescribeValues(const MhcBoundaryArgs& args, Maps& maps) {
  const auto dim = static_cast<std::uint64_t>(args.dim), rows = static_cast<std::uint64_t>(args.rows);
  return DescribeTensor({.base = args.h,
                         .rank = 3,
                         .sizes = {dim, rows, kCopies},
                         .strides = {dim * kCopies * 2, dim * 2},
                         .box = {kChunk, kRows, kCopies}},
                        maps.h) &&
         DescribeTensor({.base = const_cast<BFloat16*>(args.y),
                         .rank = 2,
                         .sizes = {dim, rows},
                         .strides = {dim * 2},
                         .box = {kChunk, kRows}},
                        maps.y);
}

}  // namespace

std::size_t MhcWideScratchBytes(int dim) {
  return static_cast<std::size_t>(dim / kChunk) * kChunkBytes;
}

bool MhcWide(const MhcBoundaryArgs& args, void* scratch, cudaStream_t stream) {
  Maps maps;
  if (!HasEveryPart(args) || args.dim > kDimMax || args.dim % kChunk != 0 || !DescribeValues(args, maps)) return false;
  cudaFuncSetAttribute(WideKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(sizeof(Shared)));
  const int clusters =
      min(ClustersAtOnce(WideKernel, kBlocks, kThreads, sizeof(Shared)), (args.rows + kRows - 1) / kRows);
  if (clusters == 0) return false;
  auto* fn = static_cast<std::uint8_t*>(scratch);
  const int items = args.dim / kChunk * kFnItems;
  LaunchKernel(SplitKernel, static_cast<unsigned>((items + kSplitThreads - 1) / kSplitThreads), kSplitThreads, 0,
               stream, args.fn, args.dim, fn);
  LaunchClusters(WideKernel, dim3(static_cast<unsigned>(clusters), 1, kBlocks), kThreads, sizeof(Shared), stream, args,
                 maps, fn);
  return true;
}

}  // namespace galley::backend::cuda
