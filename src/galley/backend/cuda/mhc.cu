// SPDX-License-Identifier: Apache-2.0
// One site of the hyper-connections (2.2) in two launches. The first works on slices of the hidden dimension, so that
// few rows still fill the device: expand, partial dot products with the coefficient matrix, collapse. The second works
// on rows: it adds the slices in ascending order, finishes the coefficients and the norm.
#include "galley/backend/cuda/kernels.h"
#include "galley/backend/cuda/launch.h"
#include "galley/backend/cuda/numbers.cuh"
#include "galley/backend/cuda/ptx/async_copy.cuh"

namespace galley::backend::cuda {
namespace {

constexpr int kSlice = 64;                         // hidden values of a slice
constexpr int kOutputs = kCopies * (kCopies + 2);  // coefficients of a row
constexpr int kPartials = kOutputs + 2;            // and the sums of squares of h and of x
constexpr int kRowsAtOnce = 4, kWarps = 8;
constexpr int kRowsPerBlock = 64, kManyRows = 1024;
constexpr int kNormThreads = 32 * (kWarps - 1), kNormPieces = 3;  // of 8 values each, that a thread holds

struct Scratch {
  float* partials;  // [T][kPartials][slices]
  int slices;
};

// Sums of 16 values over the lanes of a warp: lane l gets the sum of value l / 2. Every value is added up as the same
// tree, so its bits do not depend on its index.
__device__ __forceinline__ float SumSixteen(float (&v)[16]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int count = 8, step = 16; count > 0; count >>= 1, step >>= 1) {
    const bool upper = (lane & step) != 0;
#pragma unroll
    for (int i = 0; i < count; ++i) {
      const float give = upper ? v[i] : v[i + count], keep = upper ? v[i + count] : v[i];
      v[i] = keep + __shfl_xor_sync(kFullWarp, give, step);
    }
  }
  return v[0] + __shfl_xor_sync(kFullWarp, v[0], 1);
}

// What a thread needs of four rows: its values of h and y, and the coefficients of its copy.
struct SliceRows {
  BFloat16 own[kRowsAtOnce], y[kRowsAtOnce];
  float post[kRowsAtOnce];
  float4 comb[kRowsAtOnce];  // column `copy` of the mixing matrix
};
__device__ __forceinline__ SliceRows ReadRows(const MhcBoundaryArgs& args, int t0, int last, int copy, int d) {
  SliceRows rows = {};
#pragma unroll
  for (int j = 0; j < kRowsAtOnce; ++j) {
    const std::int64_t t = t0 + j;
    if (d >= args.dim || t >= last) continue;
    rows.own[j] = args.h[(t * kCopies + copy) * args.dim + d];
    if (args.y == nullptr) continue;
    rows.y[j] = args.y[t * args.dim + d];
    rows.post[j] = args.post_in[t * kCopies + copy];
    const float* c = args.comb_in + t * kCopies * kCopies + copy;
    rows.comb[j] = {c[0], c[kCopies], c[2 * kCopies], c[3 * kCopies]};
  }
  return rows;
}

__global__ void __launch_bounds__(256, 2) SliceKernel(MhcBoundaryArgs args, Scratch scratch, int rows_per_block) {
  __shared__ float v[kRowsAtOnce][kCopies][kSlice];
  ptx::LetNextKernelStart();
  const int slice = static_cast<int>(blockIdx.x), warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int copy = static_cast<int>(threadIdx.x) / kSlice, i = static_cast<int>(threadIdx.x) % kSlice;
  const int d = slice * kSlice + i;
  const bool inside = d < args.dim;
  constexpr int kPerWarp = kOutputs / kWarps, kValues = kCopies * kSlice / 32;
  float fn[kPerWarp][kValues];
  if (args.fn != nullptr) {
#pragma unroll
    for (int o = 0; o < kPerWarp; ++o) {
#pragma unroll
      for (int j = 0; j < kValues; ++j) {
        const int c = j / 2, at = slice * kSlice + j % 2 * 32 + lane;
        fn[o][j] = at < args.dim
                       ? args.fn[(static_cast<std::int64_t>(warp * kPerWarp + o) * kCopies + c) * args.dim + at]
                       : 0.0f;
      }
    }
  }
  ptx::WaitForPreviousKernel();
  const int first = static_cast<int>(blockIdx.y) * rows_per_block, last = min(args.rows, first + rows_per_block);
  SliceRows rows, next;
  next = ReadRows(args, first, last, copy, d);
  for (int t0 = first; t0 < last; t0 += kRowsAtOnce) {
    const int count = min(kRowsAtOnce, last - t0);
    rows = next;
    if (t0 + kRowsAtOnce < last) next = ReadRows(args, t0 + kRowsAtOnce, last, copy, d);
    float own[kRowsAtOnce];
#pragma unroll
    for (int j = 0; j < kRowsAtOnce; ++j) own[j] = ToFloat(rows.own[j]);
#pragma unroll
    for (int j = 0; j < kRowsAtOnce; ++j) v[j][copy][i] = own[j];
    __syncthreads();
    if (args.y != nullptr) {
#pragma unroll
      for (int j = 0; j < kRowsAtOnce; ++j) {
        if (!inside || j >= count) continue;
        float mixed = rows.comb[j].x * v[j][0][i];
        mixed += rows.comb[j].y * v[j][1][i];
        mixed += rows.comb[j].z * v[j][2][i];
        mixed += rows.comb[j].w * v[j][3][i];
        const BFloat16 rounded = ToBFloat16(rows.post[j] * ToFloat(rows.y[j]) + mixed);
        args.h[(static_cast<std::int64_t>(t0 + j) * kCopies + copy) * args.dim + d] = rounded;
        own[j] = ToFloat(rounded);
      }
      __syncthreads();
#pragma unroll
      for (int j = 0; j < kRowsAtOnce; ++j) v[j][copy][i] = own[j];
      __syncthreads();
    }
    const auto partial = [&](int j, int o) -> float& {
      return scratch.partials[(static_cast<std::int64_t>(t0 + j) * kPartials + o) * scratch.slices + slice];
    };
    if (args.fn != nullptr) {
      float sums[16];
#pragma unroll
      for (int j = 0; j < kRowsAtOnce; ++j) {
        float value[kValues], square = 0;
#pragma unroll
        for (int k = 0; k < kValues; ++k) value[k] = v[j][k / 2][k % 2 * 32 + lane];
#pragma unroll
        for (int o = 0; o < kPerWarp; ++o) {
          float sum = 0;
#pragma unroll
          for (int k = 0; k < kValues; ++k) sum += fn[o][k] * value[k];
          sums[j * 4 + o] = sum;
        }
#pragma unroll
        for (int k = 0; k < kValues; ++k) square += value[k] * value[k];
        sums[j * 4 + 3] = square;
      }
      const float sum = SumSixteen(sums);
      const int j = lane / 8, o = lane / 2 % 4;
      if (lane % 2 == 0 && j < count) {
        if (o < kPerWarp) {
          partial(j, warp * kPerWarp + o) = sum;
        } else if (warp == 0) {
          partial(j, kOutputs) = sum;
        }
      }
    }
    const int row = warp - 4;  // a warp a row
    if (args.x != nullptr && row >= 0 && row < count) {
      const std::int64_t t = t0 + row;
      float square = 0;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int at = half * 32 + lane;
        float sum = 0;
#pragma unroll
        for (int c = 0; c < kCopies; ++c) sum += args.pre_in[t * kCopies + c] * v[row][c][at];
        const BFloat16 rounded = ToBFloat16(sum);
        if (slice * kSlice + at < args.dim) args.x[t * args.dim + slice * kSlice + at] = rounded;
        square += ToFloat(rounded) * ToFloat(rounded);
      }
      square = WarpSum(square);
      if (lane == 0) partial(row, kOutputs + 1) = square;
    }
    __syncthreads();
  }
}

