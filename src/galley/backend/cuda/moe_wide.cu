// SPDX-License-Identifier: Apache-2.0
// The two products of the experts for many rows (2.9), in the tiles of moe.cu (bulk_dot.cuh). A tile of the first takes
// 64 rows of w1 with one warpgroup and the same rows of w3 with the other; a tile of the second 128 rows of w2.
#include "galley/backend/cuda/bulk_dot.cuh"
#include "galley/backend/cuda/launch.h"
#include "galley/backend/cuda/moe_work.h"

namespace galley::backend::cuda {
namespace {

constexpr auto kFp4 = WeightFormat::kMxfp4, kFp8 = WeightFormat::kFp8Block32;
constexpr int kSplits = 4;  // parts of K, whose sums are added in order
constexpr int kGateRows = kTileRows / 2;
using Shared = BulkShared<3, kWideTile>;

template <WeightFormat F>
__device__ __forceinline__ const std::uint8_t* CodesOf(const std::uint8_t* codes, int row, int cols) {
  return codes + TileOffset(row, kTileHeight / 16, cols / kBlockK<F>);
}
template <WeightFormat F>
__device__ __forceinline__ const std::uint8_t* ScalesOf(const std::uint8_t* scales, int row, int cols) {
  return scales + static_cast<std::int64_t>(F == kFp4 ? row : row / 32) * (cols / 32);
}

template <bool First, WeightFormat F>
__device__ __forceinline__ BulkTile TileOf(const MoeProblem& p, const Tile& t, int column) {
  const ExpertPointers& e = p.experts[t.expert];
  if constexpr (First) {
    const int row = column * kGateRows;
    return {.codes = {CodesOf<F>(e.w1, row, p.dim), CodesOf<F>(e.w3, row, p.dim)},
            .scales = {ScalesOf<F>(e.s1, row, p.dim), ScalesOf<F>(e.s3, row, p.dim)},
            .x = p.work.y + std::int64_t{t.begin} * p.dim,
            .groups = PackedGroups(t.count),
            .cols = p.dim};
  } else {
    const int row = column * kTileRows, half = row + kTileRows / 2;
    return {.codes = {CodesOf<F>(e.w2, row, p.inter), CodesOf<F>(e.w2, half, p.inter)},
            .scales = {ScalesOf<F>(e.s2, row, p.inter), ScalesOf<F>(e.s2, half, p.inter)},
            .x = p.work.activated + std::int64_t{t.begin} * p.inter,
            .groups = PackedGroups(t.count),
            .cols = p.inter};
  }
}

// From the tile of sums: SwiGLU, the routing weight and the quantiser of the second product, whose packed x this is.
// Four lanes a group of 32 of a row of x.
template <WeightFormat F>
__device__ __forceinline__ void Activate(const MoeProblem& p, const Tile& t, int column, const Shared& shared) {
  constexpr int kV = kLaneValues<F>, kK = kBlockK<F>;
  const int pieces = t.count * (kGateRows / 8);
  // The same number of turns for a whole warp.
  for (int base = static_cast<int>(threadIdx.x) & ~31; base < pieces; base += kWideThreads) {
    const int i = min(base + static_cast<int>(threadIdx.x) % 32, pieces - 1);
    const int x_row = i / (kGateRows / 8), inner = i % (kGateRows / 8) * 8, k = column * kGateRows + inner;
    const uint4 gates = shared.Piece(x_row, inner), ups = shared.Piece(x_row, kGateRows + inner);
    const std::uint32_t g[4] = {gates.x, gates.y, gates.z, gates.w}, u[4] = {ups.x, ups.y, ups.z, ups.w};
    const float weight = p.work.weight[t.begin + x_row];
    float value[8], most = 0;
#pragma unroll
    for (int v = 0; v < 8; ++v) {
      const float gate = fminf(v % 2 == 0 ? LowHalf(g[v / 2]) : HighHalf(g[v / 2]), p.limit);
      const float up = ClampTo(v % 2 == 0 ? LowHalf(u[v / 2]) : HighHalf(u[v / 2]), p.limit);
      const float activated = gate / (1.0f + expf(-gate)) * up;
      value[v] = RoundToBFloat16(weight * activated);
      most = fmaxf(most, fabsf(value[v]));
    }
    most = fmaxf(most, __shfl_xor_sync(kFullWarp, most, 1));
    most = fmaxf(most, __shfl_xor_sync(kFullWarp, most, 2));
    const float scale = Fp8Scale(most);
#pragma unroll
    for (int v = 0; v < 8; ++v) value[v] = FakeFp8(value[v], scale);
    BFloat16* to = p.work.activated + std::int64_t{t.begin} * p.inter;
#pragma unroll
    for (int v = 0; v < 8; ++v) {
      if (v % 4 >= 2) continue;  // pairs lie two apart
      const std::int64_t at =
          PackedPlace(kK, PackedGroups(t.count), k / kK, x_row, SlotPlace(k % kK + v, kV, true));
      *reinterpret_cast<std::uint32_t*>(to + at) = Pack(value[v], value[v + 2]);
    }
  }
}

template <bool First, WeightFormat F, int N>
__device__ __forceinline__ void RunTile(const MoeProblem& p, const Tile& t, int column, Shared& shared) {
  float sum[N / 2];
  shared.Multiply<F, N>(TileOf<First, F>(p, t, column), kSplits, sum);
  shared.StoreTile<N>(sum);
  if constexpr (First) {
    Activate<F>(p, t, column, shared);
  } else {
    for (int i = static_cast<int>(threadIdx.x); i < t.count * (kTileRows / 8); i += kWideThreads) {
      const int x_row = i / (kTileRows / 8), row = i % (kTileRows / 8) * 8;
      *reinterpret_cast<uint4*>(p.work.y + std::int64_t{t.begin + x_row} * p.dim + column * kTileRows + row) =
          shared.Piece(x_row, row);
    }
  }
}

template <bool First>
__global__ void __launch_bounds__(kBulkThreads, 1) WideExpertKernel(MoeProblem p, int columns) {
  extern __shared__ __align__(128) std::uint8_t bytes[];
  ptx::BeginKernel();
  Shared shared{.data = bytes};
  shared.Init();
  const auto for_tiles = [&](auto&& run) {
    for (int item = static_cast<int>(blockIdx.x); item < p.work.tiles_max * columns;
         item += static_cast<int>(gridDim.x)) {
      const Tile t = p.work.tiles[item / columns];
      if (t.count != 0) run(t, item % columns);
    }
  };
  const auto copy = [&](const Tile& t, int column) {
    t.expert == p.shared_expert ? shared.Copy<kFp8>(TileOf<First, kFp8>(p, t, column))
                                : shared.Copy<kFp4>(TileOf<First, kFp4>(p, t, column));
  };
  const auto multiply = [&](const Tile& t, int column) {
    if (t.expert == p.shared_expert) return RunTile<First, kFp8, kWideSharedTile>(p, t, column, shared);
    if (t.count <= 64) return RunTile<First, kFp4, 64>(p, t, column, shared);
    if (t.count <= 128) return RunTile<First, kFp4, 128>(p, t, column, shared);
    if (t.count <= 144) return RunTile<First, kFp4, 144>(p, t, column, shared);
    RunTile<First, kFp4, kWideTile>(p, t, column, shared);
  };
  Shared::Divide([&] { for_tiles(copy); }, [&] { for_tiles(multiply); });
}

template <bool First>
void Launch(const MoeProblem& p, int columns, cudaStream_t stream) {
  const auto kernel = WideExpertKernel<First>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Shared::kBytes);
  LaunchKernel(kernel, static_cast<unsigned>(MultiprocessorCount()), kBulkThreads,
               static_cast<std::size_t>(Shared::kBytes), stream, p, columns);
}

}  // namespace

void WideExperts(const MoeProblem& p, int rows, cudaStream_t stream) {
  PackArgs pack{.x = p.x,
                .rows = rows,
                .cols = p.dim,
                .quantize = true,
                .format = kFp4,
                .tile_rows = kWideTile,
                .tiles = p.work.tiles,
                .tiles_max = p.work.tiles_max,
                .token = p.work.token,
                .shared_expert = p.shared_expert,
                .shared = false,
                .out = p.work.y};
  PackRows(pack, stream);
  pack.format = kFp8, pack.shared = true;
  PackRows(pack, stream);
  Launch<true>(p, p.inter / kGateRows, stream);
  Launch<false>(p, p.dim / kTileRows, stream);
}

}  // namespace galley::backend::cuda
