// SPDX-License-Identifier: Apache-2.0
// Random device memory and a read of it, for benchmarks.
#include "fill.h"

namespace galley::bench {
namespace {

__device__ std::uint32_t Hash(std::uint64_t x) {
  x ^= x >> 33, x *= 0xFF51AFD7ED558CCDull;
  x ^= x >> 33, x *= 0xC4CEB9FE1A85EC53ull;
  return static_cast<std::uint32_t>(x >> 32);
}

__global__ void FillKernel(std::uint32_t* words, std::size_t count, Pattern pattern, std::uint64_t seed) {
  for (std::size_t i = blockIdx.x * static_cast<std::size_t>(blockDim.x) + threadIdx.x; i < count;
       i += static_cast<std::size_t>(gridDim.x) * blockDim.x) {
    const std::uint32_t bits = Hash(i + seed * 0x9E3779B97F4A7C15ull);
    std::uint32_t word = bits;
    if (pattern == Pattern::kE4M3) word = (bits & 0x87878787u) | 0x38383838u;    // ±1 … ±1.9
    if (pattern == Pattern::kScales) word = 0x77777777u + (bits & 0x01010101u);  // 2^-8, 2^-7
    if (pattern == Pattern::kBF16) word = (bits & 0x807F807Fu) | 0x3F003F00u;    // ±0.5 … ±1
    if (pattern == Pattern::kFloat) word = (bits & 0x807FFFFFu) | 0x3F000000u;
    words[i] = word;
  }
}

__global__ void ReadKernel(const uint4* words, std::size_t count, std::uint32_t* out) {
  std::uint32_t sum = 0;
  const std::size_t stride = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  std::size_t i = blockIdx.x * static_cast<std::size_t>(blockDim.x) + threadIdx.x;
  for (; i + 3 * stride < count; i += 4 * stride) {
    const uint4 a = words[i], b = words[i + stride], c = words[i + 2 * stride], d = words[i + 3 * stride];
    sum += (a.x ^ a.y ^ a.z ^ a.w) + (b.x ^ b.y ^ b.z ^ b.w) + (c.x ^ c.y ^ c.z ^ c.w) + (d.x ^ d.y ^ d.z ^ d.w);
  }
  if (sum == 0x12345678u) *out = sum;  // never, but the compiler does not know
}

}  // namespace

void Fill(void* device, std::size_t bytes, Pattern pattern, std::uint64_t seed, void* stream) {
  if (bytes < 4) return;
  FillKernel<<<1056, 256, 0, static_cast<cudaStream_t>(stream)>>>(static_cast<std::uint32_t*>(device), bytes / 4,
                                                                  pattern, seed);
}

void ReadAll(const void* device, std::size_t bytes, void* out, void* stream) {
  ReadKernel<<<1056, 512, 0, static_cast<cudaStream_t>(stream)>>>(static_cast<const uint4*>(device), bytes / 16,
                                                                  static_cast<std::uint32_t*>(out));
}

}  // namespace galley::bench
