// SPDX-License-Identifier: Apache-2.0
// One site of the hyper-connections (2.2): what its kernels, mhc.cu, mhc_clusters.cu and mhc_wide.cu, share, so that
// the bits of a row do not depend on which of them has it. A warp takes a chunk, 32 hidden values of all four copies,
// of 16 rows. It mixes y in, collapses, and multiplies with the coefficient matrix: h is exact in bf16, and each fp32
// value of the matrix is the sum of three bf16 values. Sums of a row are added by chunk within slices of ten, then by
// slice.
#pragma once

#include "galley/backend/cuda/kernels.h"
#include "galley/backend/cuda/numbers.cuh"
#include "galley/backend/cuda/ptx/math.cuh"
#include "galley/backend/cuda/ptx/mma.cuh"

namespace galley::backend::cuda {

constexpr int kChunk = 32, kSliceChunks = 10, kTileRows = 16;
constexpr int kCoefficients = kCopies * (kCopies + 2);                       // of a row
constexpr int kSquaresOfH = kCoefficients, kSquaresOfX = kCoefficients + 1;  // sums behind the coefficients'
constexpr int kSums = kCoefficients + 2;
constexpr int kOutputTiles = kCoefficients / 8, kParts = 3;  // of a product, and bf16 values of one of fp32
constexpr int kFnPieces = kCopies * kOutputTiles * kParts;   // of a chunk of the matrix, 16 bytes a lane each

// A lane has 8 neighbours of each copy of a row, in two steps of four: what it has for 16 values of K of a product.
struct StepValues {
  std::uint32_t h[kCopies][2], y[2];
};
// A lane's values of a row in a chunk: those of both steps.
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

// Values of h of rows l/4 and l/4 + 8 as operands of the products, 16 values of K a copy. The pairs are that as they
// are, because the order of K is free as long as the matrix has the same one.
struct StepOperands {
  std::uint32_t a[kCopies][4];
};

// How a row's copies are mixed.
struct Mixing {
  float comb[kCopies][kCopies], post[kCopies], pre[kCopies];
};

__device__ __forceinline__ void Read4(float (&to)[4], const float* from) {
  const float4 v = *reinterpret_cast<const float4*>(from);
  to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
}
__device__ __forceinline__ void Write4(float* to, const float (&v)[4]) {
  *reinterpret_cast<float4*>(to) = {v[0], v[1], v[2], v[3]};
}

// Multiplications and additions are named one by one, so that no kernel contracts them in its own way.
__device__ __forceinline__ float MixedCopy(const Mixing& m, int to, const float (&v)[kCopies], float y) {
  float mixed = __fmul_rn(m.comb[0][to], v[0]);
#pragma unroll
  for (int c = 1; c < kCopies; ++c) mixed = __fmaf_rn(m.comb[c][to], v[c], mixed);
  return __fmaf_rn(m.post[to], y, mixed);
}

// Sums of squares of a lane's values of a row.
struct Squares {
  float h = 0, x = 0;

  // Those of all four lanes of the row.
  __device__ __forceinline__ void AddLanes() {
#pragma unroll
    for (int step = 1; step < 4; step <<= 1) {
      h += __shfl_xor_sync(kFullWarp, h, step);
      x += __shfl_xor_sync(kFullWarp, x, step);
    }
  }
};

// Mixes y into the copies, leaves them in `to`, collapses them, and adds the squares of both.
__device__ __forceinline__ void Mix(const StepValues& v, const Mixing& m, bool expand, bool collapse, int half,
                                    StepOperands& to, std::uint32_t (&x)[2], Squares& squares) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float low[kCopies], high[kCopies];
#pragma unroll
    for (int c = 0; c < kCopies; ++c) low[c] = LowHalf(v.h[c][i]), high[c] = HighHalf(v.h[c][i]);
#pragma unroll
    for (int c = 0; c < kCopies; ++c) {
      to.a[c][half + i * 2] =
          expand ? Pack(MixedCopy(m, c, low, LowHalf(v.y[i])), MixedCopy(m, c, high, HighHalf(v.y[i]))) : v.h[c][i];
    }
    float sum[2] = {};
#pragma unroll
    for (int c = 0; c < kCopies; ++c) {
      const float a = LowHalf(to.a[c][half + i * 2]), b = HighHalf(to.a[c][half + i * 2]);
      squares.h = __fmaf_rn(b, b, __fmaf_rn(a, a, squares.h));
      sum[0] = __fmaf_rn(m.pre[c], a, sum[0]);
      sum[1] = __fmaf_rn(m.pre[c], b, sum[1]);
    }
    if (!collapse) continue;
    x[i] = Pack(sum[0], sum[1]);
    const float a = LowHalf(x[i]), b = HighHalf(x[i]);
    squares.x = __fmaf_rn(b, b, __fmaf_rn(a, a, squares.x));
  }
}

