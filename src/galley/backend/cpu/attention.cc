// SPDX-License-Identifier: Apache-2.0
// Queries, window records, sparse attention with sink, the grouped output projection (specification 2.4), and the
// attention of draft blocks (2.12).
#include <algorithm>
#include <cmath>

#include "galley/backend/cpu/cpu_backend.h"
#include "galley/base/math.h"

namespace galley::backend::cpu {
namespace {

constexpr int kRowsTogether = 8;  // rows of a sequence that one task attends for: their windows are decoded once

}  // namespace

// What a task of attention attends for, as the kernel takes it.
struct CpuBackend::PlaceList {
  const std::uint8_t** window;
  std::size_t window_records = 0;
  AttendRow* row;
  const std::uint8_t** codes;  // of the entries of all rows, with room for entries_max each
  const std::uint8_t** scales;
};

// Rows in a row of the step, each a task of its own.
struct CpuBackend::AttentionTasks {
  struct Task {
    std::int32_t row = 0, rows = 0;
  };
  const Task* task = nullptr;
  int count = 0;
  int shared = 1;  // > 1: tasks have so many rows, which attend to the same places, so they are more heads of one row
  // Room is made for the longest lists that the model can have, so that it does not grow as sequences do.
  std::size_t window_max = 0;   // window records of a task
  std::size_t entries_max = 0;  // of a row
  double keys = 0;              // about as many does a row of this step have
  BFloat16* unrotated = nullptr;
};

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
void CpuBackend::RunAttention(const Args& args, const AttentionTasks& tasks, const Places& places) {
  const auto heads = static_cast<std::size_t>(args.heads), head_dim = static_cast<std::size_t>(args.head_dim);
  const float* rope = RopeValues(args.rope, args.step);
  const int unit_heads = tasks.shared * args.heads;
  const float* sinks = args.sink;
  if (tasks.shared > 1) {
    auto* repeated = memory_.Take<float>(static_cast<std::size_t>(unit_heads));
    for (std::size_t i = 0; i < static_cast<std::size_t>(unit_heads); ++i) repeated[i] = args.sink[i % heads];
    sinks = repeated;
  }
  // Heads of a task share the decoding of records, so there are no more tasks than keep everybody busy.
  const int wanted = CeilDiv(team_.threads(), std::max(tasks.count, 1));
  const int group = std::min(unit_heads, CeilDiv(CeilDiv(unit_heads, wanted), 4) * 4);
  const int groups = CeilDiv(unit_heads, group);
  const std::size_t window_bytes = (tasks.window_max * sizeof(void*) + 63) / 64 * 64;
  const std::size_t entry_bytes = (kRowsTogether * tasks.entries_max * sizeof(void*) + 63) / 64 * 64;
  constexpr std::size_t kRowBytes = (kRowsTogether * sizeof(AttendRow) + 63) / 64 * 64;
  worker_memory_.Reserve(window_bytes + 2 * entry_bytes + kRowBytes +
                         AttendScratchBytes(unit_heads, args.head_dim, tasks.window_max));
  const double cost = static_cast<double>(args.step.rows) * args.heads * args.head_dim * tasks.keys;
  team_.Run(std::int64_t{tasks.count} * groups, cost, [&](std::int64_t number, int worker) {
    const AttentionTasks::Task& task = tasks.task[number / groups];
    const auto first = static_cast<std::size_t>(number % groups) * static_cast<std::size_t>(group);
    const std::size_t count = std::min(static_cast<std::size_t>(unit_heads) - first, static_cast<std::size_t>(group));
    std::byte* scratch = worker_memory_.of(worker);
    PlaceList list{.window = reinterpret_cast<const std::uint8_t**>(scratch),
                   .row = reinterpret_cast<AttendRow*>(scratch + window_bytes + 2 * entry_bytes),
                   .codes = reinterpret_cast<const std::uint8_t**>(scratch + window_bytes),
                   .scales = reinterpret_cast<const std::uint8_t**>(scratch + window_bytes + entry_bytes)};
    places(task, list);
    const std::size_t row_stride = heads * head_dim;
    const std::size_t at = static_cast<std::size_t>(task.row) * row_stride + first * head_dim;
    const int rows = tasks.shared > 1 ? 1 : task.rows;
    kernels_.attend({.q = args.q + at,
                     .rows = rows,
                     .row = list.row,
                     .row_stride = row_stride,
                     .heads = static_cast<int>(count),
                     .head_dim = args.head_dim,
                     .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(args.head_dim))),
                     .sink = sinks + first,
                     .window = list.window,
                     .window_records = list.window_records,
                     .out = args.out + at,
                     .scratch = scratch + window_bytes + 2 * entry_bytes + kRowBytes});
    for (std::size_t r = 0; r < static_cast<std::size_t>(rows); ++r) {
      BFloat16* out = args.out + at + r * row_stride;
      if (tasks.unrotated != nullptr) std::copy_n(out, count * head_dim, tasks.unrotated + at + r * row_stride);
      for (std::size_t head = 0; head < count; ++head) {
        const std::size_t row = static_cast<std::size_t>(task.row) + r + (first + head) / heads;
        RotateTail(out + head * head_dim, head_dim, rope + row * static_cast<std::size_t>(args.rope.dims),
                   args.rope.dims, -1.0f);
      }
    }
  });
}

