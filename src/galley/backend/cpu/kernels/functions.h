// SPDX-License-Identifier: Apache-2.0
// The kernels of one instruction set, by name; table.cc gathers them. Included by kernel sources only.
#pragma once

#include "galley/backend/cpu/kernels.h"

namespace galley::backend::cpu::GALLEY_ISA {

// product.cc
void Pack(const PackArgs& a);
void MatrixProduct(const ProductArgs& a);
// attend.cc
void Attend(const AttendArgs& a);
// fp4.cc
void RoundFp4Index(BFloat16* x, std::size_t n);
void EncodeFp4Index(const BFloat16* x, std::uint8_t* packed, std::uint8_t* scales, std::size_t n);
void EncodeFp4Kv(const BFloat16* x, std::uint8_t* packed, std::uint8_t* scales, std::size_t n);
// index.cc
void PackIndexQueries(const IndexQueryArgs& a);
void IndexScores(const IndexArgs& a);
// measure.cc
std::uint32_t ReadLines(const std::byte* data, std::size_t bytes);
float RunFloats(std::int64_t count);
float RunFp4(std::int64_t count);
// rows.cc
float SumSquares(const BFloat16* x, std::size_t n);
void DotsF32(const float* w, std::size_t rows, const BFloat16* x, std::size_t n, float* out);
float Dot4(const BFloat16* q, const BFloat16* k, const BFloat16* a, const BFloat16* b, std::size_t n);
void Norm(const BFloat16* x, const BFloat16* weight, float r, BFloat16* out, std::size_t n);
void Expand(BFloat16* h, std::size_t dim, int copies, const BFloat16* y, const float* post, const float* comb,
            std::size_t n);
void Collapse(const BFloat16* h, std::size_t dim, int copies, const float* pre, BFloat16* out, std::size_t n);
void Balance(float* matrices, std::size_t count, int copies, int iterations, float eps);
void Rotate(BFloat16* x, const float* cos_sin, std::size_t pairs, float sign);
void AddScaled(BFloat16* h, const BFloat16* value, float gate, std::size_t n);
void Swiglu(const float* gate, const float* up, float limit, float weight, BFloat16* out, std::size_t n);
void Accumulate(float* sum, const BFloat16* x, std::size_t n);
void AddFloats(float* sum, const float* x, std::size_t n);
void ToBf16(const float* sum, BFloat16* out, std::size_t n);
void EncodeFp8(const BFloat16* x, std::uint8_t* codes, std::uint8_t* scales, std::size_t n);
void DecodeFp8(const std::uint8_t* codes, const std::uint8_t* scales, BFloat16* out, std::size_t n);

// table.cc
const Kernels& Table();

}  // namespace galley::backend::cpu::GALLEY_ISA