// A chunk of the matrix as operands in shared memory: piece (step, pair of copies, tile of 8 coefficients, part) holds
// 16 bytes a lane, 8 of each copy; parts by size. Item i of kFnItems is lane i % 32's of both steps and all parts.
constexpr int kFnItems = kCopies * kOutputTiles * 32;
__device__ __forceinline__ int FnPiece(int step, int copies, int tile, int part) {
  return (((step * (kCopies / 2) + copies) * kOutputTiles + tile) * kParts + part) * 32;
}
struct FnValues {
  float v[8];

  __device__ __forceinline__ void Read(const float* fn, int dim, int chunk, int i) {
    const int lane = i % 32, copy = i / 32 / kOutputTiles;
    const int output = i / 32 % kOutputTiles * 8 + lane / 4, d = chunk * kChunk + lane % 4 * 8;
    if (d >= dim) {
      *this = {};
      return;
    }
    const float* from = fn + (static_cast<std::int64_t>(output) * kCopies + copy) * dim + d;
    const float4 a = reinterpret_cast<const float4*>(from)[0], b = reinterpret_cast<const float4*>(from)[1];
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
  }
  // Takes the next part out of the values.
  __device__ __forceinline__ void Split(std::uint32_t (&pairs)[4]) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      pairs[j] = Pack(v[2 * j], v[2 * j + 1]);
      v[2 * j] -= LowHalf(pairs[j]), v[2 * j + 1] -= HighHalf(pairs[j]);
    }
  }
  __device__ __forceinline__ void Place(uint4* to, int i) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      std::uint32_t pairs[4];
      Split(pairs);
      const int copy = i / 32 / kOutputTiles, tile = i / 32 % kOutputTiles;
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        uint4* piece = to + FnPiece(step, copy / 2, tile, part) + i % 32;
        reinterpret_cast<uint2*>(piece)[copy % 2] = {pairs[2 * step], pairs[2 * step + 1]};
      }
    }
  }
};

// Sums of a chunk. Lane l: of rows l/4 and l/4 + 8 with coefficients 8 i + 2 (l%4), + 1.
struct Products {
  float coefficients[kOutputTiles][4];
};

// Adds the products of a step with the chunk's matrix `fn`, as FnValues::Place leaves it.
__device__ __forceinline__ void Multiply(Products& sums, const uint4* fn, int step, const StepOperands& h) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int pair = 0; pair < kCopies / 2; ++pair) {
    const std::uint32_t(&first)[4] = h.a[2 * pair], (&second)[4] = h.a[2 * pair + 1];
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      uint4 b[kOutputTiles];
#pragma unroll
      for (int n = 0; n < kOutputTiles; ++n) b[n] = fn[FnPiece(step, pair, n, part) + lane];
#pragma unroll
      for (int n = 0; n < kOutputTiles; ++n) ptx::Mma16x8x16(sums.coefficients[n], first, b[n].x, b[n].y);
#pragma unroll
      for (int n = 0; n < kOutputTiles; ++n) ptx::Mma16x8x16(sums.coefficients[n], second, b[n].z, b[n].w);
    }
  }
}

// Leaves the chunk's sums of row l/4 (`half` 0) or l/4 + 8 (1) at `to` [kSums], by all lanes of the warp.
__device__ __forceinline__ void StoreSums(float* to, const Products& products, int half, Squares squares, bool inside) {
  const int quad = static_cast<int>(threadIdx.x) % 4;
  squares.AddLanes();
  if (!inside) return;
#pragma unroll
  for (int n = 0; n < kOutputTiles; ++n) {
    *reinterpret_cast<float2*>(to + n * 8 + quad * 2) = {products.coefficients[n][half * 2],
                                                         products.coefficients[n][half * 2 + 1]};
  }
  if (quad == 0) *reinterpret_cast<float2*>(to + kSquaresOfH) = {squares.h, squares.x};
}

// The next two are within a few units in the last place.
__device__ __forceinline__ float InverseRms(float squares, float inverse_count, float eps) {
  return ptx::ReciprocalRoot(__fmaf_rn(squares, inverse_count, eps));
}
__device__ __forceinline__ float Sigmoid(float x) {
  return ptx::Reciprocal(__fadd_rn(1.0f, expf(-x)));
}

__device__ __forceinline__ std::uint32_t NormPair(std::uint32_t x, std::uint32_t norm, float r) {
  return Pack(LowHalf(norm) * (LowHalf(x) * r), HighHalf(norm) * (HighHalf(x) * r));
}
__device__ __forceinline__ uint4 Normed(const uint4& x, const uint4& norm, float r) {
  return {NormPair(x.x, norm.x, r), NormPair(x.y, norm.y, r), NormPair(x.z, norm.z, r), NormPair(x.w, norm.w, r)};
}

