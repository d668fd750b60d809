// SPDX-License-Identifier: Apache-2.0
// Sites of the hyper-connections for some hundred rows: clusters of 16 blocks of threads stay on the device, each block
// with a sixteenth of the hidden dimension, whose part of the coefficient matrix it keeps in shared memory. A cluster
// takes 16 rows at once. Its blocks exchange the sums of a tile while they work on the next one, and only then write
// its normed values, so that h, y and x are moved once. The same bits as mhc.cu.
#include "galley/backend/cuda/launch.h"
#include "galley/backend/cuda/mhc_tile.cuh"
#include "galley/backend/cuda/ptx/bulk_copy.cuh"
#include "galley/backend/cuda/ptx/cluster.cuh"

namespace galley::backend::cuda {
namespace {

constexpr int kBlocks = 16;  // of a cluster
constexpr int kMixers = kSliceChunks, kMixThreads = 32 * kMixers, kThreads = kMixThreads + 32;
constexpr int kMixingPieces = sizeof(Mixing) / 16;
constexpr int kAllThreads = 1;  // their barrier
constexpr int kBatch = 32;      // rows of which a warp makes the coefficients at once

// Sums of slices that a block gets from every block: of its own row of a tile, and the squares of x of all rows.
struct Received {
  float own[kBlocks][kSquaresOfX], x[kBlocks][kTileRows];
};

struct Shared {
  uint4 fn[kMixers][kFnPieces * 32];
  float chunks[2][kMixers][kTileRows][kSums];  // sums of this tile and of the one before
  Received received[2];
  Mixing mixing[2][kTileRows];  // of this tile and of the next one
  float inverse_rms[2][kTileRows];
  float totals[kBatch][kSums];  // of this block's rows, until there are enough of them
  Site site;
  std::uint64_t arrived[2];  // barriers: what was received is there

  // Of the block's chunks, in ascending order.
  [[nodiscard]] __device__ __forceinline__ float SliceSum(int stage, int row, int output) const {
    float sum = 0;
#pragma unroll
    for (int c = 0; c < kMixers; ++c) sum += chunks[stage][c][row][output];
    return sum;
  }
  [[nodiscard]] __device__ std::uint32_t Arrived(int stage) const {
    return ptx::SharedAddress(&arrived[stage]);
  }
};

struct Place {
  int slice, tile, step, tiles;
};

// One warp reads the mixing matrices ahead, adds what all blocks have sent of the tile before, and makes the
// coefficients of this block's row of each tile.
class Finisher {
 public:
  __device__ __forceinline__ Finisher(const MhcBoundaryArgs& args, const Place& place, Shared& shared)
      : args_(args), place_(place), shared_(shared), lane_(static_cast<int>(threadIdx.x) % 32) {}

  __device__ __forceinline__ void Run() {
    ReadMixing(place_.tile, 0);
    ptx::WaitCopies<0>();
    ptx::SyncThreads(kAllThreads, kThreads);
    int i = 0;
    for (int tile = place_.tile; tile < place_.tiles; tile += place_.step, ++i) {
      ReadMixing(tile + place_.step, (i + 1) % 2);
      if (i > 0) Collect(i - 1);
      ptx::WaitCopies<0>();
      ptx::SyncThreads(kAllThreads, kThreads);
      SendSquares(i % 2);
      if (i % kBatch == 0 && i > 0) Coefficients(i - kBatch, kBatch);
    }
    Collect(i - 1);
    ptx::SyncThreads(kAllThreads, kThreads);
    const int left = (i - 1) % kBatch + 1;
    Coefficients(i - left, left);
  }

