// SPDX-License-Identifier: Apache-2.0
// What the machine can do at best, for benchmarks that state a fraction of it: memory read in order, and products of
// registers.
#include "galley/backend/cpu/kernels.h"
#include "galley/backend/cpu/kernels/formats.h"
#include "galley/backend/cpu/kernels/functions.h"
#include "galley/backend/cpu/kernels/simd.h"

namespace galley::backend::cpu::GALLEY_ISA {

std::uint32_t ReadLines(const std::byte* data, std::size_t bytes) {
  constexpr std::size_t kStep = 256;
  U32 seen[4] = {};
  for (std::size_t i = 0; i + kStep <= bytes; i += kStep) {
#pragma GCC unroll 4
    for (std::size_t line = 0; line < 4; ++line) {
      AskAhead(data + i + line * 64);
      seen[line] ^= LoadAs<U32>(data + i + line * 64);
    }
  }
  const U32 all = (seen[0] ^ seen[1]) ^ (seen[2] ^ seen[3]);
  std::uint32_t folded = 0;
  for (std::size_t i = 0; i < kLanes; ++i) folded ^= all[i];
  return folded;
}

namespace {

constexpr int kChains = 16;  // more than the latency of one step is long

template <class Step>
GALLEY_SIMD float RunChains(std::int64_t count, const Step& step) {
  F32 acc[kChains];
  for (int j = 0; j < kChains; ++j) acc[j] = Broadcast(static_cast<float>(j));  // alike, they would be computed once
  for (std::int64_t i = 0; i < count; i += 4) {
#pragma GCC unroll 4
    for (int times = 0; times < 4; ++times) {
      for (F32& chain : acc) chain = step(chain);
    }
  }
  F32 sum{};
  for (const F32& chain : acc) sum = sum + chain;
  return SumLanes(sum);
}

}  // namespace

float RunFloats(std::int64_t count) {
  const F32 a = Broadcast(0.5f), b = Broadcast(3.0f);
  return RunChains(count, [&](F32 chain) { return Fma(chain, a, b); });
}

float RunFp4([[maybe_unused]] std::int64_t count) {
#if GALLEY_DIGITS
  U32 w[Mxfp4::kWeights] = {BroadcastBits(0x01020301u), BroadcastBits(0x01000001u)};
  const U32 x = BroadcastBits(0x01000001u), add = BroadcastBits(1), scale = (U32)Broadcast(0x1p-30f);
  const U32 in[8] = {x, x, x, x, x, x, add, scale};
  return RunChains(count, [&](F32 chain) {
    asm volatile("" : "+v"(w[0]), "+v"(w[1]));  // else the sum would be computed once
    return Mxfp4::AddOne(chain, w, in, Broadcast(0.5f));
  });
#else
  return 0;
#endif
}

}  // namespace galley::backend::cpu::GALLEY_ISA