// The mixing matrix from its logits, by one thread: 40 times sums and inverses, one after the other, without shuffles
// in between. The rounds leave the softmax m as it is and scale it, to row[j] m[j][k] column[k]. A column's scale
// becomes old / (old sum + eps), sum being that of row[j] m[j][k] over j, which is 1 / (sum + eps / old); so do rows'
// scales. Thus rounding errors do not add up from round to round. No entry is smaller than eps, which bounds the scales
// (3e-4 to 3e5 for eps 1e-6). A sum takes its terms in the order in which the unit for inverses gives their factors.
__device__ __forceinline__ void Sinkhorn(float (&m)[kCopies][kCopies], int iterations, float eps) {
#pragma unroll
  for (int j = 0; j < kCopies; ++j) {
    const float largest = fmaxf(fmaxf(m[j][0], m[j][1]), fmaxf(m[j][2], m[j][3]));
#pragma unroll
    for (int k = 0; k < kCopies; ++k) m[j][k] = expf(m[j][k] - largest);
    const float inverse = ptx::Reciprocal(__fadd_rn(__fadd_rn(m[j][0], m[j][1]), __fadd_rn(m[j][2], m[j][3])));
#pragma unroll
    for (int k = 0; k < kCopies; ++k) m[j][k] = __fmaf_rn(m[j][k], inverse, eps);
  }
  float row[kCopies], column[kCopies], row_inverse[kCopies], column_inverse[kCopies];
#pragma unroll
  for (int k = 0; k < kCopies; ++k) row[k] = column[k] = row_inverse[k] = column_inverse[k] = 1;
  const auto scale_rows = [&] {
#pragma unroll
    for (int j = 0; j < kCopies; ++j) {
      row_inverse[j] = __fmul_rn(eps, row_inverse[j]);
#pragma unroll
      for (int k = 0; k < kCopies; ++k) row_inverse[j] = __fmaf_rn(m[j][k], column[k], row_inverse[j]);
      row[j] = ptx::Reciprocal(row_inverse[j]);
    }
  };
  const auto scale_columns = [&] {
#pragma unroll
    for (int k = 0; k < kCopies; ++k) {
      column_inverse[k] = __fmul_rn(eps, column_inverse[k]);
#pragma unroll
      for (int j = 0; j < kCopies; ++j) column_inverse[k] = __fmaf_rn(m[j][k], row[j], column_inverse[k]);
      column[k] = ptx::Reciprocal(column_inverse[k]);
    }
  };
  if (iterations > 0) scale_columns();
#pragma unroll 1
  for (int i = 1; i < iterations; ++i) scale_rows(), scale_columns();
#pragma unroll
  for (int j = 0; j < kCopies; ++j) {
#pragma unroll
    for (int k = 0; k < kCopies; ++k) m[j][k] = __fmul_rn(__fmul_rn(m[j][k], row[j]), column[k]);
  }
}

// Whether a call expands, makes coefficients, collapses and norms: what the kernels for many rows do.
inline bool HasEveryPart(const MhcBoundaryArgs& args) {
  return args.y != nullptr && args.fn != nullptr && args.x != nullptr && args.norm != nullptr;
}

// Constants of a site in shared memory, which are weights.
struct Site {
  float base[kCoefficients], scale[3];

  __device__ __forceinline__ void Read(const MhcBoundaryArgs& args, int thread) {
    if (args.fn == nullptr) return;
    if (thread < kCoefficients) base[thread] = args.base[thread];
    if (thread < 3) scale[thread] = args.scale[thread];
  }
};

// Coefficients of row t from its sums, by one thread.
__device__ __forceinline__ void WriteCoefficients(const MhcBoundaryArgs& args, const Site& site, std::int64_t t,
                                                  const float* sums) {
  const float r = InverseRms(sums[kSquaresOfH], 1.0f / static_cast<float>(args.dim * kCopies), args.norm_eps);
  const auto mixed = [&](int i, int scale) {
    return __fmaf_rn(__fmul_rn(sums[i], r), site.scale[scale], site.base[i]);
  };
  float pre[kCopies], post[kCopies], m[kCopies][kCopies];
#pragma unroll
  for (int i = 0; i < kCopies; ++i) {
    pre[i] = __fadd_rn(Sigmoid(mixed(i, 0)), args.hc_eps);
    post[i] = 2 * Sigmoid(mixed(kCopies + i, 1));
#pragma unroll
    for (int k = 0; k < kCopies; ++k) m[i][k] = mixed((2 + i) * kCopies + k, 2);
  }
  Sinkhorn(m, args.sinkhorn_iters, args.hc_eps);
  Write4(args.pre_out + t * kCopies, pre);
  Write4(args.post_out + t * kCopies, post);
#pragma unroll
  for (int j = 0; j < kCopies; ++j) Write4(args.comb_out + (t * kCopies + j) * kCopies, m[j]);
}

}  // namespace galley::backend::cuda