 private:
  __device__ __forceinline__ void ReadMixing(int tile, int stage) {
    for (int i = lane_; i < kTileRows * kMixingPieces; i += 32) {
      const int row = i / kMixingPieces, piece = i % kMixingPieces;
      const std::int64_t t = static_cast<std::int64_t>(tile) * kTileRows + row;
      const bool inside = t < args_.rows;
      const float* from = piece < kCopies    ? args_.comb_in + (t * kCopies + piece) * kCopies
                          : piece == kCopies ? args_.post_in + t * kCopies
                                             : args_.pre_in + t * kCopies;
      ptx::CopyAsync16(reinterpret_cast<float*>(&shared_.mixing[stage][row]) + piece * 4, inside ? from : args_.pre_in,
                       inside);
    }
    ptx::CommitCopies();
  }
  // Every block needs the squares of x of all rows.
  __device__ __forceinline__ void SendSquares(int stage) {
    const int row = lane_ % kTileRows;
    const float sum = shared_.SliceSum(stage, row, kSquaresOfX);
#pragma unroll
    for (int i = 0; i < kBlocks / 2; ++i) {
      ptx::StoreToBlock(&shared_.received[stage].x[place_.slice][row], sum, shared_.Arrived(stage),
                        lane_ / kTileRows * (kBlocks / 2) + i);
    }
  }
  // Of the block's tile number i; slices in ascending order.
  __device__ __forceinline__ void Collect(int i) {
    ptx::WaitPhase(shared_.Arrived(i % 2), static_cast<std::uint32_t>(i / 2 % 2));
    const Received& received = shared_.received[i % 2];
    float squares = 0, sum = 0;
#pragma unroll
    for (int s = 0; s < kBlocks; ++s) {
      squares += received.x[s][lane_ % kTileRows];
      sum += received.own[s][lane_ < kSquaresOfX ? lane_ : 0];
    }
    if (lane_ < kTileRows) {
      shared_.inverse_rms[i % 2][lane_] = InverseRms(squares, 1.0f / static_cast<float>(args_.dim), args_.norm_eps);
    }
    if (lane_ < kSquaresOfX) shared_.totals[i % kBatch][lane_] = sum;
    __syncwarp();
    // The next tile of this stage comes only when every block has passed the barrier behind this.
    if (lane_ == 0) ptx::ArriveAndExpect(shared_.Arrived(i % 2), sizeof(Received));
  }
  // Of the block's rows of its tiles from number `first` on, a lane each.
  __device__ __forceinline__ void Coefficients(int first, int count) {
    const std::int64_t t =
        (place_.tile + static_cast<std::int64_t>(first + lane_) * place_.step) * kTileRows + place_.slice;
    if (lane_ < count && t < args_.rows) WriteCoefficients(args_, shared_.site, t, shared_.totals[lane_]);
    __syncwarp();
  }

  const MhcBoundaryArgs& args_;
  const Place& place_;
  Shared& shared_;
  int lane_;
};

// The other warps: a chunk each.
class Mixer {
 public:
  __device__ __forceinline__ Mixer(const MhcBoundaryArgs& args, const Place& place, Shared& shared)
      : args_(args),
        place_(place),
        shared_(shared),
        warp_(static_cast<int>(threadIdx.x) / 32),
        row_(static_cast<int>(threadIdx.x) % 32 / 4),
        d_((place.slice * kMixers + warp_) * kChunk + static_cast<int>(threadIdx.x) % 4 * 8) {}

