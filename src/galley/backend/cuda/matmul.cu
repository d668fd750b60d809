// SPDX-License-Identifier: Apache-2.0
// Linear layers: products of checkpoint weights with few or many rows of x, and the activation quantiser before them.
#include <type_traits>

#include "galley/backend/cuda/kernels.h"
#include "galley/backend/cuda/launch.h"
#include "galley/backend/cuda/pack_rows.cuh"

namespace galley::backend::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32, kTiles = 2;

// Blocks of K in flight: four, or as many as fit beside each other in shared memory.
template <WeightFormat F, int NT>
constexpr int kStages = F == WeightFormat::kMxfp4&& NT == 4 ? 2 : 4;
template <WeightFormat F, int NT>
using DotOf = StreamDot<F, kTiles, NT, kStages<F, NT>, kThreads>;

// Blocks of K that bf16 weights are read ahead. They are small matrices here (the gate: 12 blocks
// of threads), whose time is the latency of their loads one after the other.
constexpr int kBFloat16Ahead = 6, kBFloat16Stages = 8;

// StreamDot::Run for bf16 weights, further ahead: the same products in the same order.
template <int NT>
struct DeepDot : StreamDot<WeightFormat::kBF16, kTiles, NT, kBFloat16Stages, kThreads> {
  __device__ __forceinline__ void RunDeep(int begin, int end, float (&acc)[kTiles][NT][4]) {
    const int blocks = end - begin;
    this->Prepare();
    uint4 w[kBFloat16Ahead][2 * kTiles] = {};
#pragma unroll
    for (int j = 0; j < kBFloat16Ahead; ++j) {
      if (j < blocks) this->LoadWeights(begin + j, w[j]);
    }
    ptx::WaitForPreviousKernel();
#pragma unroll
    for (int s = 0; s < kBFloat16Stages - 1; ++s) {
      if (s < blocks) this->IssueX(begin + s, s);
      ptx::CommitCopies();
    }
    for (int b0 = 0; b0 < blocks; b0 += kBFloat16Ahead) {
#pragma unroll
      for (int j = 0; j < kBFloat16Ahead; ++j) {
        const int b = b0 + j, ahead = b + kBFloat16Stages - 1;
        if (b >= blocks) continue;  // the same for the whole warp
        ptx::WaitCopies<kBFloat16Stages - 2>();
        if (ahead < blocks) this->IssueX(begin + ahead, ahead % kBFloat16Stages);
        ptx::CommitCopies();
        this->template Consume<true>(w[j], b, blocks, b % kBFloat16Stages, acc);
        if (b + kBFloat16Ahead < blocks) this->LoadWeights(begin + b + kBFloat16Ahead, w[j]);
      }
    }
    ptx::WaitCopies<0>();
  }
};
template <WeightFormat F>
constexpr bool kDeep = F == WeightFormat::kBF16;
template <WeightFormat F, int NT>
using NarrowDot = std::conditional_t<kDeep<F>, DeepDot<NT>, DotOf<F, NT>>;

template <WeightFormat F, int NT, bool Natural>
__global__ void __launch_bounds__(kThreads) ProductKernel(ProductArgs args, int splits) {
  using Dot = NarrowDot<F, NT>;
  extern __shared__ __align__(16) std::uint8_t shared[];
  ptx::LetNextKernelStart();
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int cols = static_cast<int>(args.weight.cols), blocks = (cols + kBlockK<F> - 1) / kBlockK<F>;
  const int unit = static_cast<int>(blockIdx.x) * (kWarps / splits) + warp / splits, split = warp % splits;
  const int row0 = unit * kTiles * 16, token0 = static_cast<int>(blockIdx.y) * NT * 8;
  const int blocks_max = (blocks + splits - 1) / splits;

  Dot dot;
  dot.ring = shared;
  dot.scales = shared + Dot::kRingBytes + warp * ((Dot::ScaleBytes(blocks_max) + 15) / 16 * 16);
  dot.cols = cols;
#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
    dot.tile[m] = {.data = static_cast<const std::uint8_t*>(args.weight.data),
                   .scales = args.weight.scales,
                   .row = row0 + m * 16,
                   .end = static_cast<int>(args.weight.rows)};
  }
  const std::int64_t group = args.group_rows == 0 ? 0 : row0 / args.group_rows;
