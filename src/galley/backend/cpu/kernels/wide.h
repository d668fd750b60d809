// SPDX-License-Identifier: Apache-2.0
// 64 bytes of lanes as registers of the width that the processor has. A vector type of 64 bytes would do where they are
// that wide; elsewhere GCC keeps such vectors in memory and takes comparisons of them lane by lane. Included by
// simd.h only.
#pragma once

#include <cstddef>
#include <cstdint>

namespace galley::backend::cpu::GALLEY_ISA {

#define GALLEY_WIDE inline __attribute__((always_inline))

#if defined(__AVX2__)
inline constexpr std::size_t kRegisterBytes = 32;
#else
inline constexpr std::size_t kRegisterBytes = 16;
#endif

// The lanes of a comparison: all ones or zero.
template <std::size_t kBytes>
struct MaskLane;
template <>
struct MaskLane<1> {
  using Type = std::int8_t;
};
template <>
struct MaskLane<2> {
  using Type = std::int16_t;
};
template <>
struct MaskLane<4> {
  using Type = std::int32_t;
};
template <>
struct MaskLane<8> {
  using Type = std::int64_t;
};

// As a vector of the compiler: operators lane by lane, with a number for a vector of equal lanes, casts that keep the
// bits, and `{}` for zeros.
template <typename T>
struct Wide {
  static constexpr std::size_t kParts = 64 / kRegisterBytes, kLanesEach = kRegisterBytes / sizeof(T);
  using Part __attribute__((vector_size(kRegisterBytes))) = T;
  using Mask = Wide<typename MaskLane<sizeof(T)>::Type>;
  Part part[kParts];

  Wide() = default;
  GALLEY_WIDE Wide(T x) {  // NOLINT(google-explicit-constructor)
    for (Part& p : part) p = x - Part{};
  }
  template <typename U>
  GALLEY_WIDE explicit operator Wide<U>() const {
    Wide<U> out;
    for (std::size_t i = 0; i < kParts; ++i) out.part[i] = (typename Wide<U>::Part)part[i];
    return out;
  }
  GALLEY_WIDE T operator[](std::size_t lane) const { return part[lane / kLanesEach][lane % kLanesEach]; }
  GALLEY_WIDE T& operator[](std::size_t lane) { return reinterpret_cast<T*>(part)[lane]; }

#define GALLEY_LANE_BY_LANE(op)                                                  \
  friend GALLEY_WIDE Wide operator op(Wide a, Wide b) {                          \
    for (std::size_t i = 0; i < kParts; ++i) a.part[i] = a.part[i] op b.part[i]; \
    return a;                                                                    \
  }                                                                              \
  GALLEY_WIDE Wide& operator op##=(Wide b) {                                     \
    for (std::size_t i = 0; i < kParts; ++i) part[i] = part[i] op b.part[i];     \
    return *this;                                                                \
  }
  GALLEY_LANE_BY_LANE(+)
  GALLEY_LANE_BY_LANE(-)
  GALLEY_LANE_BY_LANE(*)
  GALLEY_LANE_BY_LANE(/)
  GALLEY_LANE_BY_LANE(&)
  GALLEY_LANE_BY_LANE(|)
  GALLEY_LANE_BY_LANE(^)
#undef GALLEY_LANE_BY_LANE
#define GALLEY_COMPARISON(op)                                                                             \
  friend GALLEY_WIDE Mask operator op(Wide a, Wide b) {                                                   \
    Mask out;                                                                                             \
    for (std::size_t i = 0; i < kParts; ++i) out.part[i] = (typename Mask::Part)(a.part[i] op b.part[i]); \
    return out;                                                                                           \
  }
  GALLEY_COMPARISON(<)
  GALLEY_COMPARISON(>)
  GALLEY_COMPARISON(>=)
  GALLEY_COMPARISON(==)
  GALLEY_COMPARISON(!=)
#undef GALLEY_COMPARISON
  friend GALLEY_WIDE Wide operator<<(Wide a, int count) {
    for (Part& p : a.part) p = p << count;
    return a;
  }
  friend GALLEY_WIDE Wide operator>>(Wide a, int count) {
    for (Part& p : a.part) p = p >> count;
    return a;
  }
  friend GALLEY_WIDE Wide operator~(Wide a) {
    for (Part& p : a.part) p = ~p;
    return a;
  }
  friend GALLEY_WIDE Wide operator-(Wide a) {
    for (Part& p : a.part) p = -p;
    return a;
  }
};

#undef GALLEY_WIDE

}  // namespace galley::backend::cpu::GALLEY_ISA
