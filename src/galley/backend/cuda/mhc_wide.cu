// SPDX-License-Identifier: Apache-2.0
// Sites of the hyper-connections for many rows: clusters of four blocks of threads stay on the device and take 64 rows
// at once. Each of the two warpgroups of a block that mix has two slices of the hidden dimension, one after the other.
// Their parts of the coefficient matrix, split into bf16 by a launch of its own, come through a ring; the collapsed
// values stay in shared memory until the sums of all slices are there, and leave while the next 64 rows are mixed, so
// that h, y and x are moved once. The same bits as mhc.cu.
#include "galley/backend/cuda/launch.h"
#include "galley/backend/cuda/mhc_tile.cuh"
#include "galley/backend/cuda/ptx/bulk_copy.cuh"
#include "galley/backend/cuda/ptx/cluster.cuh"
#include "galley/backend/cuda/ptx/wgmma.cuh"

namespace galley::backend::cuda {
namespace {

constexpr int kBlocks = 4, kGroups = 2, kGroupThreads = 128;  // of a cluster; warpgroups of a block that mix
constexpr int kGroupSlices = 2, kBlockSlices = kGroups * kGroupSlices;
constexpr int kMixThreads = kGroups * kGroupThreads, kThreads = kMixThreads + 128;
constexpr int kMixRegisters = 216, kOtherRegisters = 72;  // of a thread; all have 168 at first
constexpr int kSlices = kBlocks * kBlockSlices, kDimMax = kSlices * kSliceChunks * kChunk;
constexpr int kRows = 64, kOwnRows = kRows / kBlocks;  // of a tile; of those a block makes the coefficients

// A chunk of the matrix in bf16: kPieces pieces, each one step and a pair of copies. Within it lie, for each copy and
// part, two halves of 8 values of K, and in each the coefficients by eights, 16 bytes a coefficient.
constexpr int kPieces = 4, kHalfBytes = kCoefficients * 16, kPartBytes = 2 * kHalfBytes;
constexpr int kCopyBytes = kParts * kPartBytes, kPieceBytes = 2 * kCopyBytes, kChunkBytes = kPieces * kPieceBytes;

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
  std::uint8_t* at = to + static_cast<std::int64_t>(chunk) * kChunkBytes + copy / 2 * kPieceBytes +
                     copy % 2 * kCopyBytes + coefficient * 16 + lane % 4 * 4;
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    std::uint32_t pairs[4];
    values.Split(pairs);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      *reinterpret_cast<std::uint32_t*>(at + j / 2 * 2 * kPieceBytes + part * kPartBytes + j % 2 * kHalfBytes) =
          pairs[j];
    }
  }
}

struct Shared {
  // Collapsed values of a tile, each for the thread that made it.
  uint4 x[kGroups][kGroupSlices * kSliceChunks][2][kGroupThreads];
  uint4 fn[kGroups][kPieces][kPieceBytes / 16];  // a chunk of the matrix
  // What all slices have sent of a tile: sums of this block's rows, and the squares of x of all rows.
  float own[kSlices][kOwnRows][kSums], squares[kSlices][kRows];
  Site site;
  // Barriers: a piece of the matrix is there, may be overwritten; a tile's sums are there, were read by the mixing
  // warps, by all blocks.
  std::uint64_t full[kGroups][kPieces], empty[kGroups], received, taken, free;
};
constexpr int kReceivedBytes = (kOwnRows * kSquaresOfX + kRows) * 4;  // from a slice

// What a block does.
struct Place {
  int rank, first_tile, tile_step, tiles;
  int slices, groups;  // of all blocks; of this one

  // The first chunk of the hidden dimension of a warpgroup of this block, and how many it has.
  [[nodiscard]] __device__ int FirstChunk(int group) const {
    return (rank * kBlockSlices + group * kGroupSlices) * kSliceChunks;
  }
  [[nodiscard]] __device__ int Chunks(const MhcBoundaryArgs& args, int group) const {
    return min(args.dim / kChunk - FirstChunk(group), kGroupSlices * kSliceChunks);
  }
};

