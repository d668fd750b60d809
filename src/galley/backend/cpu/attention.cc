// SPDX-License-Identifier: Apache-2.0
// Queries, window records, sparse attention with sink, the grouped output projection (specification 2.4), and the
// attention of draft blocks (2.12).
#include <algorithm>
#include <cmath>

#include "galley/backend/cpu/cpu_backend.h"
#include "galley/base/math.h"

namespace galley::backend::cpu {
namespace {

// A row's list of places as the kernel takes it.
struct PlaceList {
  const std::uint8_t** codes;
  const std::uint8_t** scales;
  std::size_t window_rows = 0, window_places = 0, entries = 0;

  void AddRecord(const std::uint8_t* record, int head_dim) {
    codes[window_rows] = record;
    scales[window_rows++] = record + head_dim;
  }
};

}  // namespace

void CpuBackend::AttnIn(const AttnInArgs& args) {
  memory_.Reset();
  const int rows = args.step.rows;
  const auto rank = static_cast<std::size_t>(args.wq_a.rows), head_dim = static_cast<std::size_t>(args.head_dim);
  auto* kv = memory_.Take<BFloat16>(static_cast<std::size_t>(rows) * head_dim);
  const float* rope = RopeValues(args.rope, args.step);
  const PackedRows x = PackForLayer(args.wq_a, args.x, rows);
  ProductArgs products[2] = {ProductOf(args.wq_a, x, rows), {}};
  products[1] =
      ProductOf(args.wkv, args.wkv.format == args.wq_a.format ? x : PackForLayer(args.wkv, args.x, rows), rows);
  products[0].out_bf16 = args.qr;
  products[1].out_bf16 = kv;
  RunProducts(products);

  const double cost = 4.0 * rows * static_cast<double>(rank + head_dim);
  team_.Run(rows, cost, [&](std::int64_t row, int) {
    const auto t = static_cast<std::size_t>(row);
    NormRow(args.qr + t * rank, args.q_norm, args.eps, rank);
    BFloat16* window = kv + t * head_dim;
    NormRow(window, args.kv_norm, args.eps, head_dim);
    RotateTail(window, head_dim, rope + t * static_cast<std::size_t>(args.rope.dims), args.rope.dims, 1.0f);
    std::uint8_t* record = args.window + t * WindowRecordBytes(args.head_dim);
    kernels_.encode_fp8(window, record, record + head_dim, head_dim);
  });

  ProductArgs product = ProductOf(args.wq_b, PackForLayer(args.wq_b, args.qr, rows), rows);
  product.out_bf16 = args.q;
  RunProducts({&product, 1});
  const auto heads = static_cast<std::size_t>(args.heads);
  team_.Run(rows, 4.0 * rows * args.heads * args.rope.dims, [&](std::int64_t row, int) {
    const auto t = static_cast<std::size_t>(row);
    for (std::size_t head = 0; head < heads; ++head) {
      RotateTail(args.q + (t * heads + head) * head_dim, head_dim, rope + t * static_cast<std::size_t>(args.rope.dims),
                 args.rope.dims, 1.0f);
    }
  });
}

template <typename Args, typename Places>
void CpuBackend::RunAttention(const Args& args, int shared, BFloat16* unrotated, std::size_t places_max,
                              const Places& places) {
  const int rows = args.step.rows;
  const auto heads = static_cast<std::size_t>(args.heads), head_dim = static_cast<std::size_t>(args.head_dim);
  const float* rope = RopeValues(args.rope, args.step);
  // Rows that share a list are so many more heads of one.
  const int units = rows / shared, unit_heads = shared * args.heads;
  const float* sinks = args.sink;
  if (shared > 1) {
    auto* repeated = memory_.Take<float>(static_cast<std::size_t>(unit_heads));
    for (std::size_t i = 0; i < static_cast<std::size_t>(unit_heads); ++i) repeated[i] = args.sink[i % heads];
    sinks = repeated;
  }
  // Heads of a task share the decoding of records, so there are no more tasks than keep everybody busy.
  const int wanted = CeilDiv((shared > 1 ? 1 : 2) * team_.threads(), units);
  const int group = std::min(unit_heads, CeilDiv(CeilDiv(unit_heads, wanted), 4) * 4);
  const int groups = CeilDiv(unit_heads, group);
  const std::size_t list_bytes = (places_max * sizeof(void*) + 63) / 64 * 64;
  worker_memory_.Reserve(2 * list_bytes + AttendScratchBytes(group, args.head_dim));
  const double cost = static_cast<double>(rows) * args.heads * args.head_dim * static_cast<double>(places_max);
  team_.Run(std::int64_t{units} * groups, cost, [&](std::int64_t task, int worker) {
    const auto t = static_cast<std::size_t>(task / groups) * static_cast<std::size_t>(shared);
    const auto first = static_cast<std::size_t>(task % groups) * static_cast<std::size_t>(group);
    const std::size_t count = std::min(static_cast<std::size_t>(unit_heads) - first, static_cast<std::size_t>(group));
    std::byte* scratch = worker_memory_.of(worker);
    PlaceList list{reinterpret_cast<const std::uint8_t**>(scratch),
                   reinterpret_cast<const std::uint8_t**>(scratch + list_bytes)};
    places(static_cast<int>(t), list);
    const std::size_t at = (t * heads + first) * head_dim;
    kernels_.attend({.q = args.q + at,
                     .heads = static_cast<int>(count),
                     .head_dim = args.head_dim,
                     .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(args.head_dim))),
                     .sink = sinks + first,
                     .window_rows = list.window_rows,
                     .window_places = list.window_places,
                     .entries = list.entries,
                     .codes = list.codes,
                     .scales = list.scales,
                     .out = args.out + at,
                     .scratch = scratch + 2 * list_bytes});
    if (unrotated != nullptr) std::copy_n(args.out + at, count * head_dim, unrotated + at);
    for (std::size_t head = 0; head < count; ++head) {
      RotateTail(args.out + at + head * head_dim, head_dim,
                 rope + (t + (first + head) / heads) * static_cast<std::size_t>(args.rope.dims), args.rope.dims, -1.0f);
    }
  });
}

