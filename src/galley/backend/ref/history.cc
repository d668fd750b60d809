// SPDX-License-Identifier: Apache-2.0
// Compressed history: latents and index keys of token groups, and the indexer that selects among them (2.7, 2.8).
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "galley/backend/ref/index_select.h"
#include "galley/backend/ref/math.h"
#include "galley/backend/ref/matrix.h"
#include "galley/backend/ref/ref_backend.h"
#include "galley/tensor/quantize.h"

namespace galley::backend {
namespace {

// Pools two tokens channel by channel: softmax over their gates, weighted sum of their contents. `even` and `odd` hold
// [c | g] in fp32.
void PoolPair(const float* even, const float* odd, std::span<float> out) {
  const std::size_t n = out.size();
  for (std::size_t i = 0; i < n; ++i) {
    const float largest = std::max(even[n + i], odd[n + i]);
    const float a = std::exp(even[n + i] - largest), b = std::exp(odd[n + i] - largest);
    const float sum = a + b;
    out[i] = even[i] * (a / sum) + odd[i] * (b / sum);
  }
}

// Writes entry `j` of the row's sequence from its pooled content (fp32, not yet rounded).
void WriteEntry(const CompressArgs& args, ThreadPool& pool, const SequenceEntry& sequence, std::int64_t j,
                std::vector<float> latent) {
  ref::RoundBf16(latent);
  ref::RmsNorm(latent, args.norm, args.eps);
  const Position position = j * args.slab.ratio;
  const HistoryEntry entry = EntryAt(args.slab, args.step.blocks + sequence.block_offset, j);

  std::vector<float> key = ref::MultiplyUnquantized(pool, args.index_wk, latent, 1);  // from the latent before RoPE
  ref::RoundBf16(key);
  ref::RmsNorm(key, args.index_norm, args.eps);
  ref::Rotate(key, args.rope, position);
  QuantizeFp4Index(key, entry.key, entry.key_scales);

  ref::Rotate(latent, args.rope, position);
  QuantizeFp4Kv(latent, entry.latent, entry.latent_scales);
}

void StorePadded(const std::vector<std::int32_t>& entries, std::int32_t* out, int width) {
  std::fill_n(std::copy(entries.begin(), entries.end(), out), static_cast<std::size_t>(width) - entries.size(), -1);
}

// Entries that row `t` may score: all visible ones, or those inside its candidate blocks.
std::vector<std::int32_t> Eligible(const IndexSelectArgs& args, int t, std::int64_t visible) {
  std::vector<std::int32_t> entries;
  if (args.role != CandidateRole::kUser) {
    entries.resize(static_cast<std::size_t>(visible));
    std::iota(entries.begin(), entries.end(), 0);
    return entries;
  }
  const std::int32_t* blocks = args.candidates + static_cast<std::int64_t>(t) * args.candidate_blocks;
  for (int b = 0; b < args.candidate_blocks && blocks[b] >= 0; ++b) {
    for (std::int32_t i = 0; i < args.candidate_block_size; ++i) {
      const std::int32_t entry = blocks[b] * args.candidate_block_size + i;
      if (entry < visible) entries.push_back(entry);
    }
  }
  return entries;
}

std::vector<ref::ScoredEntry> ScoreEntries(const IndexSelectArgs& args, int t, std::span<const float> q,
                                           std::span<const float> w) {
  const SequenceEntry& sequence = args.step.sequence_of(t);
  const std::int64_t visible = (args.step.positions[t] + std::int64_t{1}) / args.slab.ratio;
  std::vector<float> key(static_cast<std::size_t>(args.slab.index_dim));
  std::vector<ref::ScoredEntry> scored;
  for (const std::int32_t j : Eligible(args, t, visible)) {
    const HistoryEntry entry = EntryAt(args.slab, args.step.blocks + sequence.block_offset, j);
    DequantizeFp4Index(entry.key, entry.key_scales, key);
    scored.push_back({ref::IndexScore(q, w, key), j});
  }
  return scored;
}

}  // namespace

void RefBackend::Compress(const CompressArgs& args) {
  const int rows = args.step.rows;
  const auto dim = static_cast<std::size_t>(args.slab.latent_dim);
  const std::vector<float> x = ref::ToFloats(args.x, rows * args.wkv.cols);
  const std::vector<float> c = ref::MultiplyUnquantized(pool_, args.wkv, x, rows);
  const std::vector<float> g =
      args.slab.ratio == 1 ? std::vector<float>() : ref::MultiplyUnquantized(pool_, args.wgate, x, rows);
  for (int t = 0; t < rows; ++t) {
    const SequenceEntry& sequence = args.step.sequence_of(t);
    const Position p = args.step.positions[t];
    const auto at = static_cast<std::ptrdiff_t>(static_cast<std::size_t>(t) * dim);
    const auto length = static_cast<std::ptrdiff_t>(dim);
    const bool writes = p >= sequence.history_from;
    if (args.slab.ratio == 1) {
      if (writes) WriteEntry(args, pool_, sequence, p, std::vector<float>(c.begin() + at, c.begin() + at + length));
      continue;
    }
    auto* inputs = reinterpret_cast<float*>(args.input_ring.At(sequence.slot, p));
    std::copy_n(c.begin() + at, length, inputs);
    std::copy_n(g.begin() + at, length, inputs + dim);
    if (p % 2 == 0 || !writes) continue;
    std::vector<float> latent(dim);
    PoolPair(reinterpret_cast<const float*>(args.input_ring.At(sequence.slot, p - 1)), inputs, latent);
    WriteEntry(args, pool_, sequence, p / 2, std::move(latent));
  }
}

void RefBackend::IndexSelect(const IndexSelectArgs& args) {
  const int rows = args.step.rows;
  const auto heads = static_cast<std::size_t>(args.heads), dim = static_cast<std::size_t>(args.slab.index_dim);
  std::vector<float> q = ref::Multiply(pool_, args.wq_b, ref::ToFloats(args.qr, rows * args.wq_b.cols), rows);
  std::vector<float> w =
      ref::Multiply(pool_, args.weights_proj, ref::ToFloats(args.x, rows * args.weights_proj.cols), rows);
  const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(args.slab.index_dim)) /
                                        std::sqrt(static_cast<double>(args.heads)));
  ref::RoundBf16(q);
  for (float& value : w) value = RoundToBFloat16(RoundToBFloat16(value) * scale);

  pool_.ParallelFor(rows, [&](std::int64_t t) {
    const auto row = static_cast<std::size_t>(t);
    const auto query = std::span(q).subspan(row * heads * dim, heads * dim);
    for (std::size_t h = 0; h < heads; ++h) {
      ref::Rotate(query.subspan(h * dim, dim), args.rope, args.step.positions[t]);
      FakeQuantizeFp4Index(query.subspan(h * dim, dim));
    }
    std::vector<ref::ScoredEntry> scored =
        ScoreEntries(args, static_cast<int>(t), query, std::span(w).subspan(row * heads, heads));
    if (args.role == CandidateRole::kSource) {
      StorePadded(ref::CandidateBlocks(scored, args.candidate_block_size, args.candidate_blocks),
                  args.candidates + t * args.candidate_blocks, args.candidate_blocks);
    }
    StorePadded(ref::TopAscending(std::move(scored), args.topk), args.list + t * args.topk, args.topk);
  });
  if (args.query_copy != nullptr) ref::StoreBf16(q, args.query_copy);
  if (args.weight_copy != nullptr) std::copy(w.begin(), w.end(), args.weight_copy);
}

}  // namespace galley::backend
