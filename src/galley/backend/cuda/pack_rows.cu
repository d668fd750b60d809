// SPDX-License-Identifier: Apache-2.0
// Rows of x in the order of products with many rows (packed_rows.h).
#include "galley/backend/cuda/launch.h"
#include "galley/backend/cuda/packed_rows.h"
#include "galley/backend/cuda/ptx/async_copy.cuh"
#include "galley/backend/cuda/stream_dot.cuh"

namespace galley::backend::cuda {
namespace {

// A warp a block of K of 8 rows: a lane reads what a lane of the product holds of a row of weights, and the warp writes
// whole cores.
template <WeightFormat F>
__device__ __forceinline__ void PackGroup(const PackArgs& args, const Tile& t, int group, int block) {
  constexpr int kV = kLaneValues<F>, kK = kBlockK<F>;
  if (block * kK >= args.cols || group * kPackedRows >= t.count) return;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int row = group * kPackedRows + lane / 4, quarter = lane % 4;
  float value[kV] = {};
  if (row < t.count) {
    const std::int64_t source = args.tiles != nullptr ? args.token[t.begin + row] : t.begin + row;
    const auto* from = reinterpret_cast<const uint4*>(args.x + source * args.cols + block * kK + quarter * kV);
#pragma unroll
    for (int i = 0; i < kV / 8; ++i) {
      const uint4 piece = from[i];
      const std::uint32_t words[4] = {piece.x, piece.y, piece.z, piece.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        value[i * 8 + 2 * j] = LowHalf(words[j]), value[i * 8 + 2 * j + 1] = HighHalf(words[j]);
      }
    }
  }
  if (args.quantize) {
    float most = 0;
#pragma unroll
    for (int i = 0; i < kV; ++i) most = fmaxf(most, fabsf(value[i]));
    if constexpr (kV == 16) most = fmaxf(most, __shfl_xor_sync(kFullWarp, most, 1));
    const float scale = Fp8Scale(most);
#pragma unroll
    for (int i = 0; i < kV; ++i) value[i] = FakeFp8(value[i], scale);
  }
  BFloat16* to = args.out + static_cast<std::int64_t>(t.begin) * args.cols +
                 PackedPlace(kK, PackedGroups(t.count), block, row, quarter * 2);
#pragma unroll
  for (int core = 0; core < kV / 2; ++core) {
    const int v = core / 2 * 4 + core % 2;  // pairs lie two apart (SlotPlace)
    *reinterpret_cast<std::uint32_t*>(to + core * 8 * kPackedRows) = Pack(value[v], value[v + 2]);
  }
}

__global__ void __launch_bounds__(256) PackKernel(PackArgs args) {
  ptx::BeginKernel();
  const int block = static_cast<int>(blockIdx.x) * 8 + static_cast<int>(threadIdx.x) / 32,
            group = static_cast<int>(blockIdx.y);
  if (args.tiles == nullptr) {
    const int begin = static_cast<int>(blockIdx.z) * args.tile_rows;
    return PackGroup<WeightFormat::kFp8Block32>(args, {0, begin, min(args.tile_rows, args.rows - begin)}, group, block);
  }
  const Tile t = args.tiles[blockIdx.z];
  t.expert == args.shared_expert ? PackGroup<WeightFormat::kFp8Block32>(args, t, group, block)
                                 : PackGroup<WeightFormat::kMxfp4>(args, t, group, block);
}

}  // namespace

void PackRows(const PackArgs& args, cudaStream_t stream) {
  if (args.rows == 0) return;
  const int tiles = args.tiles != nullptr ? args.tiles_max : (args.rows + args.tile_rows - 1) / args.tile_rows;
  const dim3 grid(static_cast<unsigned>((args.cols / kBlockK<WeightFormat::kFp8Block32> + 7) / 8),
                  static_cast<unsigned>(PackedGroups(args.tile_rows)), static_cast<unsigned>(tiles));
  LaunchKernel(PackKernel, grid, 256, 0, stream, args);
}

}  // namespace galley::backend::cuda
