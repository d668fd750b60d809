// SPDX-License-Identifier: Apache-2.0
// How fast a multiprocessor multiplies FP8 weights by FP8 activations with a scale for every 32 values, when all of it
// lies in shared memory: what kernels could reach at most, in each way of doing it. Streams are cudaStream_t.
#pragma once

namespace galley::bench {

enum class ProductWay : int {
  kExact,     // codes to bf16 in registers, times bf16 activations with their scales: what the kernels do
  kPromoted,  // products of codes, 32 values at a time, scaled and added in fp32
  kBare,      // as kExact, without decoding: the limit of bf16 products
};

[[nodiscard]] int MultiprocessorCount();
// Rows of weights that a multiprocessor multiplies at a time.
[[nodiscard]] int RowsOf(ProductWay way, int columns);

// By every multiprocessor: RowsOf rows of weights times `columns` (128 or 192) rows of activations, `blocks` times 32
// values of K, an even number. `out`: 384 floats a multiprocessor.
void MultiplyInShared(ProductWay way, int columns, int blocks, int multiprocessors, float* out, void* stream);

}  // namespace galley::bench
