// SPDX-License-Identifier: Apache-2.0
// What the machine can do at best, for benchmarks that state a fraction of it: memory read in order, and products of
// registers.
#include "galley/backend/cpu/kernels.h"
#include "galley/backend/cpu/kernels/functions.h"
#include "galley/backend/cpu/kernels/simd.h"

namespace galley::backend::cpu::GALLEY_ISA {

std::uint32_t ReadLines(const std::byte* data, std::size_t bytes) {
  constexpr std::size_t kStep = 256, kAhead = 3072;
  U32 seen[4] = {};
  for (std::size_t i = 0; i + kStep <= bytes; i += kStep) {
    for (std::size_t line = 0; line < 4; ++line) {
      __builtin_prefetch(data + i + kAhead + line * 64);
      seen[line] ^= LoadAs<U32>(data + i + line * 64);
    }
  }
  const U32 all = (seen[0] ^ seen[1]) ^ (seen[2] ^ seen[3]);
  std::uint32_t folded = 0;
  for (int i = 0; i < 16; ++i) folded ^= all[i];
  return folded;
}

float RunDots(std::int64_t count) {
  constexpr int kChains = 16;  // more than the latency of one step is long
  F32 acc[kChains];
  for (int j = 0; j < kChains; ++j) acc[j] = Broadcast(static_cast<float>(j));  // alike, they would be computed once
  const U32 a = BroadcastBits(0x3F803F80u), b = BroadcastBits(0x3C003C00u);
  for (std::int64_t i = 0; i < count; ++i) {
    for (F32& chain : acc) chain = DotPairs(chain, a, b);
  }
  F32 sum{};
  for (const F32& chain : acc) sum = sum + chain;
  return SumLanes(sum);
}

}  // namespace galley::backend::cpu::GALLEY_ISA