  __device__ __forceinline__ void Run() {
    const uint4 norm = *reinterpret_cast<const uint4*>(args_.norm + d_);
    RowValues next[2];
    std::uint32_t held[2][4] = {};
    Read(next[0], Row(place_.tile, 0));
    Read(next[1], Row(place_.tile, 1));
    ptx::SyncThreads(kAllThreads, kThreads);
    int i = 0, tile = place_.tile;
    for (; tile < place_.tiles; tile += place_.step, ++i) {
      std::uint32_t x[2][4];
      StepOperands operands[2];
      Squares squares[2];
      Products products = {};
      const auto mix = [&](int half) {
        const Mixing& mixing = shared_.mixing[i % 2][half * 8 + row_];
#pragma unroll
        for (int step = 0; step < 2; ++step) {
          std::uint32_t pairs[2];
          Mix(next[half].Step(step), mixing, true, true, half, operands[step], pairs, squares[half]);
          x[half][2 * step] = pairs[0], x[half][2 * step + 1] = pairs[1];
        }
      };
      // Values of the next tile are asked for in two parts beside the products: all at once waits for places to load
      // to.
      mix(0);
      WriteH(operands, 0, Row(tile, 0));
      mix(1);
      WriteH(operands, 1, Row(tile, 1));
      Read(next[0], Row(tile + place_.step, 0));
      Multiply(products, shared_.fn[warp_], 0, operands[0]);
      Read(next[1], Row(tile + place_.step, 1));
      Multiply(products, shared_.fn[warp_], 1, operands[1]);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        StoreSums(shared_.chunks[i % 2][warp_][half * 8 + row_], products, half, squares[half], true);
      }
      ptx::SyncThreads(kAllThreads, kThreads);
      SendSums(i % 2);
      if (i > 0) WriteX(held, norm, tile - place_.step, (i - 1) % 2);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int j = 0; j < 4; ++j) held[half][j] = x[half][j];
      }
    }
    ptx::SyncThreads(kAllThreads, kThreads);
    WriteX(held, norm, tile - place_.step, (i - 1) % 2);
  }

 private:
  __device__ __forceinline__ std::int64_t Row(int tile, int half) const {
    return static_cast<std::int64_t>(tile) * kTileRows + half * 8 + row_;
  }
  __device__ __forceinline__ void Read(RowValues& row, std::int64_t t) const {
    row = {};
    if (t >= args_.rows) return;
#pragma unroll
    for (int c = 0; c < kCopies; ++c) {
      row.h[c] = __ldcg(reinterpret_cast<const uint4*>(args_.h + (t * kCopies + c) * args_.dim + d_));
    }
    row.y = __ldcg(reinterpret_cast<const uint4*>(args_.y + t * args_.dim + d_));
  }
  __device__ __forceinline__ void WriteH(const StepOperands (&v)[2], int half, std::int64_t t) const {
    if (t >= args_.rows) return;
#pragma unroll
    for (int c = 0; c < kCopies; ++c) {
      *reinterpret_cast<uint4*>(args_.h + (t * kCopies + c) * args_.dim + d_) = {v[0].a[c][half], v[0].a[c][half + 2],
                                                                                 v[1].a[c][half], v[1].a[c][half + 2]};
    }
  }
  // Adds the block's chunks, in ascending order, and sends the sums to the blocks that finish the rows.
  __device__ __forceinline__ void SendSums(int stage) {
    for (int i = static_cast<int>(threadIdx.x); i < kTileRows * kSquaresOfX; i += kMixThreads) {
      const int row = i / kSquaresOfX, output = i % kSquaresOfX;
      ptx::StoreToBlock(&shared_.received[stage].own[place_.slice][output], shared_.SliceSum(stage, row, output),
                        shared_.Arrived(stage), row);
    }
  }
  __device__ __forceinline__ void WriteX(const std::uint32_t (&held)[2][4], const uint4& norm, int tile,
                                         int stage) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const std::int64_t t = Row(tile, half);
      if (t >= args_.rows) continue;
      const float r = shared_.inverse_rms[stage][half * 8 + row_];
      const uint4 x = {held[half][0], held[half][1], held[half][2], held[half][3]};
      *reinterpret_cast<uint4*>(args_.x + t * args_.dim + d_) = Normed(x, norm, r);
    }
  }

  const MhcBoundaryArgs& args_;
  const Place& place_;
  Shared& shared_;
  int warp_, row_, d_;
};

__global__ void __launch_bounds__(kThreads, 1) ClusterKernel(const __grid_constant__ MhcBoundaryArgs args) {
  extern __shared__ __align__(16) std::uint8_t bytes[];
  Shared& shared = *reinterpret_cast<Shared*>(bytes);
  ptx::LetNextKernelStart();
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const Place place{.slice = static_cast<int>(blockIdx.z),
                    .tile = static_cast<int>(blockIdx.x),
                    .step = static_cast<int>(gridDim.x),
                    .tiles = (args.rows + kTileRows - 1) / kTileRows};
#pragma unroll 4
  for (int i = lane; i < kFnItems && warp < kMixers; i += 32) {
    FnValues fn;
    fn.Read(args.fn, args.dim, place.slice * kMixers + warp, i);
    fn.Place(shared.fn[warp], i);
  }
  shared.site.Read(args, static_cast<int>(threadIdx.x));
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < 2; ++stage) {
      ptx::InitBarrier(shared.Arrived(stage), 1);
      ptx::ArriveAndExpect(shared.Arrived(stage), sizeof(Received));
    }
    ptx::FenceBarriers();
  }
  ptx::WaitForPreviousKernel();
  ptx::SyncCluster();
  warp < kMixers ? Mixer(args, place, shared).Run() : Finisher(args, place, shared).Run();
}

}  // namespace

bool MhcClusters(const MhcBoundaryArgs& args, cudaStream_t stream) {
  if (!HasEveryPart(args) || args.dim != kBlocks * kSliceChunks * kChunk) return false;
  cudaFuncSetAttribute(ClusterKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(sizeof(Shared)));
  cudaFuncSetAttribute(ClusterKernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  const int clusters =
      min(ClustersAtOnce(ClusterKernel, kBlocks, kThreads, sizeof(Shared)), (args.rows + kTileRows - 1) / kTileRows);
  if (clusters == 0) return false;
  LaunchClusters(ClusterKernel, dim3(static_cast<unsigned>(clusters), 1, kBlocks), kThreads, sizeof(Shared), stream,
                 args);
  return true;
}

}  // namespace galley::backend::cuda
