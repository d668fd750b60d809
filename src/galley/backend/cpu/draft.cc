// SPDX-License-Identifier: Apache-2.0
// The draft head, DSpark (specification 2.12). Its attention is with the other attention.
#include <algorithm>

#include "galley/backend/cpu/cpu_backend.h"

namespace galley::backend::cpu {

void CpuBackend::DraftWindow(const DraftWindowArgs& args) {
  memory_.Reset();
  const int rows = args.step.rows;
  const auto dim = static_cast<std::size_t>(args.main_proj.rows), head_dim = static_cast<std::size_t>(args.head_dim);
  const auto dims = static_cast<std::size_t>(args.rope.dims);
  auto* x = memory_.Take<BFloat16>(static_cast<std::size_t>(rows) * dim);
  auto* kv = memory_.Take<BFloat16>(static_cast<std::size_t>(rows) * head_dim);
  const float* rope = RopeValues(args.rope, args.step);
  ProductArgs main = ProductOf(args.main_proj, PackForLayer(args.main_proj, args.main_hidden, rows), rows);
  main.out_bf16 = x;
  RunProducts({&main, 1});
  for (std::size_t t = 0; t < static_cast<std::size_t>(rows); ++t) NormRow(x + t * dim, args.main_norm, args.eps, dim);
  for (int s = 0; s < args.stages; ++s) {
    const DraftStageKv& stage = args.stage[s];
    ProductArgs product = ProductOf(stage.wkv, PackForLayer(stage.wkv, x, rows), rows);
    product.out_bf16 = kv;
    RunProducts({&product, 1});
    for (int t = 0; t < rows; ++t) {
      const auto row = static_cast<std::size_t>(t);
      const Position p = args.step.positions[t];
      BFloat16* values = kv + row * head_dim;
      NormRow(values, stage.kv_norm, args.eps, head_dim);
      RotateTail(values, head_dim, rope + row * dims, args.rope.dims, 1.0f);
      auto* record = reinterpret_cast<std::uint8_t*>(stage.ring.At(args.step.sequence_of(t).slot, p));
      kernels_.encode_fp8(values, record, record + head_dim, head_dim);
    }
  }
}

void CpuBackend::DraftChain(const DraftChainArgs& args) {
  const auto dim = static_cast<std::size_t>(args.dim), rank = static_cast<std::size_t>(args.embed.cols);
  const auto vocab = static_cast<std::size_t>(args.head.rows);
  const auto* embed = static_cast<const BFloat16*>(args.embed.data);
  for (std::size_t s = 0; s < static_cast<std::size_t>(args.sequences); ++s) {
    TokenId token = args.first_tokens[s];
    for (std::size_t i = 0; i < static_cast<std::size_t>(args.block); ++i) {
      memory_.Reset();
      const std::size_t row = s * static_cast<std::size_t>(args.block) + i;
      const BFloat16* embedding = embed + static_cast<std::size_t>(token) * rank;
      auto* joined = memory_.Take<BFloat16>(dim + rank);  // [x ; embedding of the token before]
      std::copy_n(args.x + row * dim, dim, joined);
      std::copy_n(embedding, rank, joined + dim);
      auto* bias = memory_.Take<float>(vocab);
      ProductArgs products[2] = {
          ProductOf(args.head, PackFor(args.head.format, false, embedding, args.head.cols, 1, args.head.cols), 1),
          ProductOf(args.confidence,
                    PackFor(args.confidence.format, false, joined, args.confidence.cols, 1, args.confidence.cols), 1)};
      products[0].out = bias;
      products[1].out = args.confidences + row;
      RunProducts(products);
      float* logits = args.logits + row * vocab;
      for (std::size_t v = 0; v < vocab; ++v) logits[v] += bias[v];
      SampleParams params = args.params[s];
      params.position += static_cast<Position>(i);
      // A row without a usable logit drafts token 0; the target model decides anyway.
      token = SampleRow({logits, vocab}, params, sample_scratch_).value_or(0);
      args.tokens[row] = token;
    }
  }
}

}  // namespace galley::backend::cpu
