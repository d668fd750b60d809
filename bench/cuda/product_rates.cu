// SPDX-License-Identifier: Apache-2.0
#include "product_rates.h"

#include <cuda_runtime.h>

#include <cstdint>

#include "galley/backend/cuda/launch.h"
#include "galley/backend/cuda/numbers.cuh"
#include "galley/backend/cuda/ptx/wgmma.cuh"

namespace galley::bench {
namespace {

namespace cuda = backend::cuda;
namespace ptx = backend::cuda::ptx;

constexpr int kK = 32, kStages = 4;

// Warpgroups of a block: while one adds scaled sums, others multiply, so as many as registers allow.
constexpr int Groups(ProductWay way, int columns) {
  return way == ProductWay::kPromoted && columns <= 128 ? 3 : 2;
}

// A stage: codes (lane l of warp w: 16 at 512 w + 16 l), activations, their scales.
template <ProductWay Way, int N>
struct Layout {
  static constexpr int kThreads = 128 * Groups(Way, N), kCodeBytes = kThreads * 16;
  static constexpr int kXBytes = N * kK * (Way == ProductWay::kPromoted ? 1 : 2);
  static constexpr int kScalesAt = kCodeBytes + kXBytes, kBytes = kScalesAt + N * 4;
};

// Values without NaN and infinity, that differ from each other.
template <ProductWay Way, int N>
__device__ void FillStages(std::uint8_t* data) {
  using L = Layout<Way, N>;
  for (int stage = 0; stage < kStages; ++stage, data += L::kBytes) {
    for (int i = static_cast<int>(threadIdx.x); i < L::kBytes / 4; i += L::kThreads) {
      const std::uint32_t noise = (static_cast<std::uint32_t>(i) + stage * 77777u) * 2654435761u;
      const bool codes = i < L::kCodeBytes / 4 || Way == ProductWay::kPromoted;
      std::uint32_t word = codes ? noise & 0xB7B7B7B7u : (noise & 0x807F807Fu) | 0x3F803F80u;
      if (i >= L::kScalesAt / 4) word = 0x3F800000u + (noise >> 30 << 23);
      reinterpret_cast<std::uint32_t*>(data)[i] = word;
    }
  }
  ptx::FenceForWarpgroup();
  __syncthreads();
}

template <ProductWay Way, int N>
__global__ void __launch_bounds__(Layout<Way, N>::kThreads, 1) ProductsKernel(int blocks, float* out) {
  using L = Layout<Way, N>;
  extern __shared__ __align__(1024) std::uint8_t data[];
  FillStages<Way, N>(data);
  const int thread = static_cast<int>(threadIdx.x);
  const auto codes = [&](int b) { return reinterpret_cast<const uint4*>(data + b % kStages * L::kBytes)[thread]; };
  const auto x = [&](int b) { return ptx::SharedAddress(data + b % kStages * L::kBytes + L::kCodeBytes); };
  float sum[N / 2] = {};
  if constexpr (Way == ProductWay::kPromoted) {
    float part[N / 2] = {};
#pragma unroll 1
    for (int b = 0; b < blocks; ++b) {
      const uint4 c = codes(b);
      const std::uint32_t a[4] = {c.x, c.y, c.z, c.w};
      const auto* scales = reinterpret_cast<const float2*>(data + b % kStages * L::kBytes + L::kScalesAt) + thread % 4;
      const float weight_scale = reinterpret_cast<const float*>(scales)[thread / 64];
      ptx::WarpgroupFence();
      ptx::MultiplyFp8<N>(part, a, ptx::CoreDescriptor(x(b), N * 16));
      ptx::WarpgroupCommit();
      ptx::WarpgroupWait<0>();
      ptx::HoldSums(part);
#pragma unroll
      for (int n = 0; n < N / 8; ++n) {
        const float2 pair = scales[n * 4];
        const float even = pair.x * weight_scale, odd = pair.y * weight_scale;
        sum[4 * n] += part[4 * n] * even;
        sum[4 * n + 1] += part[4 * n + 1] * odd;
        sum[4 * n + 2] += part[4 * n + 2] * even;
        sum[4 * n + 3] += part[4 * n + 3] * odd;
      }
    }
  } else {
    const std::uint32_t scale = 127u * 0x00800080u;
    std::uint32_t a[2][2][4];
    const auto decode = [&](int b, std::uint32_t(&to)[2][4]) {
      const uint4 c = codes(b);
      if constexpr (Way == ProductWay::kBare) {
        if (b > 1) return;
        to[0][0] = to[1][0] = c.x, to[0][1] = to[1][1] = c.y, to[0][2] = to[1][2] = c.z, to[0][3] = to[1][3] = c.w;
      } else {
        cuda::DecodeFp8x4(c.x, scale, to[0][0], to[0][1]);
        cuda::DecodeFp8x4(c.y, scale, to[0][2], to[0][3]);
        cuda::DecodeFp8x4(c.z, scale, to[1][0], to[1][1]);
        cuda::DecodeFp8x4(c.w, scale, to[1][2], to[1][3]);
      }
    };
    const auto issue = [&](int b, const std::uint32_t(&from)[2][4]) {
      ptx::WarpgroupFence();
      ptx::Wgmma<N>::Add(sum, from[0], ptx::CoreDescriptor(x(b), N * 16));
      ptx::Wgmma<N>::Add(sum, from[1], ptx::CoreDescriptor(x(b) + N * 32, N * 16));
      ptx::WarpgroupCommit();
    };
    decode(0, a[0]);
#pragma unroll 1
    for (int b = 0; b < blocks; b += 2) {
      issue(b, a[0]);
      ptx::WarpgroupWait<1>();
      decode(b + 1, a[1]);
      issue(b + 1, a[1]);
      ptx::WarpgroupWait<1>();
      decode(b + 2, a[0]);
    }
    ptx::WarpgroupWait<0>();
    ptx::HoldSums(sum);
  }
  float total = 0;
#pragma unroll
  for (int i = 0; i < N / 2; ++i) total += sum[i];
  out[static_cast<int>(blockIdx.x) * L::kThreads + thread] = total;
}

template <ProductWay Way, int N>
void Launch(int blocks, int multiprocessors, float* out, cudaStream_t stream) {
  using L = Layout<Way, N>;
  constexpr int kShared = kStages * L::kBytes;
  cudaFuncSetAttribute(ProductsKernel<Way, N>, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
  ProductsKernel<Way, N><<<static_cast<unsigned>(multiprocessors), L::kThreads, kShared, stream>>>(blocks, out);
}

template <int N>
void LaunchWay(ProductWay way, int blocks, int multiprocessors, float* out, cudaStream_t stream) {
  switch (way) {
    case ProductWay::kExact:
      return Launch<ProductWay::kExact, N>(blocks, multiprocessors, out, stream);
    case ProductWay::kPromoted:
      return Launch<ProductWay::kPromoted, N>(blocks, multiprocessors, out, stream);
    case ProductWay::kBare:
      return Launch<ProductWay::kBare, N>(blocks, multiprocessors, out, stream);
  }
}

}  // namespace

int RowsOf(ProductWay way, int columns) {
  return 64 * Groups(way, columns);
}

int MultiprocessorCount() {
  return cuda::MultiprocessorCount();
}

void MultiplyInShared(ProductWay way, int columns, int blocks, int multiprocessors, float* out, void* stream) {
  auto* s = static_cast<cudaStream_t>(stream);
  columns == 128 ? LaunchWay<128>(way, blocks, multiprocessors, out, s)
                 : LaunchWay<192>(way, blocks, multiprocessors, out, s);
}

}  // namespace galley::bench