#pragma unroll
  for (int n = 0; n < NT; ++n) {
    const int token = token0 + n * 8 + lane / 4;
    dot.x[n] = token < args.rows && row0 < args.weight.rows ? args.x + token * args.x_stride + group * args.group_stride
                                                            : nullptr;
  }
  float acc[kTiles][NT][4] = {};
  const int begin = SplitBegin(blocks, splits, split), end = SplitBegin(blocks, splits, split + 1);
  if constexpr (kDeep<F>) {
    dot.RunDeep(begin, end, acc);
  } else {
    dot.template Run<Natural, true>(begin, end, acc);
  }

  constexpr int kStride = kTiles * 16 + 4, kPartial = NT * 8 * kStride;
  float* partial = reinterpret_cast<float*>(shared);
  __syncthreads();
  StorePartial<kTiles, NT>(acc, partial + warp * kPartial);
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kWarps / splits * NT * 8 * kTiles * 16; i += kThreads) {
    const int row = i % (kTiles * 16), token = i / (kTiles * 16) % (NT * 8), u = i / (kTiles * 16 * NT * 8);
    const std::int64_t r = (static_cast<std::int64_t>(blockIdx.x) * (kWarps / splits) + u) * kTiles * 16 + row;
    if (r >= args.weight.rows || token0 + token >= args.rows) continue;
    float sum = 0;
    for (int s = 0; s < splits; ++s) sum += partial[(u * splits + s) * kPartial + token * kStride + row];
    const std::int64_t at = (token0 + token) * args.out_stride + r;
    if (args.float_out) {
      static_cast<float*>(args.out)[at] = sum;
    } else if (args.out_tile_rows > 0) {
      // A warp has 32 neighbouring rows of weights, a group of the quantiser.
      const float value = RoundToBFloat16(sum), code = FakeFp8(value, Fp8Scale(WarpMax(fabsf(value))));
      static_cast<BFloat16*>(args.out)[PackedElement(args.rows, static_cast<int>(args.weight.rows), args.out_tile_rows,
                                                     token0 + token, static_cast<int>(r))] = ToBFloat16(code);
    } else {
      static_cast<BFloat16*>(args.out)[at] = ToBFloat16(sum);
    }
  }
}

// Any format and shape, one warp an output; for matrices that the tiles do not fit (fp32, odd widths).
__global__ void PlainProductKernel(ProductArgs args) {
  ptx::BeginKernel();
  const std::int64_t r = static_cast<std::int64_t>(blockIdx.x) * 8 + threadIdx.x / 32;
  const int t = static_cast<int>(blockIdx.y), lane = static_cast<int>(threadIdx.x) % 32;
  if (r >= args.weight.rows) return;
  const std::int64_t cols = args.weight.cols, group = args.group_rows == 0 ? 0 : r / args.group_rows;
  const BFloat16* x = args.x + t * args.x_stride + group * args.group_stride;
  float sum = 0;
  for (std::int64_t k = lane; k < cols; k += 32) {
    const float value = args.weight.format == WeightFormat::kF32
                            ? static_cast<const float*>(args.weight.data)[r * cols + k]
                            : ToFloat(static_cast<const BFloat16*>(args.weight.data)[r * cols + k]);
    sum += value * ToFloat(x[k]);
  }
  sum = WarpSum(sum);
  if (lane != 0) return;
  const std::int64_t at = t * args.out_stride + r;
  if (args.float_out) {
    static_cast<float*>(args.out)[at] = sum;
  } else {
    static_cast<BFloat16*>(args.out)[at] = ToBFloat16(sum);
  }
}