// One thread of a warp copies the matrix for a warpgroup: for each of its tiles all chunks.
__device__ __forceinline__ void CopyMatrix(const MhcBoundaryArgs& args, const std::uint8_t* fn, const Place& place,
                                           int group, Shared& shared) {
  const int chunks = place.Chunks(args, group);
  const std::uint8_t* from = fn + static_cast<std::int64_t>(place.FirstChunk(group)) * kChunkBytes;
  std::uint32_t parity = 1;
  for (int tile = place.first_tile; tile < place.tiles; tile += place.tile_step) {
    for (int chunk = 0; chunk < chunks; ++chunk, parity ^= 1) {
      ptx::WaitPhase(ptx::SharedAddress(&shared.empty[group]), parity);
      for (int piece = 0; piece < kPieces; ++piece) {
        const std::uint32_t full = ptx::SharedAddress(&shared.full[group][piece]);
        ptx::ArriveAndExpect(full, kPieceBytes);
        ptx::CopyBulk(ptx::SharedAddress(shared.fn[group][piece]),
                      from + static_cast<std::int64_t>(chunk) * kChunkBytes + piece * kPieceBytes, kPieceBytes, full);
      }
    }
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

// A lane's values of a row.
struct RowValues {
  uint4 h[kCopies], y;

  [[nodiscard]] __device__ __forceinline__ StepValues Step(int step) const {
    StepValues v;
#pragma unroll
    for (int c = 0; c < kCopies; ++c) {
      v.h[c][0] = step == 0 ? h[c].x : h[c].z;
      v.h[c][1] = step == 0 ? h[c].y : h[c].w;
    }
    v.y[0] = step == 0 ? y.x : y.z;
    v.y[1] = step == 0 ? y.y : y.w;
    return v;
  }
};

// A warpgroup that mixes its slices of every row. A lane has rows l/4 and l/4 + 8 of the 16 of its warp.
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
    RowValues next[2];
    uint4 next_norm = Norm(0);
    Mixing mixing[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      ReadMixing(mixing[half], place_.first_tile, half);
      Read(next[half], place_.first_tile, 0, half);
    }
    std::uint32_t tile_parity = 1;  // of the tile before
    int tile = place_.first_tile;
    for (; tile < place_.tiles; tile += place_.tile_step, tile_parity ^= 1) {
      float sums[kSumRegisters] = {}, inverse_rms[2] = {};
      Squares squares[2];
      const bool follows = tile != place_.first_tile;
#pragma unroll 1
      for (int chunk = 0; chunk < chunks; ++chunk) {
        const bool last = chunk + 1 == chunks;
        StepOperands operands[2];
        uint4 x[2];
        Squares of_chunk[2];
        const uint4 norm = next_norm;
        next_norm = Norm(last ? 0 : chunk + 1);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          MixRow(next[half], mixing[half], half, operands, x[half], of_chunk[half]);
          Read(next[half], last ? tile + place_.tile_step : tile, last ? 0 : chunk + 1, half);
        }
        // Before the products, which tie the values to registers that are no neighbours in memory.
        WriteH(operands, tile, chunk, 0);
        WriteH(operands, tile, chunk, 1);
        float products[kSumRegisters] = {};
        Multiply(products, operands);
        if (last) {
          ReadMixing(mixing[0], tile + place_.tile_step, 0);
          ReadMixing(mixing[1], tile + place_.tile_step, 1);
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          of_chunk[half].AddLanes();
          squares[half].h += of_chunk[half].h, squares[half].x += of_chunk[half].x;
        }
        EndProducts(products);
#pragma unroll
        for (int i = 0; i < kSumRegisters; ++i) sums[i] += products[i];
        if (follows && chunk == 0) TakeSquares(tile_parity, inverse_rms);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          uint4& held = shared_.x[group_][chunk][half][thread_];
          if (follows) WriteX(held, norm, inverse_rms[half], tile - place_.tile_step, chunk, half);
          held = x[half];
        }
        if (!last && (chunk + 1) % kSliceChunks != 0) continue;
        // All blocks have read what was sent of the tile before.
        if (follows) ptx::WaitPhase(ptx::SharedAddress(&shared_.free), tile_parity);
        Send(chunk / kSliceChunks, sums, squares);
#pragma unroll
        for (float& sum : sums) sum = 0;
        squares[0] = squares[1] = {};
      }
    }
    float inverse_rms[2];
    TakeSquares(tile_parity, inverse_rms);
    for (int chunk = 0; chunk < chunks; ++chunk) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        WriteX(shared_.x[group_][chunk][half][thread_], Norm(chunk), inverse_rms[half], tile - place_.tile_step, chunk,
               half);
      }
    }
  }

 private:
  static constexpr int kSumRegisters = kCoefficients / 2;

  [[nodiscard]] __device__ __forceinline__ int Row(int tile, int half) const {
    return tile * kRows + row_ + half * 8;
  }
  // The first of a lane's values of copy 0 of a row; those of others are args.dim apart.
  [[nodiscard]] __device__ __forceinline__ BFloat16* CopiesAt(int t, int chunk) const {
    return args_.h + (static_cast<std::int64_t>(t) * kCopies * args_.dim + d_ + chunk * kChunk);
  }
  // Of rows of y and x.
  [[nodiscard]] __device__ __forceinline__ std::int64_t At(int t, int chunk) const {
    return static_cast<std::int64_t>(t) * args_.dim + d_ + chunk * kChunk;
  }
  __device__ __forceinline__ void Read(RowValues& row, int tile, int chunk, int half) const {
    const int t = Row(tile, half);
    row = {};
    if (t >= args_.rows) return;
    const BFloat16* h = CopiesAt(t, chunk);
#pragma unroll
    for (int c = 0; c < kCopies; ++c) row.h[c] = __ldcg(reinterpret_cast<const uint4*>(h + c * args_.dim));
    row.y = __ldcg(reinterpret_cast<const uint4*>(args_.y + At(t, chunk)));
  }
  __device__ __forceinline__ void ReadMixing(Mixing& mixing, int tile, int half) const {
    const int t = min(Row(tile, half), args_.rows - 1);
#pragma unroll
    for (int c = 0; c < kCopies; ++c) Read4(mixing.comb[c], args_.comb_in + (t * kCopies + c) * kCopies);
    Read4(mixing.post, args_.post_in + t * kCopies);
    Read4(mixing.pre, args_.pre_in + t * kCopies);
  }
  __device__ __forceinline__ static void MixRow(const RowValues& row, const Mixing& mixing, int half,
                                                StepOperands (&operands)[2], uint4& x, Squares& squares) {
    std::uint32_t pairs[2][2];
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      Mix(row.Step(step), mixing, true, true, half, operands[step], pairs[step], squares);
    }
    x = {pairs[0][0], pairs[0][1], pairs[1][0], pairs[1][1]};
  }
  __device__ __forceinline__ void WriteH(const StepOperands (&v)[2], int tile, int chunk, int half) const {
    const int t = Row(tile, half);
    if (t >= args_.rows) return;
    BFloat16* h = CopiesAt(t, chunk);
#pragma unroll
    for (int c = 0; c < kCopies; ++c) {
      ptx::Store16(h + c * args_.dim, v[0].a[c][half], v[0].a[c][half + 2], v[1].a[c][half], v[1].a[c][half + 2]);
    }
  }
  // Begins sums += a chunk's values times the matrix. Pairs of copies, then parts, then the two copies, as Multiply of
  // mhc_tile.cuh adds them.
  __device__ __forceinline__ void Multiply(float (&sums)[kSumRegisters], const StepOperands (&h)[2]) const {
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      ptx::WaitPhase(ptx::SharedAddress(&shared_.full[group_][piece]), ring_parity_);
    }
    ptx::WarpgroupFence();
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      const std::uint64_t matrix = ptx::CoreDescriptor(ptx::SharedAddress(shared_.fn[group_][piece]), kHalfBytes);
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          ptx::Wgmma<kCoefficients>::Add(sums, h[piece / 2].a[piece % 2 * 2 + c],
                                         ptx::MovedBy(matrix, c * kCopyBytes + part * kPartBytes));
        }
      }
    }
    ptx::WarpgroupCommit();
  }
  __device__ __forceinline__ void EndProducts(float (&sums)[kSumRegisters]) {
    ptx::WarpgroupWait<0>();
    ptx::HoldSums(sums);
    __syncwarp();
    if (thread_ % 32 == 0) ptx::Arrive(ptx::SharedAddress(&shared_.empty[group_]));
    ring_parity_ ^= 1;
  }
  // Sends the sums of the warpgroup's slice number `number` to the blocks that need them. A warp's rows are those of
  // one block.
  __device__ __forceinline__ void Send(int number, const float (&sums)[kSumRegisters],
                                       const Squares (&squares)[2]) const {
    const int quad = thread_ % 4, owner = thread_ / 32;
    const int slice = place_.rank * kBlockSlices + group_ * kGroupSlices + number;
    const std::uint32_t barrier = ptx::SharedAddress(&shared_.received),
                        owners_barrier = ptx::AddressInBlock(barrier, owner),
                        barrier_of_quad = ptx::AddressInBlock(barrier, quad);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const std::uint32_t to =
          ptx::AddressInBlock(ptx::SharedAddress(shared_.own[slice][thread_ % 32 / 4 + half * 8]), owner);
#pragma unroll
      for (int n = 0; n < kOutputTiles; ++n) {
        ptx::SendTwo(to + static_cast<std::uint32_t>(n * 8 + quad * 2) * 4,
                     {__float_as_uint(sums[n * 4 + half * 2]), __float_as_uint(sums[n * 4 + half * 2 + 1])},
                     owners_barrier);
      }
      if (quad == 0) ptx::SendOne(to + kSquaresOfH * 4, squares[half].h, owners_barrier);
      ptx::SendOne(ptx::AddressInBlock(ptx::SharedAddress(&shared_.squares[slice][row_ + half * 8]), quad),
                   squares[half].x, barrier_of_quad);
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
    __syncwarp();
    if (thread_ % 32 == 0) ptx::Arrive(ptx::SharedAddress(&shared_.taken));
  }
  // Of the lane's values of a chunk.
  [[nodiscard]] __device__ __forceinline__ uint4 Norm(int chunk) const {
    return *reinterpret_cast<const uint4*>(args_.norm + d_ + chunk * kChunk);
  }
  __device__ __forceinline__ void WriteX(const uint4& x, const uint4& norm, float r, int tile, int chunk,
                                         int half) const {
    const int t = Row(tile, half);
    if (t >= args_.rows) return;
    *reinterpret_cast<uint4*>(args_.x + At(t, chunk)) = {NormPair(x.x, norm.x, r), NormPair(x.y, norm.y, r),
                                                         NormPair(x.z, norm.z, r), NormPair(x.w, norm.w, r)};
  }

  const MhcBoundaryArgs& args_;
  const Place& place_;
  Shared& shared_;
  int group_, thread_, row_, d_;
  std::uint32_t ring_parity_ = 0;
};

