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

// Row and column sums of a matrix of four by four in every place of it, added in ascending order.
#if defined(__AVX512F__)
GALLEY_SIMD F32 RowSums(F32 m) {
  return ((__builtin_shufflevector(m, m, 0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12) +
           __builtin_shufflevector(m, m, 1, 1, 1, 1, 5, 5, 5, 5, 9, 9, 9, 9, 13, 13, 13, 13)) +
          __builtin_shufflevector(m, m, 2, 2, 2, 2, 6, 6, 6, 6, 10, 10, 10, 10, 14, 14, 14, 14)) +
         __builtin_shufflevector(m, m, 3, 3, 3, 3, 7, 7, 7, 7, 11, 11, 11, 11, 15, 15, 15, 15);
}
GALLEY_SIMD F32 ColumnSums(F32 m) {
  return ((__builtin_shufflevector(m, m, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3) +
           __builtin_shufflevector(m, m, 4, 5, 6, 7, 4, 5, 6, 7, 4, 5, 6, 7, 4, 5, 6, 7)) +
          __builtin_shufflevector(m, m, 8, 9, 10, 11, 8, 9, 10, 11, 8, 9, 10, 11, 8, 9, 10, 11)) +
         __builtin_shufflevector(m, m, 12, 13, 14, 15, 12, 13, 14, 15, 12, 13, 14, 15, 12, 13, 14, 15);
}
#else
// A part is one row, or two.
GALLEY_SIMD F32 RowSums(F32 m) {
  for (F32::Part& p : m.part) {
#if defined(__AVX2__)
    p = ((__builtin_shufflevector(p, p, 0, 0, 0, 0, 4, 4, 4, 4) +
          __builtin_shufflevector(p, p, 1, 1, 1, 1, 5, 5, 5, 5)) +
         __builtin_shufflevector(p, p, 2, 2, 2, 2, 6, 6, 6, 6)) +
        __builtin_shufflevector(p, p, 3, 3, 3, 3, 7, 7, 7, 7);
#else
    p = ((__builtin_shufflevector(p, p, 0, 0, 0, 0) + __builtin_shufflevector(p, p, 1, 1, 1, 1)) +
         __builtin_shufflevector(p, p, 2, 2, 2, 2)) +
        __builtin_shufflevector(p, p, 3, 3, 3, 3);
#endif
  }
  return m;
}
GALLEY_SIMD F32 ColumnSums(F32 m) {
#if defined(__AVX2__)
  const F32::Part a = m.part[0], b = m.part[1];
  const F32::Part sum =
      ((__builtin_shufflevector(a, a, 0, 1, 2, 3, 0, 1, 2, 3) + __builtin_shufflevector(a, a, 4, 5, 6, 7, 4, 5, 6, 7)) +
       __builtin_shufflevector(b, b, 0, 1, 2, 3, 0, 1, 2, 3)) +
      __builtin_shufflevector(b, b, 4, 5, 6, 7, 4, 5, 6, 7);
#else
  const F32::Part sum = ((m.part[0] + m.part[1]) + m.part[2]) + m.part[3];
#endif
  for (F32::Part& p : m.part) p = sum;
  return m;
}
#endif

// Some matrices of four by four together, because each step of one waits for the one before.
template <std::size_t kMatrices>
GALLEY_SIMD void BalanceFours(float* matrices, int iterations, float eps) {
  F32 m[kMatrices];
  for (std::size_t i = 0; i < kMatrices; ++i) m[i] = Load(matrices + i * kLanes);
  for (int iteration = 0; iteration < iterations; ++iteration) {
    for (std::size_t i = 0; iteration > 0 && i < kMatrices; ++i) m[i] = m[i] / (RowSums(m[i]) + eps);
    for (std::size_t i = 0; i < kMatrices; ++i) m[i] = m[i] / (ColumnSums(m[i]) + eps);
  }
  for (std::size_t i = 0; i < kMatrices; ++i) Store(matrices + i * kLanes, m[i]);
}

// One matrix of any size; `step` between the values of a sum, `other` between sums.
GALLEY_SIMD void DivideBySums(float* m, std::size_t copies, std::size_t step, std::size_t other, float eps) {
  for (std::size_t j = 0; j < copies; ++j) {
    float sum = 0;
    for (std::size_t k = 0; k < copies; ++k) sum += m[j * other + k * step];
    for (std::size_t k = 0; k < copies; ++k) m[j * other + k * step] /= sum + eps;
  }
}

}  // namespace