void CpuBackend::Attention(const AttentionArgs& args) {
  memory_.Reset();
  const std::span<const SequenceEntry> sequences(args.step.table, static_cast<std::size_t>(args.step.sequences));
  Position longest = 0;
  for (int t = 0; t < args.step.rows; ++t) longest = std::max<Position>(longest, args.step.positions[t] + 1);
  const int together = std::clamp(CeilDiv(args.step.rows, team_.threads()), 1, kRowsTogether);
  auto* task = memory_.Take<AttentionTasks::Task>(static_cast<std::size_t>(args.step.rows));
  int count = 0;
  for (const SequenceEntry& sequence : sequences) {
    for (std::int32_t done = 0; done < sequence.rows; done += together)
      task[count++] = {.row = sequence.first_row + done, .rows = std::min(together, sequence.rows - done)};
  }
  const auto places_of = [&args](const AttentionTasks::Task& rows, PlaceList& list) {
    const SequenceEntry& sequence = args.step.sequence_of(rows.row);
    const Position floor = args.decoder_floor ? sequence.decoder_floor : sequence.encoder_floor;
    const auto begin_of = [&](Position p) { return std::max<Position>(floor, p - args.window_size + 1); };
    const Position begin = begin_of(args.step.positions[rows.row]);
    const Position end = args.step.positions[rows.row + rows.rows - 1] + 1;
    for (Position position = begin; position < end; ++position) {
      list.window[list.window_records++] =
          position >= sequence.start
              ? args.window +
                    static_cast<std::size_t>(sequence.first_row + position - sequence.start) * args.ring.row_bytes
              : reinterpret_cast<const std::uint8_t*>(args.ring.At(sequence.slot, position));
    }
    std::size_t entries = 0;
    for (int r = 0; r < rows.rows; ++r) {
      const Position p = args.step.positions[rows.row + r];
      AttendRow& row = list.row[r];
      row = {.window_first = static_cast<std::size_t>(begin_of(p) - begin),
             .window_rows = static_cast<std::size_t>(std::max<Position>(p + 1 - begin_of(p), 0)),
             .window_places = static_cast<std::size_t>(
                 std::min<Position>(args.window_size, std::max<Position>(args.window_places, p + 1))),
             .codes = list.codes + entries,
             .scales = list.scales + entries};
      if (args.list == nullptr) continue;
      const std::int32_t* chosen = args.list + static_cast<std::int64_t>(rows.row + r) * args.topk;
      row.ids = chosen;
      for (int i = 0; i < args.topk && chosen[i] != -1; ++i, ++row.entries, ++entries) {
        const HistoryEntry entry = EntryAt(args.slab, args.step.blocks + sequence.block_offset, chosen[i]);
        list.codes[entries] = entry.latent;
        list.scales[entries] = entry.latent_scales;
      }
    }
  };
  const int entries = args.list == nullptr ? 0 : args.topk;
  const Position keys = std::min<Position>(args.window_size, longest) +
                        (entries == 0 ? 0 : std::min<Position>(entries, longest / args.slab.ratio));
  RunAttention(args,
               {.task = task,
                .count = count,
                .window_max = static_cast<std::size_t>(args.window_size + kRowsTogether - 1),
                .entries_max = static_cast<std::size_t>(entries),
                .keys = static_cast<double>(keys),
                .unrotated = args.unrotated_copy},
               places_of);
}

void CpuBackend::DraftAttention(const DraftAttentionArgs& args) {
  memory_.Reset();
  const auto places_of = [&args](const AttentionTasks::Task& rows, PlaceList& list) {
    const SequenceEntry& sequence = args.step.sequence_of(rows.row);
    const Position last = sequence.start - 1;  // newest committed position
    const Position committed = std::min<Position>(args.window_size, sequence.start);
    for (Position place = 0; place < committed; ++place) {
      // The official ring holds position p in slot p mod window_size, and its slots are read in order.
      const Position position = last - (last - place) % args.window_size;
      if (position < sequence.decoder_floor) continue;
      list.window[list.window_records++] = reinterpret_cast<const std::uint8_t*>(args.ring.At(sequence.slot, position));
    }
    for (std::int32_t row = sequence.first_row; row < sequence.first_row + sequence.rows; ++row) {
      list.window[list.window_records++] = args.window + static_cast<std::size_t>(row) * args.ring.row_bytes;
    }
    list.row[0] = {.window_rows = list.window_records, .window_places = list.window_records};
  };
  std::int32_t longest = 0, rows_max = 0;
  bool alike = args.step.sequences > 0;  // blocks are, unless a test makes them otherwise
  for (int s = 0; s < args.step.sequences; ++s) {
    const SequenceEntry& sequence = args.step.table[s];
    longest = std::max(longest, std::min(args.window_size, sequence.start) + sequence.rows);
    rows_max = std::max(rows_max, sequence.rows);
    alike = alike && sequence.rows == args.step.table[0].rows && sequence.first_row == s * sequence.rows;
  }
  // All rows of a block see the same places.
  const int shared = alike ? args.step.table[0].rows : 1;
  const int count = args.step.rows / shared;
  auto* task = memory_.Take<AttentionTasks::Task>(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) task[i] = {.row = i * shared, .rows = shared};
  RunAttention(args,
               {.task = task,
                .count = count,
                .shared = shared,
                .window_max = static_cast<std::size_t>(args.window_size + rows_max),
                .keys = static_cast<double>(longest)},
               places_of);
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