__global__ void __launch_bounds__(kThreads, 1)
    WideKernel(const __grid_constant__ MhcBoundaryArgs args, const std::uint8_t* fn) {
  extern __shared__ __align__(128) std::uint8_t bytes[];
  Shared& shared = *reinterpret_cast<Shared*>(bytes);
  ptx::LetNextKernelStart();
  Place place{.rank = static_cast<int>(blockIdx.z),
              .first_tile = static_cast<int>(blockIdx.x),
              .tile_step = static_cast<int>(gridDim.x),
              .tiles = (args.rows + kRows - 1) / kRows,
              .slices = (args.dim / kChunk + kSliceChunks - 1) / kSliceChunks,
              .groups = 0};
  place.groups = min(max((place.slices - place.rank * kBlockSlices + kGroupSlices - 1) / kGroupSlices, 0), kGroups);
  shared.site.Read(args, static_cast<int>(threadIdx.x));
  if (threadIdx.x == 0) {
    for (int group = 0; group < kGroups; ++group) {
      for (int piece = 0; piece < kPieces; ++piece) {
        ptx::InitBarrier(ptx::SharedAddress(&shared.full[group][piece]), 1);
      }
      ptx::InitBarrier(ptx::SharedAddress(&shared.empty[group]), kGroupThreads / 32);
    }
    ptx::InitBarrier(ptx::SharedAddress(&shared.received), 1);
    ptx::InitBarrier(ptx::SharedAddress(&shared.taken), max(place.groups, 1) * kGroupThreads / 32);
    ptx::InitBarrier(ptx::SharedAddress(&shared.free), kBlocks);
    ptx::FenceBarriers();
    ptx::ArriveAndExpect(ptx::SharedAddress(&shared.received), place.slices * kReceivedBytes);
  }
  ptx::WaitForPreviousKernel();
  ptx::SyncCluster();
  const int warp = __shfl_sync(kFullWarp, static_cast<int>(threadIdx.x) / 32, 0);
  if (warp < kMixThreads / 32) {
    ptx::RaiseRegisters<kMixRegisters>();
    if (warp < place.groups * (kGroupThreads / 32)) Mixer(args, place, shared).Run();
  } else {
    ptx::ReduceRegisters<kOtherRegisters>();
    const int other = warp - kMixThreads / 32;
    if (other < place.groups && threadIdx.x % 32 == 0) CopyMatrix(args, fn, place, other, shared);
    if (other == kGroups) FinishTiles(args, place, shared);
  }
  // Blocks stay until nothing is sent to them any more.
  __syncwarp();
  ptx::SyncCluster();
}

