// SPDX-License-Identifier: Apache-2.0
// Rows of x in the order of products with many rows (packed_rows.h).
#include "galley/backend/cuda/launch.h"
#include "galley/backend/cuda/pack_rows.cuh"

namespace galley::backend::cuda {
namespace {

// A warp a block of K of 8 rows.
template <WeightFormat F>
__device__ __forceinline__ void PackGroup(const PackArgs& args, const Tile& t, int group, int block) {
  constexpr int kK = kBlockK<F>;
  if (block * kK >= args.cols || group * kPackedRows >= t.count) return;
  const int row = group * kPackedRows + static_cast<int>(threadIdx.x) % 32 / 4;
  PackedPiece<F> piece;
  if (row < t.count) {
    const std::int64_t source = args.tiles != nullptr ? args.token[t.begin + row] : t.begin + row;
    piece.Load(args.x + source * args.cols + block * kK);
  }
  piece.Store(args.quantize, args.out + static_cast<std::int64_t>(t.begin) * args.cols +
                                 PackedPlace(kK, PackedGroups(t.count), block, group * kPackedRows, 0));
}

__global__ void __launch_bounds__(256) PackKernel(PackArgs args) {
  ptx::BeginKernel();
  const int block = static_cast<int>(blockIdx.x) * 8 + static_cast<int>(threadIdx.x) / 32,
            group = static_cast<int>(blockIdx.y);
  if (args.tiles == nullptr) {
    const int begin = static_cast<int>(blockIdx.z) * args.tile_rows;
    const Tile t{0, begin, min(args.tile_rows, args.rows - begin)};
    return args.format == WeightFormat::kBF16 ? PackGroup<WeightFormat::kBF16>(args, t, group, block)
                                              : PackGroup<WeightFormat::kFp8Block32>(args, t, group, block);
  }
  const Tile t = args.tiles[blockIdx.z];
  t.expert == args.shared_expert ? PackGroup<WeightFormat::kFp8Block32>(args, t, group, block)
                                 : PackGroup<WeightFormat::kMxfp4>(args, t, group, block);
}

}  // namespace

void PackRows(const PackArgs& args, cudaStream_t stream) {
  if (args.rows == 0) return;
  const int tiles = args.tiles != nullptr ? args.tiles_max : (args.rows + args.tile_rows - 1) / args.tile_rows;
  const int block_k =
      args.format == WeightFormat::kBF16 ? kBlockK<WeightFormat::kBF16> : kBlockK<WeightFormat::kFp8Block32>;
  const dim3 grid(static_cast<unsigned>((args.cols / block_k + 7) / 8),
                  static_cast<unsigned>(PackedGroups(args.tile_rows)), static_cast<unsigned>(tiles));
  LaunchKernel(PackKernel, grid, 256, 0, stream, args);
}

}  // namespace galley::backend::cuda