template <WeightFormat F, int NT, bool Natural>
void LaunchProduct(const ProductArgs& args, cudaStream_t stream) {
  using Dot = NarrowDot<F, NT>;
  const int splits = SplitsOf(args.weight.cols);
  const int blocks = static_cast<int>((args.weight.cols + kBlockK<F> - 1) / kBlockK<F>);
  const int scale_bytes = (Dot::ScaleBytes((blocks + splits - 1) / splits) + 15) / 16 * 16 * kWarps;
  constexpr int kPartialBytes = kWarps * NT * 8 * (kTiles * 16 + 4) * 4;
  const int shared = max(Dot::kRingBytes + scale_bytes, kPartialBytes);
  const auto kernel = ProductKernel<F, NT, Natural>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
  const int units = static_cast<int>((args.weight.rows + kTiles * 16 - 1) / (kTiles * 16)), per_block = kWarps / splits;
  const dim3 grid(static_cast<unsigned>((units + per_block - 1) / per_block),
                  static_cast<unsigned>((args.rows + NT * 8 - 1) / (NT * 8)));
  LaunchKernel(kernel, grid, kThreads, static_cast<unsigned>(shared), stream, args, splits);
}

template <WeightFormat F, bool Natural>
void ChooseTile(const ProductArgs& args, cudaStream_t stream) {
  if (args.rows <= 8) return LaunchProduct<F, 1, Natural>(args, stream);
  if (args.rows <= 16) return LaunchProduct<F, 2, Natural>(args, stream);
  LaunchProduct<F, 4, Natural>(args, stream);
}

// A warp a group of 32 values, or 32 values that need no quantiser.
__global__ void ReorderKernel(ReorderArgs args, int values) {
  ptx::BeginKernel();
  const std::int64_t group = static_cast<std::int64_t>(blockIdx.x) * 8 + threadIdx.x / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32, groups = (args.cols + 31) / 32;
  if (group >= static_cast<std::int64_t>(args.rows) * groups) return;
  const std::int64_t row = group / groups;
  const int k = static_cast<int>(group % groups) * 32 + lane;
  float value = k < args.cols ? ToFloat(args.x[row * args.cols + k]) : 0.0f;
  if (args.quantize) value = FakeFp8(value, Fp8Scale(WarpMax(fabsf(value))));
  if (k >= args.cols) return;
  const int place =
      args.order == RowOrder::kSlots ? SlotPlace(k, values, args.format != WeightFormat::kBF16) : PairedPlace(k);
  args.out[row * args.cols + place] = ToBFloat16(value);
}

}  // namespace

void Product(const ProductArgs& args, cudaStream_t stream) {
  if (args.rows == 0 || args.weight.rows == 0) return;
  if (args.order == RowOrder::kPacked || args.order == RowOrder::kUnpacked) return BulkProduct(args, stream);
  if (args.split) return SplitProduct(args, stream);
  if (args.order == RowOrder::kSlots) return WideProduct(args, stream);
  const std::int64_t cols = args.weight.cols;
  const bool tiled = cols % (args.weight.format == WeightFormat::kBF16 ? 8 : 32) == 0 && args.x_stride % 8 == 0 &&
                     args.group_stride % 8 == 0 && args.group_rows % 32 == 0 &&
                     reinterpret_cast<std::uintptr_t>(args.x) % 16 == 0;
  switch (args.weight.format) {
    case WeightFormat::kMxfp4:
      return args.order == RowOrder::kPaired ? ChooseTile<WeightFormat::kMxfp4, false>(args, stream)
                                             : ChooseTile<WeightFormat::kMxfp4, true>(args, stream);
    case WeightFormat::kFp8Block32:
      return args.order == RowOrder::kPaired ? ChooseTile<WeightFormat::kFp8Block32, false>(args, stream)
                                             : ChooseTile<WeightFormat::kFp8Block32, true>(args, stream);
    case WeightFormat::kBF16:
      if (tiled) return ChooseTile<WeightFormat::kBF16, true>(args, stream);
      [[fallthrough]];
    case WeightFormat::kF32:
      LaunchKernel(PlainProductKernel,
                   dim3(static_cast<unsigned>((args.weight.rows + 7) / 8), static_cast<unsigned>(args.rows)), 256, 0,
                   stream, args);
  }
}

void Reorder(const ReorderArgs& args, cudaStream_t stream) {
  const std::int64_t groups = static_cast<std::int64_t>(args.rows) * ((args.cols + 31) / 32);
  if (groups == 0) return;
  // Slots of MXFP4 weights are written by PackRows alone.
  const int values = args.format == WeightFormat::kFp8Block32 ? 16 : 8;
  LaunchKernel(ReorderKernel, static_cast<unsigned>((groups + 7) / 8), 256, 0, stream, args, values);
}

}  // namespace galley::backend::cuda
