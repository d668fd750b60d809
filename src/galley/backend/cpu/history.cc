// SPDX-License-Identifier: Apache-2.0
// Compressed history: latents and index keys of token groups, and the indexer that selects among them (specification
// 2.7, 2.8).
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "galley/backend/cpu/cpu_backend.h"
#include "galley/base/math.h"

namespace galley::backend::cpu {
namespace {

// Pools two tokens channel by channel: softmax over their gates, weighted sum of their contents. `even` and `odd` hold
// [c | g] in fp32.
void PoolPair(const float* even, const float* odd, float* out, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    const float largest = std::max(even[n + i], odd[n + i]);
    const float a = std::exp(even[n + i] - largest), b = std::exp(odd[n + i] - largest);
    const float sum = a + b;
    out[i] = even[i] * (a / sum) + odd[i] * (b / sum);
  }
}

void FillCosSin(const Rope& rope, Position p, float* out) {
  for (int i = 0; i < rope.dims / 2; ++i) {
    const double angle = static_cast<double>(static_cast<float>(p) * rope.frequencies[i]);
    out[i] = static_cast<float>(std::cos(angle));
    out[rope.dims / 2 + i] = static_cast<float>(std::sin(angle));
  }
}

// A score and its entry as one number: larger is better, and of equal scores the lower entry is.
std::uint64_t SortKey(float score, std::int32_t entry) {
  const float value = score == 0.0f ? 0.0f : score;  // minus zero equals zero
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t ordered = (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
  return (std::uint64_t{ordered} << 32) | ~static_cast<std::uint32_t>(entry);
}
std::int32_t EntryOf(std::uint64_t key) {
  return static_cast<std::int32_t>(~static_cast<std::uint32_t>(key));
}

// The `count` largest keys' entries to `out` in ascending order, the rest of `width` places -1.
void TopAscending(std::uint64_t* keys, std::size_t n, int width, std::int32_t* out) {
  const std::size_t kept = std::min(n, static_cast<std::size_t>(width));
  if (kept < n) std::nth_element(keys, keys + kept, keys + n, std::greater<>());
  for (std::size_t i = 0; i < kept; ++i) out[i] = EntryOf(keys[i]);
  std::sort(out, out + kept);
  std::fill(out + kept, out + width, -1);
}

// Entries that a row may score, as runs of neighbours inside one history block.
struct Run {
  std::int32_t first, count;
};

void AddRuns(std::int32_t first, std::int32_t end, std::int32_t per_block, Run* runs, std::size_t& count) {
  while (first < end) {
    const std::int32_t stop = std::min(end, (first / per_block + 1) * per_block);
    runs[count++] = {first, stop - first};
    first = stop;
  }
}

std::int64_t Visible(const IndexSelectArgs& args, int t) {
  return (args.step.positions[t] + std::int64_t{1}) / args.slab.ratio;
}

std::size_t RunsOf(const IndexSelectArgs& args, int t, Run* runs) {
  const auto visible = static_cast<std::int32_t>(Visible(args, t));
  std::size_t count = 0;
  if (args.role != CandidateRole::kUser) {
    AddRuns(0, visible, args.slab.entries(), runs, count);
    return count;
  }
  const std::int32_t* blocks = args.candidates + static_cast<std::int64_t>(t) * args.candidate_blocks;
  for (int b = 0; b < args.candidate_blocks && blocks[b] >= 0; ++b) {
    const std::int32_t first = blocks[b] * args.candidate_block_size;
    AddRuns(first, std::min(visible, first + args.candidate_block_size), args.slab.entries(), runs, count);
  }
  return count;
}

// A block of entries is worth its best one; the block of the newest entry is always among the chosen.
void PublishCandidates(const IndexSelectArgs& args, int t, const float* scores, std::size_t visible,
                       std::uint64_t* keys) {
  const auto size = static_cast<std::size_t>(args.candidate_block_size);
  std::size_t blocks = 0;
  for (std::size_t begin = 0; begin < visible; begin += size, ++blocks) {
    const float best = *std::max_element(scores + begin, scores + std::min(visible, begin + size));
    const bool newest = begin + size >= visible;
    keys[blocks] = SortKey(newest ? std::numeric_limits<float>::infinity() : best, static_cast<std::int32_t>(blocks));
  }
  TopAscending(keys, blocks, args.candidate_blocks,
               args.candidates + static_cast<std::int64_t>(t) * args.candidate_blocks);
}

// Whether every row sees no more entries than it may choose, so that nothing has to be scored.
bool SelectsAll(const IndexSelectArgs& args) {
  if (args.query_copy != nullptr || args.weight_copy != nullptr) return false;
  const std::int64_t candidates =
      args.role == CandidateRole::kNone ? args.topk : std::int64_t{args.candidate_blocks} * args.candidate_block_size;
  const std::int64_t most = std::min<std::int64_t>(args.topk, candidates);
  for (int t = 0; t < args.step.rows; ++t) {
    if (Visible(args, t) > most) return false;
  }
  return true;
}

void SelectAll(const IndexSelectArgs& args, int t) {
  const auto fill = [](std::int32_t* out, std::int64_t count, std::int64_t width) {
    for (std::int64_t i = 0; i < width; ++i) out[i] = i < count ? static_cast<std::int32_t>(i) : -1;
  };
  const std::int64_t visible = Visible(args, t);
  fill(args.list + std::int64_t{t} * args.topk, visible, args.topk);
  if (args.role != CandidateRole::kSource) return;
  fill(args.candidates + std::int64_t{t} * args.candidate_blocks,
       CeilDiv<std::int64_t>(visible, args.candidate_block_size), args.candidate_blocks);
}

}  // namespace

// Writes entry `j` of a sequence from its pooled content (fp32, not yet rounded).
void CpuBackend::WriteEntry(const CompressArgs& args, const SequenceEntry& sequence, std::int64_t j,
                            const float* pooled, int worker) {
  const auto dim = static_cast<std::size_t>(args.slab.latent_dim), keys = static_cast<std::size_t>(args.slab.index_dim);
  std::byte* at = worker_memory_.of(worker);
  const auto take = [&at](std::size_t bytes) {
    std::byte* begin = at;
    at += (bytes + 63) / 64 * 64;
    return begin;
  };
  auto* latent = reinterpret_cast<BFloat16*>(take(dim * 2));
  auto* key = reinterpret_cast<BFloat16*>(take(keys * 2));
  auto* cos_sin = reinterpret_cast<float*>(take(static_cast<std::size_t>(args.rope.dims) * 4));
  std::byte* packed = take(PackedBytes(args.slab.latent_dim));
  FillCosSin(args.rope, j * args.slab.ratio, cos_sin);

  kernels_.to_bf16(pooled, latent, dim);
  NormRow(latent, args.norm, args.eps, dim);
  kernels_.pack({.x = latent, .cols = args.slab.latent_dim, .packing = PackingOf(args.index_wk.format), .out = packed});
  ProductArgs product = ProductOf(args.index_wk, {packed, 0}, 1);  // from the latent before its rotation
  product.out_bf16 = key;
  product.scratch = at;
  kernels_.product(product);
  NormRow(key, args.index_norm, args.eps, keys);
  RotateTail(key, keys, cos_sin, args.rope.dims, 1.0f);

  const HistoryEntry entry = EntryAt(args.slab, args.step.blocks + sequence.block_offset, j);
  kernels_.encode_fp4_index(key, entry.key, entry.key_scales, keys);
  RotateTail(latent, dim, cos_sin, args.rope.dims, 1.0f);
  kernels_.encode_fp4_kv(latent, entry.latent, entry.latent_scales, dim);
}

void CpuBackend::Compress(const CompressArgs& args) {
  memory_.Reset();
  const int rows = args.step.rows;
  const auto dim = static_cast<std::size_t>(args.slab.latent_dim);
  const bool pairs = args.slab.ratio > 1;
  auto* content = memory_.Take<float>(static_cast<std::size_t>(rows) * dim * 2);
  float* gate = content + static_cast<std::size_t>(rows) * dim;
  const PackedRows x = PackFor(args.wkv.format, false, args.x, args.wkv.cols, rows, args.wkv.cols);
  ProductArgs products[2] = {ProductOf(args.wkv, x, rows), {}};
  products[0].out = content;
  if (pairs) {
    products[1] = ProductOf(args.wgate,
                            args.wgate.format == args.wkv.format
                                ? x
                                : PackFor(args.wgate.format, false, args.x, args.wgate.cols, rows, args.wgate.cols),
                            rows);
    products[1].out = gate;
  }
  RunProducts({products, pairs ? std::size_t{2} : std::size_t{1}});

  worker_memory_.Reserve(dim * 16 + static_cast<std::size_t>(args.slab.index_dim) * 8 + 4096 +
                         ProductScratchBytes(args.slab.latent_dim));
  if (!pairs) {
    const double cost = static_cast<double>(rows) * static_cast<double>(args.index_wk.rows * args.index_wk.cols);
    team_.Run(rows, cost, [&](std::int64_t t, int worker) {
      const SequenceEntry& sequence = args.step.sequence_of(static_cast<int>(t));
      const Position p = args.step.positions[t];
      if (p >= sequence.history_from)
        WriteEntry(args, sequence, p, content + static_cast<std::size_t>(t) * dim, worker);
    });
    return;
  }
  // A row's inputs go through the ring one after the other: a chunk may be longer than the ring.
  for (int t = 0; t < rows; ++t) {
    const SequenceEntry& sequence = args.step.sequence_of(t);
    const Position p = args.step.positions[t];
    auto* inputs = reinterpret_cast<float*>(args.input_ring.At(sequence.slot, p));
    const std::size_t at = static_cast<std::size_t>(t) * dim;
    std::copy_n(content + at, dim, inputs);
    std::copy_n(gate + at, dim, inputs + dim);
    if (p % 2 == 0 || p < sequence.history_from) continue;
    // The content of this row is in the ring, so its place here can take the pooled one.
    PoolPair(reinterpret_cast<const float*>(args.input_ring.At(sequence.slot, p - 1)), inputs, content + at, dim);
  }
  const double cost = static_cast<double>(rows) / 2 * static_cast<double>(args.index_wk.rows * args.index_wk.cols);
  team_.Run(rows, cost, [&](std::int64_t t, int worker) {
    const SequenceEntry& sequence = args.step.sequence_of(static_cast<int>(t));
    const Position p = args.step.positions[t];
    if (p % 2 == 0 || p < sequence.history_from) return;
    WriteEntry(args, sequence, p / 2, content + static_cast<std::size_t>(t) * dim, worker);
  });
}

void CpuBackend::IndexSelect(const IndexSelectArgs& args) {
  if (SelectsAll(args)) {
    for (int t = 0; t < args.step.rows; ++t) SelectAll(args, t);
    return;
  }
  memory_.Reset();
  const int rows = args.step.rows;
  const auto heads = static_cast<std::size_t>(args.heads), dim = static_cast<std::size_t>(args.slab.index_dim);
  const std::size_t groups = CeilDiv<std::size_t>(heads, 16), all_rows = static_cast<std::size_t>(rows);
  auto* q = memory_.Take<BFloat16>(all_rows * heads * dim);
  auto* raw_weights = memory_.Take<float>(all_rows * heads);
  const float* rope = RopeValues(args.rope, args.step);
  ProductArgs products[2] = {ProductOf(args.wq_b, PackForLayer(args.wq_b, args.qr, rows), rows),
                             ProductOf(args.weights_proj, PackForLayer(args.weights_proj, args.x, rows), rows)};
  products[0].out_bf16 = q;
  products[1].out = raw_weights;
  RunProducts(products);

  const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(args.slab.index_dim)) /
                                        std::sqrt(static_cast<double>(args.heads)));
  const std::size_t query_size = dim * groups * 16;
  auto* queries = memory_.Take<float>(all_rows * query_size);
  auto* weights = memory_.Take<float>(all_rows * groups * 16);
  team_.Run(rows, 4.0 * rows * static_cast<double>(heads * dim), [&](std::int64_t row, int) {
    const auto t = static_cast<std::size_t>(row);
    std::fill_n(weights + t * groups * 16, groups * 16, 0.0f);
    for (std::size_t h = 0; h < heads; ++h) {
      BFloat16* query = q + (t * heads + h) * dim;
      RotateTail(query, dim, rope + t * static_cast<std::size_t>(args.rope.dims), args.rope.dims, 1.0f);
      kernels_.round_fp4_index(query, dim);
      float& weight = raw_weights[t * heads + h];
      weight = RoundToBFloat16(RoundToBFloat16(weight) * scale);
      weights[t * groups * 16 + h] = weight;
    }
    kernels_.pack_index_queries(
        {.q = q + t * heads * dim, .heads = args.heads, .dim = args.slab.index_dim, .out = queries + t * query_size});
  });
  if (args.query_copy != nullptr) std::copy_n(q, all_rows * heads * dim, args.query_copy);
  if (args.weight_copy != nullptr) std::copy_n(raw_weights, all_rows * heads, args.weight_copy);

  std::int64_t most = 1;
  for (int t = 0; t < rows; ++t) most = std::max(most, Visible(args, t));
  const auto visible_max = static_cast<std::size_t>(most);
  const std::size_t runs_max =
      visible_max / static_cast<std::size_t>(args.slab.entries()) + 1 +
      2 * static_cast<std::size_t>(args.role == CandidateRole::kUser ? args.candidate_blocks : 0);
  const auto score_run = [&](int t, const Run& run, float* out) {
    const SequenceEntry& sequence = args.step.sequence_of(t);
    const HistoryEntry entry = EntryAt(args.slab, args.step.blocks + sequence.block_offset, run.first);
    const auto row = static_cast<std::size_t>(t);
    kernels_.index_scores({.q = queries + row * query_size,
                           .weights = weights + row * groups * 16,
                           .head_groups = static_cast<int>(groups),
                           .dim = args.slab.index_dim,
                           .keys = entry.key,
                           .scales = entry.key_scales,
                           .count = static_cast<std::size_t>(run.count),
                           .out = out});
  };
  const auto select = [&](int t, const Run* runs, std::size_t count, const float* scores, std::uint64_t* keys) {
    std::size_t n = 0;
    for (std::size_t r = 0; r < count; ++r) {
      for (std::int32_t i = 0; i < runs[r].count; ++i, ++n) keys[n] = SortKey(scores[n], runs[r].first + i);
    }
    TopAscending(keys, n, args.topk, args.list + static_cast<std::int64_t>(t) * args.topk);
    if (args.role == CandidateRole::kSource) PublishCandidates(args, t, scores, n, keys);
  };
  const double score_cost = static_cast<double>(visible_max * heads * dim);
  if (rows < team_.threads()) {  // few rows: everybody works on the entries of one
    auto* runs = memory_.Take<Run>(runs_max);
    auto* first = memory_.Take<std::size_t>(runs_max);
    auto* scores = memory_.Take<float>(visible_max);
    auto* keys = memory_.Take<std::uint64_t>(visible_max);
    for (int t = 0; t < rows; ++t) {
      const std::size_t count = RunsOf(args, t, runs);
      std::size_t n = 0;
      for (std::size_t r = 0; r < count; ++r) {
        first[r] = n;
        n += static_cast<std::size_t>(runs[r].count);
      }
      team_.Run(static_cast<std::int64_t>(count), score_cost,
                [&](std::int64_t r, int) { score_run(t, runs[r], scores + first[r]); });
      select(t, runs, count, scores, keys);
    }
    return;
  }
  const std::size_t run_bytes = (runs_max * sizeof(Run) + 63) / 64 * 64;
  const std::size_t score_bytes = (visible_max * sizeof(float) + 63) / 64 * 64;
  worker_memory_.Reserve(run_bytes + score_bytes + visible_max * sizeof(std::uint64_t));
  team_.Run(rows, rows * (score_cost + 4000.0), [&](std::int64_t t, int worker) {
    std::byte* scratch = worker_memory_.of(worker);
    auto* runs = reinterpret_cast<Run*>(scratch);
    auto* scores = reinterpret_cast<float*>(scratch + run_bytes);
    auto* keys = reinterpret_cast<std::uint64_t*>(scratch + run_bytes + score_bytes);
    const std::size_t count = RunsOf(args, static_cast<int>(t), runs);
    std::size_t n = 0;
    for (std::size_t r = 0; r < count; ++r) {
      score_run(static_cast<int>(t), runs[r], scores + n);
      n += static_cast<std::size_t>(runs[r].count);
    }
    select(static_cast<int>(t), runs, count, scores, keys);
  });
}

}  // namespace galley::backend::cpu
