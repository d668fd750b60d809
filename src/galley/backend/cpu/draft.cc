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
  const float* rope = RopeValues(args.rope, args.step);
  ProductArgs main = ProductOf(args.main_proj, PackForLayer(args.main_proj, args.main_hidden, rows), rows);
  main.out_bf16 = x;
  RunProducts({&main, 1});
  team_.Run(rows, 4.0 * rows * static_cast<double>(dim), [&](std::int64_t t, int) {
    NormRow(x + static_cast<std::size_t>(t) * dim, args.main_norm, args.eps, dim);
  });

  const auto stages = static_cast<std::size_t>(args.stages);
  const std::size_t stage_size = static_cast<std::size_t>(rows) * head_dim;
  auto* kv = memory_.Take<BFloat16>(stages * stage_size);
  auto* products = memory_.Take<ProductArgs>(stages);
  PackedRows packed;
  for (std::size_t s = 0; s < stages; ++s) {
    const Weight& wkv = args.stage[s].wkv;
    if (s == 0 || wkv.format != args.stage[s - 1].wkv.format) packed = PackForLayer(wkv, x, rows);
    products[s] = ProductOf(wkv, packed, rows);
    products[s].out_bf16 = kv + s * stage_size;
  }
  RunProducts({products, stages});
  // Of one sequence two rows may share a place of the ring when a chunk is longer, and the later one stays.
  team_.Run(args.stages, 8.0 * static_cast<double>(stages * stage_size), [&](std::int64_t number, int) {
    const auto s = static_cast<std::size_t>(number);
    const DraftStageKv& stage = args.stage[s];
    for (int t = 0; t < rows; ++t) {
      const auto row = static_cast<std::size_t>(t);
      BFloat16* values = kv + s * stage_size + row * head_dim;
      NormRow(values, stage.kv_norm, args.eps, head_dim);
      RotateTail(values, head_dim, rope + row * dims, args.rope.dims, 1.0f);
      auto* record =
          reinterpret_cast<std::uint8_t*>(stage.ring.At(args.step.sequence_of(t).slot, args.step.positions[t]));
      kernels_.encode_fp8(values, record, record + head_dim, head_dim);
    }
  });
}

// Chains of all sequences go side by side: step i of each waits for its own step i - 1 only.
void CpuBackend::DraftChain(const DraftChainArgs& args) {
  const auto dim = static_cast<std::size_t>(args.dim), rank = static_cast<std::size_t>(args.embed.cols);
  const auto vocab = static_cast<std::size_t>(args.head.rows), sequences = static_cast<std::size_t>(args.sequences);
  const auto block = static_cast<std::size_t>(args.block);
  const auto* embed = static_cast<const BFloat16*>(args.embed.data);
  for (std::vector<TokenChance>& scratch : sample_scratch_) scratch.reserve(vocab);  // whoever draws first
  for (std::size_t i = 0; i < block; ++i) {
    memory_.Reset();
    auto* embeddings = memory_.Take<BFloat16>(sequences * rank);
    auto* joined = memory_.Take<BFloat16>(sequences * (dim + rank));  // [x ; embedding of the token before]
    for (std::size_t s = 0; s < sequences; ++s) {
      const std::size_t row = s * block + i;
      const TokenId token = i == 0 ? args.first_tokens[s] : args.tokens[row - 1];
      BFloat16* embedding = std::copy_n(args.x + row * dim, dim, joined + s * (dim + rank));
      std::copy_n(embed + static_cast<std::size_t>(token) * rank, rank, embedding);
      std::copy_n(embedding, rank, embeddings + s * rank);
    }
    auto* bias = memory_.Take<float>(sequences * vocab);
    auto* confidences = memory_.Take<float>(sequences);
    ProductArgs products[2] = {
        ProductOf(args.head,
                  PackFor(args.head.format, false, embeddings, args.head.cols, args.sequences, args.head.cols),
                  args.sequences),
        ProductOf(
            args.confidence,
            PackFor(args.confidence.format, false, joined, args.confidence.cols, args.sequences, args.confidence.cols),
            args.sequences)};
    products[0].out = bias;
    products[1].out = confidences;
    RunProducts(products);
    const double cost = 8.0 * static_cast<double>(sequences * vocab);
    team_.Run(args.sequences, cost, [&](std::int64_t sequence, int worker) {
      const auto s = static_cast<std::size_t>(sequence), row = s * block + i;
      float* logits = args.logits + row * vocab;
      kernels_.add(logits, bias + s * vocab, vocab);
      SampleParams params = args.params[s];
      params.position += static_cast<Position>(i);
      // A row without a usable logit drafts token 0; the target model decides anyway.
      std::vector<TokenChance>& scratch = sample_scratch_[static_cast<std::size_t>(worker)];
      args.tokens[row] = SampleRow({logits, vocab}, params, scratch).value_or(0);
      args.confidences[row] = confidences[s];
    });
  }
}

}  // namespace galley::backend::cpu
