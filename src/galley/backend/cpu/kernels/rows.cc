// SPDX-License-Identifier: Apache-2.0
// Element-wise work and small sums on one row. Sums run in sixteen lanes in ascending order and are folded at the end;
// values behind the end of a row count as zeros.
#include "galley/backend/cpu/kernels.h"
#include "galley/backend/cpu/kernels/decode.h"
#include "galley/backend/cpu/kernels/functions.h"
#include "galley/backend/cpu/kernels/simd.h"

namespace galley::backend::cpu::GALLEY_ISA {
namespace {

constexpr int kCopiesMax = 8;

GALLEY_SIMD F32 LoadSome(const BFloat16* x, std::size_t n) {
  if (n >= kLanes) return LoadBf16(x);
  F32 out{};
  for (std::size_t l = 0; l < n; ++l) out[l] = OneFloat(x[l]);
  return out;
}
GALLEY_SIMD F32 LoadSome(const float* x, std::size_t n) {
  if (n >= kLanes) return Load(x);
  F32 out{};
  for (std::size_t l = 0; l < n; ++l) out[l] = x[l];
  return out;
}
GALLEY_SIMD void StoreSome(BFloat16* p, F32 x, std::size_t n) {
  if (n >= kLanes) return StoreBf16(p, x);
  for (std::size_t l = 0; l < n; ++l) p[l] = RoundOne(x[l]);
}
GALLEY_SIMD void StoreSome(float* p, F32 x, std::size_t n) {
  if (n >= kLanes) return Store(p, x);
  for (std::size_t l = 0; l < n; ++l) p[l] = x[l];
}

}  // namespace

float SumSquares(const BFloat16* x, std::size_t n) {
  F32 sum{};
  for (std::size_t i = 0; i < n; i += kLanes) {
    const F32 v = LoadSome(x + i, n - i);
    sum = Fma(v, v, sum);
  }
  return SumLanes(sum);
}

float DotF32(const float* w, const BFloat16* x, std::size_t n) {
  // Four sums, so that a long row is not bound by the latency of one.
  F32 sum[4] = {};
  std::size_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    for (std::size_t j = 0; j < 4; ++j) sum[j] = Fma(Load(w + i + j * kLanes), LoadBf16(x + i + j * kLanes), sum[j]);
  }
  for (; i < n; i += kLanes) sum[0] = Fma(LoadSome(w + i, n - i), LoadSome(x + i, n - i), sum[0]);
  return SumLanes((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

float Dot4(const BFloat16* q, const BFloat16* k, const BFloat16* a, const BFloat16* b, std::size_t n) {
  F32 sum{};
  for (std::size_t i = 0; i < n; i += kLanes) {
    const std::size_t left = n - i;
    const F32 weight = LoadSome(a + i, left) * LoadSome(b + i, left);
    sum = Fma(LoadSome(q + i, left) * weight, LoadSome(k + i, left), sum);
  }
  return SumLanes(sum);
}

void Norm(const BFloat16* x, const BFloat16* weight, float r, BFloat16* out, std::size_t n) {
  for (std::size_t i = 0; i < n; i += kLanes) {
    StoreSome(out + i, LoadSome(weight + i, n - i) * (LoadSome(x + i, n - i) * r), n - i);
  }
}

void Expand(BFloat16* h, std::size_t dim, int copies, const BFloat16* y, const float* post, const float* comb,
            std::size_t n) {
  const auto count = static_cast<std::size_t>(copies);
  for (std::size_t i = 0; i < n; i += kLanes) {
    F32 old[kCopiesMax];
    for (std::size_t j = 0; j < count; ++j) old[j] = LoadSome(h + j * dim + i, n - i);
    const F32 in = LoadSome(y + i, n - i);
    for (std::size_t k = 0; k < count; ++k) {
      F32 mixed{};
      for (std::size_t j = 0; j < count; ++j) mixed = Fma(Broadcast(comb[j * count + k]), old[j], mixed);
      StoreSome(h + k * dim + i, Fma(Broadcast(post[k]), in, mixed), n - i);
    }
  }
}

void Collapse(const BFloat16* h, std::size_t dim, int copies, const float* pre, BFloat16* out, std::size_t n) {
  for (std::size_t i = 0; i < n; i += kLanes) {
    F32 sum{};
    for (std::size_t k = 0; k < static_cast<std::size_t>(copies); ++k) {
      sum = Fma(Broadcast(pre[k]), LoadSome(h + k * dim + i, n - i), sum);
    }
    StoreSome(out + i, sum, n - i);
  }
}

void AddScaled(BFloat16* h, const BFloat16* value, float gate, std::size_t n) {
  for (std::size_t i = 0; i < n; i += kLanes) {
    StoreSome(h + i, Fma(Broadcast(gate), LoadSome(value + i, n - i), LoadSome(h + i, n - i)), n - i);
  }
}

void Swiglu(const float* gate, const float* up, float limit, float weight, BFloat16* out, std::size_t n) {
  const F32 top = Broadcast(limit), bottom = Broadcast(-limit);
  for (std::size_t i = 0; i < n; i += kLanes) {
    const F32 g = Min(RoundBf16(LoadSome(gate + i, n - i)), top);
    const F32 u = Max(Min(RoundBf16(LoadSome(up + i, n - i)), top), bottom);
    const F32 activated = g / (1.0f + Exp(-g)) * u;
    StoreSome(out + i, activated * weight, n - i);
  }
}

void Accumulate(float* sum, const BFloat16* x, std::size_t n) {
  for (std::size_t i = 0; i < n; i += kLanes) {
    StoreSome(sum + i, LoadSome(sum + i, n - i) + LoadSome(x + i, n - i), n - i);
  }
}

void ToBf16(const float* sum, BFloat16* out, std::size_t n) {
  for (std::size_t i = 0; i < n; i += kLanes) StoreSome(out + i, LoadSome(sum + i, n - i), n - i);
}

void EncodeFp8(const BFloat16* x, std::uint8_t* codes, std::uint8_t* scales, std::size_t n) {
  const F32 top = Broadcast(448.0f), bottom = Broadcast(-448.0f);
  for (std::size_t i = 0; i < n; i += 2 * kLanes) {
    const F32 a = LoadBf16(x + i), b = LoadBf16(x + i + kLanes);
    const float scale = Fp8GroupScale(a, b);
    const F32 down = Broadcast(1.0f / scale);
    StoreAs(codes + i, __builtin_convertvector(EncodeE4M3(Max(Min(a * down, top), bottom)), U8x16));
    StoreAs(codes + i + kLanes, __builtin_convertvector(EncodeE4M3(Max(Min(b * down, top), bottom)), U8x16));
    std::uint32_t bits;
    __builtin_memcpy(&bits, &scale, sizeof(bits));
    scales[i / 32] = static_cast<std::uint8_t>(bits >> 23);
  }
}

void DecodeFp8(const std::uint8_t* codes, const std::uint8_t* scales, BFloat16* out, std::size_t n) {
  for (std::size_t i = 0; i < n; i += kLanes) StoreBf16(out + i, DecodeE4M3(codes + i) * ScaleOf(scales[i / 32]));
}

}  // namespace galley::backend::cpu::GALLEY_ISA