void Balance(float* matrices, std::size_t count, int copies, int iterations, float eps) {
  const auto size = static_cast<std::size_t>(copies);
  std::size_t i = 0;
  if (copies == 4) {
    for (; i + 4 <= count; i += 4) BalanceFours<4>(matrices + i * kLanes, iterations, eps);
    for (; i < count; ++i) BalanceFours<1>(matrices + i * kLanes, iterations, eps);
    return;
  }
  for (; i < count; ++i) {
    float* m = matrices + i * size * size;
    for (int iteration = 0; iteration < iterations; ++iteration) {
      if (iteration > 0) DivideBySums(m, size, 1, size, eps);
      DivideBySums(m, size, size, 1, eps);
    }
  }
}

float SumSquares(const BFloat16* x, std::size_t n) {
  F32 sum{};
  for (std::size_t i = 0; i < n; i += kLanes) {
    const F32 v = LoadSome(x + i, n - i);
    sum = Fma(v, v, sum);
  }
  return SumLanes(sum);
}

// Products of kRows rows of weights with one row, which is widened once for all of them.
template <std::size_t kRows>
GALLEY_SIMD void DotsOf(const float* w, const BFloat16* x, std::size_t n, float* out) {
  // Four sums each, so that a long row is not bound by the latency of one.
  F32 sum[4 * kRows] = {};
  std::size_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    for (std::size_t j = 0; j < 4; ++j) {
      const F32 value = LoadBf16(x + i + j * kLanes);
      for (std::size_t r = 0; r < kRows; ++r)
        sum[4 * r + j] = Fma(Load(w + r * n + i + j * kLanes), value, sum[4 * r + j]);
    }
  }
  for (; i < n; i += kLanes) {
    for (std::size_t r = 0; r < kRows; ++r)
      sum[4 * r] = Fma(LoadSome(w + r * n + i, n - i), LoadSome(x + i, n - i), sum[4 * r]);
  }
  for (std::size_t r = 0; r < kRows; ++r)
    out[r] = SumLanes((sum[4 * r] + sum[4 * r + 1]) + (sum[4 * r + 2] + sum[4 * r + 3]));
}

void DotsF32(const float* w, std::size_t rows, const BFloat16* x, std::size_t n, float* out) {
  std::size_t r = 0;
#if defined(__AVX512F__)  // elsewhere the sums of four would not stay in registers
  for (; r + 4 <= rows; r += 4) DotsOf<4>(w + r * n, x, n, out + r);
#endif
  for (; r < rows; ++r) DotsOf<1>(w + r * n, x, n, out + r);
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

void Rotate(BFloat16* x, const float* cos_sin, std::size_t pairs, float sign) {
  const float* sines = cos_sin + pairs;
  std::size_t i = 0;
  for (; i + kLanes <= pairs; i += kLanes) {
    const U32 both = LoadAs<U32>(x + 2 * i);
    const F32 re = (F32)(both << 16), im = (F32)(both & 0xFFFF0000u);
    const F32 c = Load(cos_sin + i), s = Load(sines + i) * sign;
    StoreAs(x + 2 * i, (Bf16Bits(re * c - im * s) >> 16) | Bf16Bits(re * s + im * c));
  }
  for (; i < pairs; ++i) {
    const float re = OneFloat(x[2 * i]), im = OneFloat(x[2 * i + 1]);
    const float c = cos_sin[i], s = sines[i] * sign;
    x[2 * i] = RoundOne(re * c - im * s);
    x[2 * i + 1] = RoundOne(re * s + im * c);
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

void AddFloats(float* sum, const float* x, std::size_t n) {
  for (std::size_t i = 0; i < n; i += kLanes)
    StoreSome(sum + i, LoadSome(sum + i, n - i) + LoadSome(x + i, n - i), n - i);
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
    StoreAs(codes + i, NarrowTo8(EncodeE4M3(Max(Min(a * down, top), bottom))));
    StoreAs(codes + i + kLanes, NarrowTo8(EncodeE4M3(Max(Min(b * down, top), bottom))));
    std::uint32_t bits;
    __builtin_memcpy(&bits, &scale, sizeof(bits));
    scales[i / 32] = static_cast<std::uint8_t>(bits >> 23);
  }
}

void DecodeFp8(const std::uint8_t* codes, const std::uint8_t* scales, BFloat16* out, std::size_t n) {
  for (std::size_t i = 0; i < n; i += kLanes) StoreBf16(out + i, DecodeE4M3(codes + i) * ScaleOf(scales[i / 32]));
}

}  // namespace galley::backend::cpu::GALLEY_ISA