// How many clusters the device holds at once; 0: none.
int ClustersAtOnce() {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = 1;
  attribute.val.clusterDim.y = 1;
  attribute.val.clusterDim.z = kBlocks;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(1, 1, kBlocks);
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = sizeof(Shared);
  config.attrs = &attribute;
  config.numAttrs = 1;
  int count = 0;
  return cudaOccupancyMaxActiveClusters(&count, WideKernel, &config) == cudaSuccess ? count : 0;
}

}  // namespace

std::size_t MhcWideScratchBytes(int dim) {
  return static_cast<std::size_t>(dim / kChunk) * kChunkBytes;
}

bool MhcWide(const MhcBoundaryArgs& args, void* scratch, cudaStream_t stream) {
  const bool whole = args.y != nullptr && args.fn != nullptr && args.x != nullptr && args.norm != nullptr;
  if (!whole || args.dim > kDimMax || args.dim % kChunk != 0) return false;
  cudaFuncSetAttribute(WideKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(sizeof(Shared)));
  const int clusters = min(ClustersAtOnce(), (args.rows + kRows - 1) / kRows);
  if (clusters == 0) return false;
  auto* fn = static_cast<std::uint8_t*>(scratch);
  const int items = args.dim / kChunk * kFnItems;
  LaunchKernel(SplitKernel, static_cast<unsigned>((items + kSplitThreads - 1) / kSplitThreads), kSplitThreads, 0,
               stream, args.fn, args.dim, fn);
  LaunchClusters(WideKernel, dim3(static_cast<unsigned>(clusters), 1, kBlocks), kThreads, sizeof(Shared), stream, args,
                 fn);
  return true;
}

}  // namespace galley::backend::cuda