void CpuBackend::Attention(const AttentionArgs& args) {
  memory_.Reset();
  const auto places_of = [&args](int t, PlaceList& list) {
    const SequenceEntry& sequence = args.step.sequence_of(t);
    const Position p = args.step.positions[t];
    const Position floor = args.decoder_floor ? sequence.decoder_floor : sequence.encoder_floor;
    for (Position position = std::max<Position>(floor, p - args.window_size + 1); position <= p; ++position) {
      list.AddRecord(position >= sequence.start
                         ? args.window + static_cast<std::size_t>(sequence.first_row + position - sequence.start) *
                                             args.ring.row_bytes
                         : reinterpret_cast<const std::uint8_t*>(args.ring.At(sequence.slot, position)),
                     args.head_dim);
    }
    list.window_places =
        static_cast<std::size_t>(std::min<Position>(args.window_size, std::max<Position>(args.window_places, p + 1)));
    if (args.list == nullptr) return;
    const std::int32_t* entries = args.list + static_cast<std::int64_t>(t) * args.topk;
    for (; static_cast<int>(list.entries) < args.topk && entries[list.entries] != -1; ++list.entries) {
      const HistoryEntry entry = EntryAt(args.slab, args.step.blocks + sequence.block_offset, entries[list.entries]);
      list.codes[list.window_rows + list.entries] = entry.latent;
      list.scales[list.window_rows + list.entries] = entry.latent_scales;
    }
  };
  // Lists end where rows do: a window longer than the sequence, or fewer entries than the list has places, cost
  // nothing.
  Position longest = 0;
  for (int t = 0; t < args.step.rows; ++t) longest = std::max<Position>(longest, args.step.positions[t] + 1);
  const auto window = static_cast<std::size_t>(std::min<Position>(args.window_size, longest));
  const auto entries =
      args.list == nullptr ? 0 : static_cast<std::size_t>(std::min<Position>(args.topk, longest / args.slab.ratio));
  RunAttention(args, 1, args.unrotated_copy, window + entries, places_of);
}

void CpuBackend::DraftAttention(const DraftAttentionArgs& args) {
  memory_.Reset();
  const auto places_of = [&args](int t, PlaceList& list) {
    const SequenceEntry& sequence = args.step.sequence_of(t);
    const Position last = sequence.start - 1;  // newest committed position
    const Position committed = std::min<Position>(args.window_size, sequence.start);
    for (Position place = 0; place < committed; ++place) {
      // The official ring holds position p in slot p mod window_size, and its slots are read in order.
      const Position position = last - (last - place) % args.window_size;
      if (position < sequence.decoder_floor) continue;
      list.AddRecord(reinterpret_cast<const std::uint8_t*>(args.ring.At(sequence.slot, position)), args.head_dim);
    }
    for (std::int32_t row = sequence.first_row; row < sequence.first_row + sequence.rows; ++row) {
      list.AddRecord(args.window + static_cast<std::size_t>(row) * args.ring.row_bytes, args.head_dim);
    }
    list.window_places = list.window_rows;
  };
  std::int32_t longest = 0;
  bool alike = true;  // blocks are, unless a test makes them otherwise
  for (int s = 0; s < args.step.sequences; ++s) {
    const SequenceEntry& sequence = args.step.table[s];
    longest = std::max(longest, std::min(args.window_size, sequence.start) + sequence.rows);
    alike = alike && sequence.rows == args.step.table[0].rows && sequence.first_row == s * sequence.rows;
  }
  // All rows of a block see the same places.
  const int shared = alike && args.step.sequences > 0 ? args.step.table[0].rows : 1;
  RunAttention(args, shared, nullptr, static_cast<std::size_t>(longest), places_of);
}

void CpuBackend::AttnOut(const AttnOutArgs& args) {
  memory_.Reset();
  const std::int64_t width = args.wo_a.cols, rank = args.wo_a.rows / args.groups;  // inputs and outputs of one group
  auto* low = memory_.Take<BFloat16>(static_cast<std::size_t>(args.rows * args.wo_a.rows));
  auto* products = memory_.Take<ProductArgs>(static_cast<std::size_t>(args.groups));
  for (std::int64_t group = 0; group < args.groups; ++group) {
    const PackedRows x =
        PackFor(args.wo_a.format, false, args.o + group * width, args.groups * width, args.rows, width);
    ProductArgs& product = products[group] = ProductOf(args.wo_a, x, args.rows);
    product.row_begin = group * rank;
    product.row_end = product.row_begin + rank;
    product.out_bf16 = low;
  }
  RunProducts({products, static_cast<std::size_t>(args.groups)});
  ProductArgs product = ProductOf(args.wo_b, PackForLayer(args.wo_b, low, args.rows), args.rows);
  product.out_bf16 = args.y;
  RunProducts({&product, 1});
}

}  // namespace galley::backend::cpu
