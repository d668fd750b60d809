// SPDX-License-Identifier: Apache-2.0
// Queries, window rows, sparse attention with sink, and the grouped output projection (specification 2.4).
#include <algorithm>
#include <cmath>
#include <vector>

#include "galley/backend/ref/attend.h"
#include "galley/backend/ref/math.h"
#include "galley/backend/ref/matrix.h"
#include "galley/backend/ref/ref_backend.h"
#include "galley/tensor/quantize.h"

namespace galley::backend {
namespace {

ref::KeyRows GatherKeys(const AttentionArgs& args, int t) {
  const auto head_dim = static_cast<std::size_t>(args.head_dim);
  const SequenceEntry& sequence = args.step.sequence_of(t);
  const Position p = args.step.positions[t];
  const Position floor = args.decoder_floor ? sequence.decoder_floor : sequence.encoder_floor;
  const Position oldest = std::max<Position>(floor, p - args.window_size + 1);

  const std::int32_t* list = args.list == nullptr ? nullptr : args.list + static_cast<std::int64_t>(t) * args.topk;
  ref::KeyRows keys;
  keys.window_rows = static_cast<std::size_t>(p + 1 - oldest);
  keys.window_places =
      static_cast<std::size_t>(std::min<Position>(args.window_size, std::max<Position>(args.window_places, p + 1)));
  if (list != nullptr) keys.entries = static_cast<std::size_t>(std::find(list, list + args.topk, -1) - list);
  keys.values.resize((keys.window_rows + keys.entries) * head_dim);
  const auto row = [&](std::size_t index) { return std::span(keys.values).subspan(index * head_dim, head_dim); };
  for (Position position = oldest; position <= p; ++position) {
    const std::uint8_t* record =
        position >= sequence.start
            ? args.window +
                  static_cast<std::size_t>(sequence.first_row + position - sequence.start) * args.ring.row_bytes
            : reinterpret_cast<const std::uint8_t*>(args.ring.At(sequence.slot, position));
    ref::DecodeWindowRecord(record, row(static_cast<std::size_t>(position - oldest)));
  }
  for (std::size_t i = 0; i < keys.entries; ++i) {
    const HistoryEntry entry = EntryAt(args.slab, args.step.blocks + sequence.block_offset, list[i]);
    DequantizeFp4Kv(entry.latent, entry.latent_scales, row(keys.window_rows + i));
  }
  return keys;
}

}  // namespace

void RefBackend::AttnIn(const AttnInArgs& args) {
  const int rows = args.step.rows;
  const auto rank = static_cast<std::size_t>(args.wq_a.rows), head_dim = static_cast<std::size_t>(args.head_dim);
  const auto heads = static_cast<std::size_t>(args.heads);
  const std::vector<float> x = ref::ToFloats(args.x, rows * args.wq_a.cols);

  std::vector<float> qr = ref::Multiply(pool_, args.wq_a, x, rows);
  std::vector<float> kv = ref::Multiply(pool_, args.wkv, x, rows);
  ref::RoundBf16(qr);
  ref::RoundBf16(kv);
  for (std::size_t t = 0; t < static_cast<std::size_t>(rows); ++t) {
    ref::RmsNorm(std::span(qr).subspan(t * rank, rank), args.q_norm, args.eps);
    ref::StoreWindowRecord(std::span(kv).subspan(t * head_dim, head_dim), args.kv_norm, args.eps, args.rope,
                           args.step.positions[t], args.window + t * WindowRecordBytes(args.head_dim));
  }
  ref::StoreBf16(qr, args.qr);

  std::vector<float> q = ref::Multiply(pool_, args.wq_b, std::move(qr), rows);
  ref::RoundBf16(q);
  pool_.ParallelFor(rows, [&](std::int64_t row) {
    const auto t = static_cast<std::size_t>(row);
    for (std::size_t head = 0; head < heads; ++head) {
      ref::Rotate(std::span(q).subspan((t * heads + head) * head_dim, head_dim), args.rope, args.step.positions[t]);
    }
  });
  ref::StoreBf16(q, args.q);
}

void RefBackend::Attention(const AttentionArgs& args) {
  const auto heads = static_cast<std::size_t>(args.heads), head_dim = static_cast<std::size_t>(args.head_dim);
  const float scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(args.head_dim)));
  pool_.ParallelFor(args.step.rows, [&](std::int64_t t) {
    const ref::KeyRows keys = GatherKeys(args, static_cast<int>(t));
    std::vector<float> q(head_dim), out(head_dim);
    for (std::size_t head = 0; head < heads; ++head) {
      const std::size_t at = (static_cast<std::size_t>(t) * heads + head) * head_dim;
      ref::LoadBf16(args.q + at, q);
      ref::AttendHead(keys, q, scale, args.sink[head], out);
      if (args.unrotated_copy != nullptr) ref::StoreBf16(out, args.unrotated_copy + at);
      ref::Rotate(out, args.rope, args.step.positions[t], -1.0f);
      ref::StoreBf16(out, args.out + at);
    }
  });
}

void RefBackend::AttnOut(const AttnOutArgs& args) {
  const auto groups = static_cast<std::size_t>(args.groups), rows = static_cast<std::size_t>(args.rows);
  const auto width = static_cast<std::size_t>(args.wo_a.cols);  // heads of one group, concatenated
  const auto rank = static_cast<std::size_t>(args.wo_a.rows) / groups;
  const std::vector<float> o = ref::ToFloats(args.o, static_cast<std::int64_t>(rows * groups * width));
  std::vector<float> low(rows * groups * rank);
  pool_.ParallelFor(args.wo_a.rows, [&](std::int64_t r) {
    const std::size_t group = static_cast<std::size_t>(r) / rank;
    std::vector<float> w(width);
    ref::DecodeWeightRow(args.wo_a, r, w);
    for (std::size_t t = 0; t < rows; ++t) {
      low[t * groups * rank + static_cast<std::size_t>(r)] =
          RoundToBFloat16(ref::Dot(o.data() + (t * groups + group) * width, w.data(), width));
    }
  });
  const std::vector<float> y = ref::Multiply(pool_, args.wo_b, std::move(low), args.rows);
  ref::StoreBf16(y, args.y);
}

}  // namespace galley::backend
