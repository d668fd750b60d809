// SPDX-License-Identifier: Apache-2.0
// Attention of rows' heads over FP8 window records and FP4 history records. Window records are decoded once for all
// rows and heads of the task, history records for one block of 64 places at a time. Order per row and head: the dot
// product over the head's dimension in sixteen lanes; online softmax over the blocks; the weighted sum over places in
// their order. All in fp32: pairs of bf16 take longer even where the processor multiplies them, and records leave their
// codes as fp32.
#include "galley/backend/cpu/kernels.h"
#include "galley/backend/cpu/kernels/decode.h"
#include "galley/backend/cpu/kernels/functions.h"
#include "galley/backend/cpu/kernels/simd.h"

namespace galley::backend::cpu::GALLEY_ISA {
namespace {

constexpr float kLowest = -1e30f;  // the running maximum before any place was seen

// What a row needs while it is worked on; everything lies in the task's scratch.
struct Work {
  float* window;         // [window_records][head_dim]: keys and values alike
  float* entries;        // [kEntriesKept + 64][head_dim]: what rows share, and what has no place there
  std::int32_t* kept;    // [kEntriesKept]: the ids of those; -1: none
  std::uint32_t* used;   // [kEntriesKept]: the block that used it last
  const float** places;  // [64], of one block: where the records of its places are
  float* queries;        // [heads][head_dim]
  float* sum;            // [heads][head_dim]
  float* scores;         // [heads][64], then the weights, rounded to bf16
  float* largest;        // [heads]
  float* denominator;    // [heads]
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
  w.window = reinterpret_cast<float*>(take(a.window_records * dim * 4));
  w.entries = reinterpret_cast<float*>(take((kEntriesKept + kListBlock) * dim * 4));
  w.kept = reinterpret_cast<std::int32_t*>(take(kEntriesKept * 4));
  w.used = reinterpret_cast<std::uint32_t*>(take(kEntriesKept * 4));
  w.places = reinterpret_cast<const float**>(take(kListBlock * sizeof(float*)));
  w.queries = reinterpret_cast<float*>(take(heads * dim * 4));
  w.sum = reinterpret_cast<float*>(take(heads * dim * 4));
  w.scores = reinterpret_cast<float*>(take(heads * kListBlock * 4));
  w.largest = reinterpret_cast<float*>(take(heads * 4));
  w.denominator = reinterpret_cast<float*>(take(heads * 4));
  return w;
}

void DecodeRecord(const std::uint8_t* record, std::size_t dim, float* out) {
  const std::uint8_t* scales = record + dim;
  for (std::size_t d = 0; d < dim; d += 2 * kLanes) {
    const F32 scale = Broadcast(ScaleOf(scales[d / 32]));
    Store(out + d, DecodeE4M3(record + d) * scale);
    Store(out + d + kLanes, DecodeE4M3(record + d + kLanes) * scale);
  }
}

void DecodeEntry(const std::uint8_t* codes, const std::uint8_t* scales, std::size_t dim, float* out) {
  for (std::size_t d = 0; d < dim; d += kLanes) {
    // The scale of sixteen values is an e4m3 code without a sign.
    const std::uint8_t code = scales[d / 16];
    const float scale = code < 8 ? static_cast<float>(code) * 0x1p-9f
                                 : OneFloat(BFloat16{static_cast<std::uint16_t>((code << 4) + 0x3C00)});
    Store(out + d, DecodeE2M1(codes + d / 2) * scale);
  }
}

template <std::size_t kHeads, std::size_t kKeys>
GALLEY_SIMD void ScoreTile(const AttendArgs& a, const Work& w, std::size_t head, std::size_t key) {
  const auto dim = static_cast<std::size_t>(a.head_dim);
  F32 acc[kHeads * kKeys];
  for (std::size_t i = 0; i < kHeads * kKeys; ++i) acc[i] = F32{};
  for (std::size_t d = 0; d < dim; d += kLanes) {
    F32 k[kKeys];
    for (std::size_t j = 0; j < kKeys; ++j) k[j] = Load(w.places[key + j] + d);
    for (std::size_t h = 0; h < kHeads; ++h) {
      const F32 q = Load(w.queries + (head + h) * dim + d);
      for (std::size_t j = 0; j < kKeys; ++j) acc[h * kKeys + j] = Fma(q, k[j], acc[h * kKeys + j]);
    }
  }
  if constexpr (kHeads * kKeys == kLanes) {
    float scores[kLanes];
    Store(scores, SumEach(acc) * a.scale);
    for (std::size_t h = 0; h < kHeads; ++h)
      __builtin_memcpy(w.scores + (head + h) * kListBlock + key, scores + h * kKeys, kKeys * sizeof(float));
  } else {
    for (std::size_t h = 0; h < kHeads; ++h) {
      for (std::size_t j = 0; j < kKeys; ++j)
        w.scores[(head + h) * kListBlock + key + j] = SumLanes(acc[h * kKeys + j]) * a.scale;
    }
  }
}

// Some keys, which then lie in the nearest cache, against all heads.
template <std::size_t kKeys>
void ScoreKeys(const AttendArgs& a, const Work& w, std::size_t key) {
  const auto heads = static_cast<std::size_t>(a.heads);
  std::size_t h = 0;
  for (; h + 4 <= heads; h += 4) ScoreTile<4, kKeys>(a, w, h, key);
  for (; h < heads; ++h) ScoreTile<1, kKeys>(a, w, h, key);
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
    Store(scores + i, RoundBf16(p));
  }
  const float rescale = Exp(Broadcast(w.largest[head] - largest))[0];
  w.denominator[head] = w.denominator[head] * rescale + SumLanes(sum);
  w.largest[head] = largest;
  if (rescale == 1.0f) return;
  for (std::size_t d = 0; d < dim; d += kLanes) Store(w.sum + head * dim + d, Load(w.sum + head * dim + d) * rescale);
}

// sum[head …][d …] += weights * values over the block's places.
template <int kHeads, int kVectors>
GALLEY_SIMD void WeighTile(const AttendArgs& a, const Work& w, std::size_t head, std::size_t d, std::size_t places) {
  const auto dim = static_cast<std::size_t>(a.head_dim);
  F32 acc[kHeads][kVectors];
  for (std::size_t h = 0; h < kHeads; ++h) {
    for (std::size_t v = 0; v < kVectors; ++v) acc[h][v] = Load(w.sum + (head + h) * dim + d + v * kLanes);
  }
  for (std::size_t i = 0; i < places; ++i) {
    F32 value[kVectors];
    for (std::size_t v = 0; v < kVectors; ++v) value[v] = Load(w.places[i] + d + v * kLanes);
    for (std::size_t h = 0; h < kHeads; ++h) {
      const F32 weight = Broadcast(w.scores[(head + h) * kListBlock + i]);
      for (int v = 0; v < kVectors; ++v) acc[h][v] = Fma(weight, value[v], acc[h][v]);
    }
  }
  for (std::size_t h = 0; h < kHeads; ++h) {
    for (std::size_t v = 0; v < kVectors; ++v) Store(w.sum + (head + h) * dim + d + v * kLanes, acc[h][v]);
  }
}

// Some columns of the values, which then lie in the nearest cache, for all heads.
template <int kVectors>
void WeighColumns(const AttendArgs& a, const Work& w, std::size_t d, std::size_t places) {
  const auto heads = static_cast<std::size_t>(a.heads);
  std::size_t h = 0;
  for (; h + 4 <= heads; h += 4) WeighTile<4, kVectors>(a, w, h, d, places);
  for (; h < heads; ++h) WeighTile<1, kVectors>(a, w, h, d, places);
}

// The entry in fp32, decoded unless a row before left it. `spare`: where it goes when another one of the block has its
// place.
GALLEY_SIMD const float* FindEntry(const AttendRow& row, const Work& w, std::size_t entry, std::size_t dim,
                                   std::uint32_t block, std::size_t spare) {
  const std::int32_t id = row.ids[entry];
  std::size_t place = static_cast<std::size_t>(id) % kEntriesKept;
  if (w.kept[place] != id) {
    if (w.used[place] == block) {
      place = kEntriesKept + spare;
    } else {
      w.kept[place] = id;
    }
    DecodeEntry(row.codes[entry], row.scales[entry], dim, w.entries + place * dim);
  }
  if (place < kEntriesKept) w.used[place] = block;
  return w.entries + place * dim;
}

// The records of the places [begin, end): those of the window and, decoded, those of the entries that lie in it.
// `block` counts the blocks of all rows.
std::size_t FindPlaces(const AttendArgs& a, const AttendRow& row, const Work& w, std::size_t begin, std::size_t end,
                       std::uint32_t block) {
  const auto dim = static_cast<std::size_t>(a.head_dim);
  std::size_t count = 0;
  for (std::size_t place = begin; place < Least(end, row.window_rows); ++place)
    w.places[count++] = w.window + (row.window_first + place) * dim;
  // The gap between window and entries holds none.
  const std::size_t first = begin > row.window_places ? begin : row.window_places;
  for (std::size_t place = first; place < end; ++place)
    w.places[count++] = FindEntry(row, w, place - row.window_places, dim, block, place - begin);
  return count;
}

void AttendOneRow(const AttendArgs& a, const AttendRow& row, const Work& w, const BFloat16* q, BFloat16* out,
                  std::uint32_t& block) {
  const auto heads = static_cast<std::size_t>(a.heads), dim = static_cast<std::size_t>(a.head_dim);
  for (std::size_t i = 0; i < heads * dim; i += kLanes) {
    Store(w.sum + i, F32{});
    Store(w.queries + i, LoadBf16(q + i));
  }
  for (std::size_t h = 0; h < heads; ++h) {
    w.largest[h] = kLowest;
    w.denominator[h] = 0;
  }
  const std::size_t places = row.entries == 0 ? row.window_rows : row.window_places + row.entries;
  for (std::size_t begin = 0; begin < places; begin += kListBlock) {
    const std::size_t count = FindPlaces(a, row, w, begin, Least(places, begin + kListBlock), ++block);
    if (count == 0) continue;
    std::size_t key = 0, d = 0;
    for (; key + 4 <= count; key += 4) ScoreKeys<4>(a, w, key);
    for (; key < count; ++key) ScoreKeys<1>(a, w, key);
    for (std::size_t h = 0; h < heads; ++h) Soften(a, w, h, count);
    for (; d + 4 * kLanes <= dim; d += 4 * kLanes) WeighColumns<4>(a, w, d, count);
    for (; d < dim; d += kLanes) WeighColumns<1>(a, w, d, count);
  }
  for (std::size_t h = 0; h < heads; ++h) {
    const float denominator = w.denominator[h] + Exp(Broadcast(a.sink[h] - w.largest[h]))[0];
    for (std::size_t d = 0; d < dim; d += kLanes) StoreBf16(out + h * dim + d, Load(w.sum + h * dim + d) / denominator);
  }
}

}  // namespace

void Attend(const AttendArgs& a) {
  const Work w = Divide(a);
  const auto dim = static_cast<std::size_t>(a.head_dim);
  for (std::size_t i = 0; i < a.window_records; ++i) DecodeRecord(a.window[i], dim, w.window + i * dim);
  for (std::size_t i = 0; i < kEntriesKept; ++i) {
    w.kept[i] = -1;
    w.used[i] = 0;
  }
  std::uint32_t block = 0;
  for (std::size_t r = 0; r < static_cast<std::size_t>(a.rows); ++r)
    AttendOneRow(a, a.row[r], w, a.q + r * a.row_stride, a.out + r * a.row_stride, block);
}

}  // namespace galley::backend::cpu::GALLEY_ISA
