// SPDX-License-Identifier: Apache-2.0
// The draft head, DSpark (specification 2.12).
#include <algorithm>
#include <cmath>
#include <vector>

#include "galley/backend/ref/attend.h"
#include "galley/backend/ref/math.h"
#include "galley/backend/ref/matrix.h"
#include "galley/backend/ref/ref_backend.h"
#include "galley/tensor/numeric.h"

namespace galley::backend {
namespace {

ref::KeyRows GatherBlockKeys(const DraftAttentionArgs& args, const SequenceEntry& sequence) {
  const auto head_dim = static_cast<std::size_t>(args.head_dim);
  const Position last = sequence.start - 1;  // newest committed position
  const Position committed = std::min<Position>(args.window_size, sequence.start);
  std::vector<const std::uint8_t*> records;
  for (Position place = 0; place < committed; ++place) {
    // The official ring holds position p in slot p mod window_size, and its slots are read in order.
    const Position position = last - (last - place) % args.window_size;
    if (position < sequence.decoder_floor) continue;
    records.push_back(reinterpret_cast<const std::uint8_t*>(args.ring.At(sequence.slot, position)));
  }
  for (std::int32_t row = sequence.first_row; row < sequence.first_row + sequence.rows; ++row) {
    records.push_back(args.window + static_cast<std::size_t>(row) * args.ring.row_bytes);
  }
  ref::KeyRows keys;
  keys.window_rows = keys.window_places = records.size();
  keys.values.resize(records.size() * head_dim);
  for (std::size_t i = 0; i < records.size(); ++i) {
    ref::DecodeWindowRecord(records[i], std::span(keys.values).subspan(i * head_dim, head_dim));
  }
  return keys;
}

}  // namespace

void RefBackend::DraftWindow(const DraftWindowArgs& args) {
  const int rows = args.step.rows;
  const auto dim = static_cast<std::size_t>(args.main_proj.rows), head_dim = static_cast<std::size_t>(args.head_dim);
  std::vector<float> x =
      ref::Multiply(pool_, args.main_proj, ref::ToFloats(args.main_hidden, rows * args.main_proj.cols), rows);
  ref::RoundBf16(x);
  for (std::size_t t = 0; t < static_cast<std::size_t>(rows); ++t) {
    ref::RmsNorm(std::span(x).subspan(t * dim, dim), args.main_norm, args.eps);
  }
  for (int s = 0; s < args.stages; ++s) {
    const DraftStageKv& stage = args.stage[s];
    std::vector<float> kv = ref::Multiply(pool_, stage.wkv, x, rows);
    ref::RoundBf16(kv);
    for (int t = 0; t < rows; ++t) {
      const Position p = args.step.positions[t];
      ref::StoreWindowRecord(std::span(kv).subspan(static_cast<std::size_t>(t) * head_dim, head_dim), stage.kv_norm,
                             args.eps, args.rope, p,
                             reinterpret_cast<std::uint8_t*>(stage.ring.At(args.step.sequence_of(t).slot, p)));
    }
  }
}

void RefBackend::DraftAttention(const DraftAttentionArgs& args) {
  const auto heads = static_cast<std::size_t>(args.heads), head_dim = static_cast<std::size_t>(args.head_dim);
  const float scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(args.head_dim)));
  pool_.ParallelFor(args.step.rows, [&](std::int64_t t) {
    const ref::KeyRows keys = GatherBlockKeys(args, args.step.sequence_of(static_cast<int>(t)));
    std::vector<float> q(head_dim), out(head_dim);
    for (std::size_t head = 0; head < heads; ++head) {
      const std::size_t at = (static_cast<std::size_t>(t) * heads + head) * head_dim;
      ref::LoadBf16(args.q + at, q);
      ref::AttendHead(keys, q, scale, args.sink[head], out);
      ref::Rotate(out, args.rope, args.step.positions[t], -1.0f);
      ref::StoreBf16(out, args.out + at);
    }
  });
}

void RefBackend::DraftChain(const DraftChainArgs& args) {
  const auto dim = static_cast<std::size_t>(args.dim), rank = static_cast<std::size_t>(args.embed.cols);
  const auto vocab = static_cast<std::size_t>(args.head.rows);
  std::vector<float> joined(dim + rank);  // [x ; embedding of the token before]
  std::vector<float> embedding(rank);
  std::vector<TokenChance> scratch;
  for (std::size_t s = 0; s < static_cast<std::size_t>(args.sequences); ++s) {
    TokenId token = args.first_tokens[s];
    for (std::size_t i = 0; i < static_cast<std::size_t>(args.block); ++i) {
      const std::size_t row = s * static_cast<std::size_t>(args.block) + i;
      ref::DecodeWeightRow(args.embed, token, embedding);
      const std::span<float> logits(args.logits + row * vocab, vocab);
      const std::vector<float> bias = ref::MultiplyUnquantized(pool_, args.head, embedding, 1);
      for (std::size_t v = 0; v < vocab; ++v) logits[v] += bias[v];

      ref::LoadBf16(args.x + row * dim, std::span(joined).first(dim));
      std::copy(embedding.begin(), embedding.end(), joined.begin() + static_cast<std::ptrdiff_t>(dim));
      args.confidences[row] = ref::MultiplyUnquantized(pool_, args.confidence, joined, 1)[0];

      SampleParams params = args.params[s];
      params.position += static_cast<Position>(i);
      // A row without a usable logit drafts token 0; the target model decides anyway.
      token = SampleRow(logits, params, scratch).value_or(0);
      args.tokens[row] = token;
    }
  }
}

}  // namespace galley::backend
