// SPDX-License-Identifier: Apache-2.0
#include "galley/backend/cpu/kernels/formats.h"
#include "galley/backend/cpu/kernels/functions.h"

namespace galley::backend::cpu::GALLEY_ISA {
namespace {

constinit const Kernels kTable = {.pack = Pack,
                                  .product = MatrixProduct,
                                  .attend = Attend,
                                  .pack_index_queries = PackIndexQueries,
                                  .index_scores = IndexScores,
                                  .read_lines = ReadLines,
                                  .run_floats = RunFloats,
                                  .run_fp4 = GALLEY_DIGITS ? RunFp4 : nullptr,
                                  .sum_squares = SumSquares,
                                  .dots_f32 = DotsF32,
                                  .dot4 = Dot4,
                                  .norm = Norm,
                                  .expand = Expand,
                                  .collapse = Collapse,
                                  .balance = Balance,
                                  .rotate = Rotate,
                                  .add_scaled = AddScaled,
                                  .swiglu = Swiglu,
                                  .accumulate = Accumulate,
                                  .add = AddFloats,
                                  .to_bf16 = ToBf16,
                                  .encode_fp8 = EncodeFp8,
                                  .decode_fp8 = DecodeFp8,
                                  .round_fp4_index = RoundFp4Index,
                                  .encode_fp4_index = EncodeFp4Index,
                                  .encode_fp4_kv = EncodeFp4Kv};

}  // namespace

const Kernels& Table() {
  return kTable;
}

}  // namespace galley::backend::cpu::GALLEY_ISA