// Lanes 0 … 15 hold the mixing matrix, lane 4j + k its entry (j, k).
__device__ float Sinkhorn(float m, int iterations, float eps) {
  const auto row_sum = [](float x) {
    x += __shfl_xor_sync(kFullWarp, x, 1);
    return x + __shfl_xor_sync(kFullWarp, x, 2);
  };
  const auto column_sum = [](float x) {
    x += __shfl_xor_sync(kFullWarp, x, 4);
    return x + __shfl_xor_sync(kFullWarp, x, 8);
  };
  float largest = fmaxf(m, __shfl_xor_sync(kFullWarp, m, 1));
  largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, 2));
  m = expf(m - largest);
  m = m / row_sum(m) + eps;
  // 40 divisions in a row: the fast one is within two units in the last place, and a row's sums are brought back to 1
  // by the next round.
  for (int i = 0; i < iterations; ++i) {
    if (i > 0) m = __fdividef(m, row_sum(m) + eps);
    m = __fdividef(m, column_sum(m) + eps);
  }
  return m;
}

// Normed values of a row, by all warps but the first, which is busy with the coefficients. x is read before the sums
// are known, 16 bytes at once; what a thread cannot hold comes after it, value by value.
struct NormRow {
  uint4 x[kNormPieces], norm[kNormPieces];
  int pieces;  // of the row that are held

