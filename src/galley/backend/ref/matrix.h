// SPDX-License-Identifier: Apache-2.0
// Matrix products of the reference backend: each output is one dot product in a fixed order.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "galley/backend/ops.h"
#include "galley/base/thread_pool.h"

namespace galley::backend::ref {

// fp32 values of row `r` of a weight, scales applied.
void DecodeWeightRow(const Weight& weight, std::int64_t r, std::span<float> out);

// out[t][r] = w[r] . x[t] in fp32, x [rows][weight.cols]. Quantised weights: x is taken through the FP8 activation
// quantiser first and K blocks of 32 are added in order.
[[nodiscard]] std::vector<float> Multiply(ThreadPool& pool, const Weight& weight, std::vector<float> x, int rows);

// The same without quantising x, whatever the weight's format, in one fp32 sum.
[[nodiscard]] std::vector<float> MultiplyUnquantized(ThreadPool& pool, const Weight& weight,
                                                     const std::vector<float>& x, int rows);

// bf16 rows as fp32.
[[nodiscard]] std::vector<float> ToFloats(const BFloat16* x, std::int64_t count);

}  // namespace galley::backend::ref
