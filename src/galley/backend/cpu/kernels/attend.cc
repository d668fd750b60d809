// SPDX-License-Identifier: Apache-2.0
// Attention of a row's heads over FP8 window records and FP4 history records. Records are decoded for one block of 64
// places at a time, once for all heads of the task, and never as a whole: keys row by row for the scores, values in
// pairs of rows for the sum, both bf16, which holds them exactly. Order per head: the dot product over the head's
// dimension in sixteen lanes; online softmax over the blocks; the weighted sum over pairs of places in their order.
#include "galley/backend/cpu/kernels.h"
#include "galley/backend/cpu/kernels/decode.h"
#include "galley/backend/cpu/kernels/functions.h"
#include "galley/backend/cpu/kernels/simd.h"

namespace galley::backend::cpu::GALLEY_ISA {
namespace {

constexpr float kLowest = -1e30f;  // the running maximum before any place was seen

// What a block needs while it is worked on; everything lies in the task's scratch.
struct Work {
  std::uint16_t* keys;     // [64][head_dim] bf16
  std::uint32_t* values;   // [32][head_dim] pairs of bf16: rows 2i and 2i + 1
  float* sum;              // [heads][head_dim]
  float* scores;           // [heads][64]
  std::uint16_t* weights;  // [heads][64] bf16
  float* largest;          // [heads]
  float* denominator;      // [heads]
};

Work Divide(const AttendArgs& a) {
  const auto heads = static_cast<std::size_t>(a.heads), dim = static_cast<std::size_t>(a.head_dim);
  Work w{};
  std::byte* at = a.scratch;
  const auto take = [&at](std::size_t bytes) {
    std::byte* begin = at;
    at += (bytes + 63) / 64 * 64;
    return begin;
  };
  w.keys = reinterpret_cast<std::uint16_t*>(take(kListBlock * dim * 2));
  w.values = reinterpret_cast<std::uint32_t*>(take(kListBlock * dim * 2));
  w.sum = reinterpret_cast<float*>(take(heads * dim * 4));
  w.scores = reinterpret_cast<float*>(take(heads * kListBlock * 4));
  w.weights = reinterpret_cast<std::uint16_t*>(take(heads * kListBlock * 2));
  w.largest = reinterpret_cast<float*>(take(heads * 4));
  w.denominator = reinterpret_cast<float*>(take(heads * 4));
  return w;
}

// Sixteen values of a record from dimension `d` on.
GALLEY_SIMD F32 RecordValues(const AttendArgs& a, std::size_t row, std::size_t d) {
  const std::uint8_t *codes = a.codes[row], *scales = a.scales[row];
  if (row < a.window_rows) return DecodeE4M3(codes + d) * ScaleOf(scales[d / 32]);
  // The scale of sixteen values is an e4m3 code without a sign.
  const std::uint8_t code = scales[d / 16];
  const float scale = code < 8 ? static_cast<float>(code) * 0x1p-9f
                               : OneFloat(BFloat16{static_cast<std::uint16_t>((code << 4) + 0x3C00)});
  return DecodeE2M1(codes + d / 2) * scale;
}

// Decodes rows `first` and `first + 1` (when there is one) to place `i` of the block.
void DecodePair(const AttendArgs& a, const Work& w, std::size_t i, std::size_t first, bool both) {
  const auto dim = static_cast<std::size_t>(a.head_dim);
  std::uint16_t *even = w.keys + i * dim, *odd = even + dim;
  std::uint32_t* pairs = w.values + i / 2 * dim;
  for (std::size_t d = 0; d < dim; d += kLanes) {
    const U32 x = (U32)RecordValues(a, first, d);
    const U32 y = both ? (U32)RecordValues(a, first + 1, d) : U32{};
    StoreAs(even + d, __builtin_convertvector(x >> 16, U16x16));
    StoreAs(odd + d, __builtin_convertvector(y >> 16, U16x16));
    StoreAs(pairs + d, (x >> 16) | (y & 0xFFFF0000u));
  }
}

template <int kHeads, int kKeys>
GALLEY_SIMD void ScoreTile(const AttendArgs& a, const Work& w, std::size_t head, std::size_t key) {
  const auto dim = static_cast<std::size_t>(a.head_dim);
  F32 acc[kHeads][kKeys] = {};
  for (std::size_t d = 0; d < dim; d += 32) {
    U32 k[kKeys];
    for (std::size_t j = 0; j < kKeys; ++j) k[j] = LoadAs<U32>(w.keys + (key + j) * dim + d);
    for (std::size_t h = 0; h < kHeads; ++h) {
      const U32 q = LoadAs<U32>(a.q + (head + h) * dim + d);
      for (int j = 0; j < kKeys; ++j) acc[h][j] = DotPairs(acc[h][j], q, k[j]);
    }
  }
  for (std::size_t h = 0; h < kHeads; ++h) {
    for (std::size_t j = 0; j < kKeys; ++j) w.scores[(head + h) * kListBlock + key + j] = SumLanes(acc[h][j]) * a.scale;
  }
}

template <int kHeads>
void ScoreHeads(const AttendArgs& a, const Work& w, std::size_t head, std::size_t keys) {
  std::size_t key = 0;
  for (; key + 4 <= keys; key += 4) ScoreTile<kHeads, 4>(a, w, head, key);
  for (; key < keys; ++key) ScoreTile<kHeads, 1>(a, w, head, key);
}

// Scores of one head to weights against the new maximum; the head's sum so far is rescaled.
void Soften(const AttendArgs& a, const Work& w, std::size_t head, std::size_t keys) {
  const auto dim = static_cast<std::size_t>(a.head_dim);
  float* scores = w.scores + head * kListBlock;
  const float lowest = -__builtin_inff();
  for (std::size_t i = keys; i < kListBlock; ++i) scores[i] = lowest;
  F32 block_max = Load(scores);
  for (std::size_t i = kLanes; i < kListBlock; i += kLanes) block_max = Max(Load(scores + i), block_max);
  const float found = MaxLanes(block_max);
  const float largest = found > w.largest[head] ? found : w.largest[head];
  F32 sum{};
  for (std::size_t i = 0; i < kListBlock; i += kLanes) {
    const F32 p = Exp(Load(scores + i) - largest);
    sum = sum + p;
    StoreBf16(reinterpret_cast<BFloat16*>(w.weights + head * kListBlock + i), p);
  }
  const float rescale = Exp(Broadcast(w.largest[head] - largest))[0];
  w.denominator[head] = w.denominator[head] * rescale + SumLanes(sum);
  w.largest[head] = largest;
  if (rescale == 1.0f) return;
  for (std::size_t d = 0; d < dim; d += kLanes) Store(w.sum + head * dim + d, Load(w.sum + head * dim + d) * rescale);
}

// sum[head …][d …] += weights * values over the block's pairs of places.
template <int kHeads, int kVectors>
GALLEY_SIMD void WeighTile(const AttendArgs& a, const Work& w, std::size_t head, std::size_t d, std::size_t pairs) {
  const auto dim = static_cast<std::size_t>(a.head_dim);
  F32 acc[kHeads][kVectors];
  for (std::size_t h = 0; h < kHeads; ++h) {
    for (std::size_t v = 0; v < kVectors; ++v) acc[h][v] = Load(w.sum + (head + h) * dim + d + v * kLanes);
  }
  for (std::size_t i = 0; i < pairs; ++i) {
    U32 value[kVectors];
    for (std::size_t v = 0; v < kVectors; ++v) value[v] = LoadAs<U32>(w.values + i * dim + d + v * kLanes);
    for (std::size_t h = 0; h < kHeads; ++h) {
      std::uint32_t pair;
      __builtin_memcpy(&pair, w.weights + (head + h) * kListBlock + 2 * i, sizeof(pair));
      for (int v = 0; v < kVectors; ++v) acc[h][v] = DotPairs(acc[h][v], BroadcastBits(pair), value[v]);
    }
  }
  for (std::size_t h = 0; h < kHeads; ++h) {
    for (std::size_t v = 0; v < kVectors; ++v) Store(w.sum + (head + h) * dim + d + v * kLanes, acc[h][v]);
  }
}

template <int kHeads>
void WeighHeads(const AttendArgs& a, const Work& w, std::size_t head, std::size_t keys) {
  const auto dim = static_cast<std::size_t>(a.head_dim);
  const std::size_t pairs = (keys + 1) / 2;
  std::size_t d = 0;
  for (; d + 4 * kLanes <= dim; d += 4 * kLanes) WeighTile<kHeads, 4>(a, w, head, d, pairs);
  for (; d < dim; d += kLanes) WeighTile<kHeads, 1>(a, w, head, d, pairs);
}

// The places [begin, end) as rows of the list: those of the window and those of the entries that lie in it.
struct BlockRows {
  std::size_t first, count;  // rows in order; the gap between window and entries holds none
};
BlockRows RowsOf(const AttendArgs& a, std::size_t begin, std::size_t end) {
  const auto row = [&a](std::size_t place) {
    if (place <= a.window_rows) return place;
    return place <= a.window_places ? a.window_rows : a.window_rows + (place - a.window_places);
  };
  const std::size_t first = row(begin);
  return {first, row(end) - first};
}

}  // namespace

void Attend(const AttendArgs& a) {
  const Work w = Divide(a);
  const auto heads = static_cast<std::size_t>(a.heads), dim = static_cast<std::size_t>(a.head_dim);
  for (std::size_t i = 0; i < heads * dim; ++i) w.sum[i] = 0;
  for (std::size_t h = 0; h < heads; ++h) {
    w.largest[h] = kLowest;
    w.denominator[h] = 0;
  }
  const std::size_t places = a.entries == 0 ? a.window_rows : a.window_places + a.entries;
  for (std::size_t begin = 0; begin < places; begin += kListBlock) {
    const BlockRows rows = RowsOf(a, begin, Least(places, begin + kListBlock));
    if (rows.count == 0) continue;
    for (std::size_t i = 0; i < rows.count; i += 2) DecodePair(a, w, i, rows.first + i, i + 1 < rows.count);
    std::size_t h = 0;
    for (; h + 4 <= heads; h += 4) ScoreHeads<4>(a, w, h, rows.count);
    for (; h < heads; ++h) ScoreHeads<1>(a, w, h, rows.count);
    for (h = 0; h < heads; ++h) Soften(a, w, h, rows.count);
    for (h = 0; h + 4 <= heads; h += 4) WeighHeads<4>(a, w, h, rows.count);
    for (; h < heads; ++h) WeighHeads<1>(a, w, h, rows.count);
  }
  for (std::size_t h = 0; h < heads; ++h) {
    const float denominator = w.denominator[h] + Exp(Broadcast(a.sink[h] - w.largest[h]))[0];
    for (std::size_t d = 0; d < dim; d += kLanes)
      StoreBf16(a.out + h * dim + d, Load(w.sum + h * dim + d) / denominator);
  }
}

}  // namespace galley::backend::cpu::GALLEY_ISA