  __device__ __forceinline__ void Read(const BFloat16* row, const BFloat16* weight, int dim, int thread) {
    const auto places = reinterpret_cast<std::uintptr_t>(row) | reinterpret_cast<std::uintptr_t>(weight);
    pieces = places % 16 == 0 ? min(dim / 8, kNormPieces * kNormThreads) : 0;
#pragma unroll
    for (int j = 0; j < kNormPieces; ++j) {
      const int piece = thread + j * kNormThreads;
      if (piece >= pieces) continue;
      x[j] = reinterpret_cast<const uint4*>(row)[piece];
      norm[j] = reinterpret_cast<const uint4*>(weight)[piece];
    }
  }
  __device__ __forceinline__ static std::uint32_t Pair(std::uint32_t x, std::uint32_t norm, float r) {
    return Pack(LowHalf(norm) * (LowHalf(x) * r), HighHalf(norm) * (HighHalf(x) * r));
  }
  __device__ __forceinline__ void Write(BFloat16* row, const BFloat16* weight, int dim, int thread, float r) const {
#pragma unroll
    for (int j = 0; j < kNormPieces; ++j) {
      const int piece = thread + j * kNormThreads;
      if (piece >= pieces) continue;
      reinterpret_cast<uint4*>(row)[piece] = {Pair(x[j].x, norm[j].x, r), Pair(x[j].y, norm[j].y, r),
                                              Pair(x[j].z, norm[j].z, r), Pair(x[j].w, norm[j].w, r)};
    }
    for (int i = pieces * 8 + thread; i < dim; i += kNormThreads) {
      row[i] = ToBFloat16(ToFloat(weight[i]) * (ToFloat(row[i]) * r));
    }
  }
};

__global__ void __launch_bounds__(256) RowKernel(MhcBoundaryArgs args, Scratch scratch) {
  ptx::BeginKernel();
  __shared__ float sums[kPartials];
  const auto t = static_cast<std::int64_t>(blockIdx.x);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const float* partials = scratch.partials + t * scratch.slices * kPartials;
  const bool norms = args.x != nullptr && args.norm != nullptr, beside = norms && warp > 0;
  const int normer = static_cast<int>(threadIdx.x) - 32;
  BFloat16* x_row = norms ? args.x + t * args.dim : nullptr;
  NormRow held;
  if (beside) held.Read(x_row, args.norm, args.dim, normer);
  constexpr int kPerWarp = (kPartials + kWarps - 1) / kWarps;
  float sum[kPerWarp] = {};
#pragma unroll 3
  for (int s = lane; s < scratch.slices; s += 32) {
#pragma unroll
    for (int i = 0; i < kPerWarp; ++i) {
      const int o = warp + i * kWarps;
      if (o < kPartials) sum[i] += partials[o * scratch.slices + s];
    }
  }
#pragma unroll
  for (int i = 0; i < kPerWarp; ++i) {
    const float total = WarpSum(sum[i]);
    if (lane == 0 && warp + i * kWarps < kPartials) sums[warp + i * kWarps] = total;
  }
  __syncthreads();
  const float dim = static_cast<float>(args.dim);
  if (args.fn != nullptr && warp == 0) {
    const float r = 1.0f / sqrtf(sums[kOutputs] / (dim * kCopies) + args.norm_eps);
    if (lane < kCopies) {
      const float pre = sums[lane] * r * args.scale[0] + args.base[lane];
      const float post = sums[kCopies + lane] * r * args.scale[1] + args.base[kCopies + lane];
      args.pre_out[t * kCopies + lane] = SigmoidOf(pre) + args.hc_eps;
      args.post_out[t * kCopies + lane] = 2 * SigmoidOf(post);
    }
    const int at = 2 * kCopies + lane % 16;
    const float mixed = Sinkhorn(sums[at] * r * args.scale[2] + args.base[at], args.sinkhorn_iters, args.hc_eps);
    if (lane < 16) args.comb_out[t * 16 + lane] = mixed;
  }
  if (!beside) return;
  held.Write(x_row, args.norm, args.dim, normer, 1.0f / sqrtf(sums[kOutputs + 1] / dim + args.norm_eps));
}

}  // namespace

std::size_t MhcScratchBytes(int rows, int dim) {
  return static_cast<std::size_t>(rows) * static_cast<std::size_t>((dim + kSlice - 1) / kSlice) * kPartials *
         sizeof(float);
}

void MhcBoundary(const MhcBoundaryArgs& args, float* scratch, cudaStream_t stream) {
  if (args.rows == 0) return;
  const Scratch s{.partials = scratch, .slices = (args.dim + kSlice - 1) / kSlice};
  const int rows_per_block = args.rows <= 64 ? kRowsAtOnce : args.rows < kManyRows ? 16 : kRowsPerBlock;
  LaunchKernel(
      SliceKernel,
      dim3(static_cast<unsigned>(s.slices), static_cast<unsigned>((args.rows + rows_per_block - 1) / rows_per_block)),
      256, 0, stream, args, s, rows_per_block);
  if (args.fn == nullptr && (args.x == nullptr || args.norm == nullptr)) return;
  LaunchKernel(RowKernel, static_cast<unsigned>(args.rows), 256, 0, stream, args, s);
}

}  // namespace galley::backend::cuda
