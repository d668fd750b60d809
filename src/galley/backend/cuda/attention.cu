// SPDX-License-Identifier: Apache-2.0
// Attention of one row over the window and the selected entries (2.4), and of draft blocks (2.12). A block of threads
// takes 16 heads of a row and goes through the list of keys in blocks of 48 places (two blocks of threads fit on a
// multiprocessor then): keys are fetched as records while the block before them is computed, decoded to bf16 in shared
// memory, and used both as keys and as values. No sum is split by anything but the places, so decode and prefill give
// the same bits.
#include "galley/backend/cuda/kernels.h"
#include "galley/backend/cuda/launch.h"
#include "galley/backend/cuda/ptx/mma.cuh"
#include "galley/backend/cuda/step.cuh"

namespace galley::backend::cuda {
namespace {

// Threads of a block: more where few rows leave the device idle, so that each block is done sooner. Same bits.
constexpr int kDim = 512, kHeads = 16, kBlock = 48, kManyRows = 256, kFewRows = 512;
constexpr int kFewRowsMax = 32;           // rows up to which blocks have kFewRows threads; 0: never
constexpr int kRowStride = kDim + 8;      // bf16 values; 16 bytes more keep ldmatrix free of bank conflicts
constexpr int kScoreStride = kBlock + 4;  // fp32 values
constexpr int kProbStride = kBlock + 8;   // bf16 values
constexpr int kRawStride = kDim + kDim / 32;
constexpr int kDraftRowsMax = 64;  // rows of a draft block

enum class KeyKind : int { kNone = 0, kWindow, kEntry };

// Where the key of a place lies; null: nowhere.
struct KeyPlace {
  const std::uint8_t* codes;
  std::int32_t scales;  // from codes to the scales
  KeyKind kind;
};

struct Shared {
  BFloat16 q[kHeads * kRowStride];
  BFloat16 keys[kBlock * kRowStride];
  BFloat16 probabilities[kHeads * kProbStride];
  alignas(16) std::uint8_t raw[kBlock * kRawStride];
  float scores[kHeads * kScoreStride];
  float running[kHeads], rescale[kHeads], denominator[kHeads];
  float2 angle[64];
  KeyPlace places[1];  // of every place of the list, and on beyond this struct
};

// Both ops in one shape.
struct Task {
  StepView step;
  const BFloat16* q;
  const std::uint8_t* window;
  Ring ring;
  bool decoder_floor, draft;
  int window_size, window_places, heads;
  const float* sink;
  Rope rope;
  const std::int32_t* list;
  int topk;
  HistorySlab slab;
  BFloat16* out;
  BFloat16* unrotated_copy;
};

// Places of one row's list of keys.
struct Places {
  int window_rows, window_places, entries;
  std::int64_t oldest;  // position of the first window row; of drafts, unused
  __device__ int end() const { return entries == 0 ? window_rows : window_places + entries; }
};

__device__ Places PlacesOf(const Task& task, const SequenceEntry& sequence, int t, int entries) {
  if (task.draft) {
    const std::int64_t kept =
        min(static_cast<std::int64_t>(task.window_size), static_cast<std::int64_t>(sequence.start));
    const std::int64_t from =
        max(static_cast<std::int64_t>(sequence.start) - kept, static_cast<std::int64_t>(sequence.decoder_floor));
    const int rows =
        static_cast<int>(max(static_cast<std::int64_t>(sequence.start) - from, std::int64_t{0})) + sequence.rows;
    return {rows, rows, 0, from};
  }
  const std::int64_t p = task.step.positions[t];
  const std::int64_t floor = task.decoder_floor ? sequence.decoder_floor : sequence.encoder_floor;
  const std::int64_t oldest = max(floor, p - task.window_size + 1);
  const std::int64_t places =
      min(static_cast<std::int64_t>(task.window_size), max(static_cast<std::int64_t>(task.window_places), p + 1));
  return {static_cast<int>(p + 1 - oldest), static_cast<int>(places), entries, oldest};
}

// Address of the record at `place` of a draft block's list: committed rows in the order of position mod window_size,
// then the rows of the block.
__device__ const std::uint8_t* DraftRecord(const Task& task, const SequenceEntry& sequence, const Places& places,
                                           int place) {
  const int committed = places.window_rows - sequence.rows;
  if (place >= committed) {
    return task.window + static_cast<std::size_t>(sequence.first_row + place - committed) * task.ring.row_bytes;
  }
  // The committed rows are positions oldest … start - 1. In the order of position mod window_size those of the newest
  // turn of the ring come first.
  const std::int64_t turn = static_cast<std::int64_t>(sequence.start) / task.window_size * task.window_size;
  const std::int64_t newest_first = max(turn, places.oldest);
  const std::int64_t in_turn = max(static_cast<std::int64_t>(sequence.start) - newest_first, std::int64_t{0});
  const std::int64_t position = place < in_turn ? newest_first + place : places.oldest + (place - in_turn);
  return RingRow(task.ring, sequence.slot, position);
}

// Where every key of the list lies.
template <int kThreads>
__device__ void FindKeys(const Task& task, const SequenceEntry& sequence, const Places& places, int t, Shared& s) {
  const int end = (places.end() + kBlock - 1) / kBlock * kBlock;
  for (int place = static_cast<int>(threadIdx.x); place < end; place += kThreads) {
    KeyPlace key{nullptr, 0, KeyKind::kNone};
    if (place < places.window_rows) {
      key.kind = KeyKind::kWindow;
      key.scales = kDim;
      if (task.draft) {
        key.codes = DraftRecord(task, sequence, places, place);
      } else {
        const auto position = static_cast<std::uint32_t>(places.oldest + place);
        const auto start = static_cast<std::uint32_t>(sequence.start);
        key.codes = position >= start
                        ? task.window + static_cast<std::size_t>(static_cast<std::uint32_t>(sequence.first_row) +
                                                                 position - start) *
                                            task.ring.row_bytes
                        : reinterpret_cast<const std::uint8_t*>(task.ring.base) +
                              static_cast<std::size_t>(sequence.slot) * task.ring.slot_bytes +
                              static_cast<std::size_t>(position % static_cast<std::uint32_t>(task.ring.rows)) *
                                  task.ring.row_bytes;
      }
    } else if (place >= places.window_places && place < places.end()) {
      const auto j = static_cast<std::uint32_t>(
          task.list[static_cast<std::int64_t>(t) * task.topk + place - places.window_places]);
      const auto entries = static_cast<std::uint32_t>(task.slab.entries()), i = j % entries;
      const std::int32_t block = task.step.blocks[static_cast<std::uint32_t>(sequence.block_offset) + j / entries];
      key.kind = KeyKind::kEntry;
      key.codes = reinterpret_cast<const std::uint8_t*>(task.slab.base) +
                  static_cast<std::size_t>(block) * task.slab.block_bytes() + i * (kDim / 2);
      key.scales = static_cast<std::int32_t>(entries * (kDim / 2) - i * (kDim / 2) + i * (kDim / 16));
    }
    s.places[place] = key;
  }
}

// Starts the copies of the raw records: 33 pieces of 16 bytes a window record, 16 + 2 an entry. kPerKey threads work on
// a key.
template <int Threads>
__device__ void FetchKeys(int begin, Shared& s) {
  constexpr int kPerKey = Threads / 64;
  const int local = static_cast<int>(threadIdx.x) / kPerKey;
  if (local < kBlock) {
    const KeyPlace key = s.places[begin + local];
    const int code_pieces = key.kind == KeyKind::kWindow ? kDim / 16 : kDim / 32;
    const int pieces = key.kind == KeyKind::kNone ? 0 : code_pieces + (key.kind == KeyKind::kWindow ? 1 : 2);
    const int scales_at = key.kind == KeyKind::kWindow ? kDim : kDim - 16;
    std::uint8_t* to = s.raw + local * kRawStride;
    for (int piece = static_cast<int>(threadIdx.x) % kPerKey; piece < pieces; piece += kPerKey) {
      const int scale = (piece - code_pieces) * 16;
      ptx::CopyAsync16(to + (scale >= 0 ? scales_at + scale : piece * 16),
                       key.codes + (scale >= 0 ? key.scales + scale : piece * 16), true);
    }
  }
  ptx::CommitCopies();
}

// Eight values in natural order, from their codes and the byte of their scale.
__device__ __forceinline__ uint4 DecodeWindow(uint2 codes, std::uint32_t scale_code) {
  std::uint32_t p[4];
  const std::uint32_t scale = ScalePair<kFp8Shift>(static_cast<std::uint8_t>(scale_code));
  DecodeFp8x4(codes.x, scale, p[0], p[1]);
  DecodeFp8x4(codes.y, scale, p[2], p[3]);
  return {__byte_perm(p[0], p[1], 0x5410), __byte_perm(p[0], p[1], 0x7632), __byte_perm(p[2], p[3], 0x5410),
          __byte_perm(p[2], p[3], 0x7632)};
}
__device__ __forceinline__ uint4 DecodeEntry(std::uint32_t codes, std::uint32_t scale_code) {
  std::uint32_t p[4];
  const float scale = DecodeE4M3(static_cast<std::uint8_t>(scale_code));
  DecodeFp4x8(codes, ScalePair<kFp4Shift>(127), p);  // times 1
  const std::uint32_t both = Pack(scale, scale);
#pragma unroll
  for (std::uint32_t& pair : p) pair = MultiplyPairs(pair, both);  // two and four bits of mantissa: exact
  return {__byte_perm(p[0], p[1], 0x5410), __byte_perm(p[2], p[3], 0x5410), __byte_perm(p[0], p[1], 0x7632),
          __byte_perm(p[2], p[3], 0x7632)};
}

// Raw records to bf16 rows; rows without a key become zero so that a zero probability times them is zero. Each of the
// kPerKey threads of a key takes every kPerKey-th piece of eight values, four at once: all are read before the first is
// decoded, or a thread would wait for shared memory after every piece.
template <int Threads>
__device__ void DecodeKeys(int begin, Shared& s) {
  constexpr int kPerKey = Threads / 64, kAtOnce = 4;
  const int local = static_cast<int>(threadIdx.x) / kPerKey;
  if (local >= kBlock) return;
  const KeyKind kind = s.places[begin + local].kind;
  const std::uint8_t* raw = s.raw + local * kRawStride;
  BFloat16* out = s.keys + local * kRowStride;
  const int first = static_cast<int>(threadIdx.x) % kPerKey;
#pragma unroll 1
  for (int i = 0; i < kDim / 8; i += kAtOnce * kPerKey) {
    uint4 natural[kAtOnce] = {};
    std::uint32_t scales[kAtOnce];
    if (kind == KeyKind::kWindow) {
      uint2 codes[kAtOnce];
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        const int piece = i + j * kPerKey + first;
        codes[j] = *reinterpret_cast<const uint2*>(raw + piece * 8);
        scales[j] = raw[kDim + piece / 4];
      }
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) natural[j] = DecodeWindow(codes[j], scales[j]);
    } else if (kind == KeyKind::kEntry) {
      std::uint32_t codes[kAtOnce];
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        const int piece = i + j * kPerKey + first;
        codes[j] = *reinterpret_cast<const std::uint32_t*>(raw + piece * 4);
        scales[j] = raw[kDim - 16 + piece / 2];
      }
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) natural[j] = DecodeEntry(codes[j], scales[j]);
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) *reinterpret_cast<uint4*>(out + (i + j * kPerKey + first) * 8) = natural[j];
  }
}

// Scores of 16 heads against 8 keys a warp. Even and odd steps of K have sums of their own.
__device__ void Scores(float scale, int begin, Shared& s) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  if (warp >= kBlock / 8) return;
  float even[4] = {}, odd[4] = {};
  const BFloat16* q = s.q + (lane % 16) * kRowStride + lane / 16 * 8;
  const BFloat16* k = s.keys + (warp * 8 + lane % 8) * kRowStride + lane / 8 * 8;
#pragma unroll 8
  for (int step = 0; step < kDim / 32; ++step) {
    std::uint32_t a0[4], a1[4], b[4];
    ptx::LoadMatrix4(a0, q + step * 32);
    ptx::LoadMatrix4(a1, q + step * 32 + 16);
    ptx::LoadMatrix4(b, k + step * 32);
    ptx::Mma16x8x16(even, a0, b[0], b[1]);
    ptx::Mma16x8x16(odd, a1, b[2], b[3]);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int key = warp * 8 + lane % 4 * 2 + i % 2;
    const bool used = s.places[begin + key].kind != KeyKind::kNone;
    s.scores[(lane / 4 + i / 2 * 8) * kScoreStride + key] = used ? (even[i] + odd[i]) * scale : -INFINITY;
  }
}

// One or two heads a warp: the running maximum, probabilities, and how much earlier sums shrink.
template <int Threads>
__device__ void Softmax(Shared& s) {
  constexpr int kPerWarp = kHeads * 32 / Threads;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int j = 0; j < kPerWarp; ++j) {
    const int head = warp * kPerWarp + j;
    const bool two = lane < kBlock - 32;
    const float a = s.scores[head * kScoreStride + lane];
    const float b = two ? s.scores[head * kScoreStride + lane + 32] : -INFINITY;
    const float before = s.running[head];
    const float largest = fmaxf(before, WarpMax(fmaxf(a, b)));
    const float pa = expf(a - largest), pb = expf(b - largest);
    const float sum = WarpSum(pa + pb);
    s.probabilities[head * kProbStride + lane] = ToBFloat16(pa);
    if (two) s.probabilities[head * kProbStride + lane + 32] = ToBFloat16(pb);
    __syncwarp();
    if (lane == 0) {
      const float rescale = expf(before - largest);
      s.rescale[head] = rescale;
      s.denominator[head] = s.denominator[head] * rescale + sum;
      s.running[head] = largest;
    }
  }
}

// acc[16 heads][8 * Tiles values of this warp] = acc * rescale + probabilities times values.
template <int Tiles>
__device__ void AddValues(const Shared& s, float (&acc)[Tiles][4]) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const float top = s.rescale[lane / 4], bottom = s.rescale[lane / 4 + 8];
#pragma unroll
  for (int n = 0; n < Tiles; ++n) {
    acc[n][0] *= top, acc[n][1] *= top;
    acc[n][2] *= bottom, acc[n][3] *= bottom;
  }
#pragma unroll
  for (int step = 0; step < kBlock / 16; ++step) {
    std::uint32_t a[4];
    ptx::LoadMatrix4(a, s.probabilities + (lane % 16) * kProbStride + step * 16 + lane / 16 * 8);
#pragma unroll
    for (int n = 0; n < Tiles / 2; ++n) {
      std::uint32_t b[4];
      ptx::LoadMatrix4Transposed(
          b, s.keys + (step * 16 + lane % 16) * kRowStride + warp * (Tiles * 8) + n * 16 + lane / 16 * 8);
      ptx::Mma16x8x16(acc[2 * n], a, b[0], b[1]);
      ptx::Mma16x8x16(acc[2 * n + 1], a, b[2], b[3]);
    }
  }
}

template <int Tiles>
__device__ void Finish(const Task& task, int t, int head0, const float (&acc)[Tiles][4], Shared& s) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int local = lane / 4 + half * 8, head = head0 + local;
    if (head >= task.heads) continue;
    const float denominator = s.denominator[local] + expf(task.sink[head] - s.running[local]);
#pragma unroll
    for (int n = 0; n < Tiles; ++n) {
      const int d = warp * (Tiles * 8) + n * 8 + lane % 4 * 2;
      const std::uint32_t pair = Pack(acc[n][2 * half] / denominator, acc[n][2 * half + 1] / denominator);
      const std::int64_t at = ((static_cast<std::int64_t>(t) * task.heads + head) * kDim + d) / 2;
      if (task.unrotated_copy != nullptr) reinterpret_cast<std::uint32_t*>(task.unrotated_copy)[at] = pair;
      std::uint32_t out = pair;
      const int turned_from = kDim - task.rope.dims;
      if (d >= turned_from) {
        const float2 angle = s.angle[(d - turned_from) / 2];
        const float2 back = Turn(LowHalf(pair), HighHalf(pair), {angle.x, -angle.y});
        out = Pack(back.x, back.y);
      }
      reinterpret_cast<std::uint32_t*>(task.out)[at] = out;
    }
  }
}

template <int kThreads>
__global__ void __launch_bounds__(kThreads, kThreads == kManyRows ? 2 : 1) AttentionKernel(Task task, float scale) {
  ptx::BeginKernel();
  extern __shared__ __align__(16) std::uint8_t memory[];
  Shared& s = *reinterpret_cast<Shared*>(memory);
  const int t = static_cast<int>(blockIdx.y), head0 = static_cast<int>(blockIdx.x) * kHeads;
  const int tid = static_cast<int>(threadIdx.x);
  const SequenceEntry sequence = task.step.sequence_of(t);
  int entries = 0;
  for (int i = 0; task.list != nullptr && i < task.topk; i += kThreads) {
    const bool used = i + tid < task.topk && task.list[static_cast<std::int64_t>(t) * task.topk + i + tid] >= 0;
    entries += __syncthreads_count(used);
  }
  const Places places = PlacesOf(task, sequence, t, entries);
  for (int i = tid; i < kHeads * kDim / 8; i += kThreads) {
    const int head = i / (kDim / 8), piece = i % (kDim / 8);
    uint4 value = {0, 0, 0, 0};
    if (head0 + head < task.heads) {
      value = reinterpret_cast<const uint4*>(task.q +
                                             (static_cast<std::int64_t>(t) * task.heads + head0 + head) * kDim)[piece];
    }
    *reinterpret_cast<uint4*>(s.q + head * kRowStride + piece * 8) = value;
  }
  if (tid < kHeads) s.running[tid] = -1e30f, s.denominator[tid] = 0;
  if (tid < task.rope.dims / 2) s.angle[tid] = RopeAngle(task.rope, task.step.positions[t], tid);

  // Blocks of places that hold no key at all are skipped.
  const auto next_block = [&places](int begin) {
    while (begin < places.end() && begin >= places.window_rows && begin + kBlock <= places.window_places)
      begin += kBlock;
    return begin;
  };
  FindKeys<kThreads>(task, sequence, places, t, s);
  __syncthreads();
  float acc[kDim * 4 / kThreads][4] = {};
  int begin = next_block(0);
  if (begin < places.end()) FetchKeys<kThreads>(begin, s);
  while (begin < places.end()) {
    const int next = next_block(begin + kBlock);
    ptx::WaitCopies<0>();
    __syncthreads();
    DecodeKeys<kThreads>(begin, s);
    __syncthreads();
    if (next < places.end()) FetchKeys<kThreads>(next, s);
    Scores(scale, begin, s);
    __syncthreads();
    Softmax<kThreads>(s);
    __syncthreads();
    AddValues(s, acc);
    begin = next;
  }
  __syncthreads();
  Finish(task, t, head0, acc, s);
}

template <int kThreads>
void LaunchThreads(const Task& task, cudaStream_t stream) {
  if (task.step.rows == 0) return;
  const std::size_t places =
      static_cast<std::size_t>(task.window_size + task.topk + (task.draft ? kDraftRowsMax : 0) + kBlock);
  const std::size_t shared = sizeof(Shared) + places * sizeof(KeyPlace);
  const auto kernel = AttentionKernel<kThreads>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared));
  const float scale = static_cast<float>(1.0 / sqrt(static_cast<double>(kDim)));
  LaunchKernel(kernel,
               dim3(static_cast<unsigned>((task.heads + kHeads - 1) / kHeads), static_cast<unsigned>(task.step.rows)),
               kThreads, shared, stream, task, scale);
}

void Launch(const Task& task, bool few_rows, cudaStream_t stream) {
  few_rows&& task.step.rows <= kFewRowsMax ? LaunchThreads<kFewRows>(task, stream)
                                           : LaunchThreads<kManyRows>(task, stream);
}

}  // namespace

void Attention(const AttentionArgs& args, bool few_rows, cudaStream_t stream) {
  Launch({.step = args.step,
          .q = args.q,
          .window = args.window,
          .ring = args.ring,
          .decoder_floor = args.decoder_floor,
          .draft = false,
          .window_size = args.window_size,
          .window_places = args.window_places,
          .heads = args.heads,
          .sink = args.sink,
          .rope = args.rope,
          .list = args.list,
          .topk = args.topk,
          .slab = args.slab,
          .out = args.out,
          .unrotated_copy = args.unrotated_copy},
         few_rows, stream);
}

void DraftAttention(const DraftAttentionArgs& args, cudaStream_t stream) {
  Launch({.step = args.step,
          .q = args.q,
          .window = args.window,
          .ring = args.ring,
          .decoder_floor = true,
          .draft = true,
          .window_size = args.window_size,
          .window_places = 0,
          .heads = args.heads,
          .sink = args.sink,
          .rope = args.rope,
          .list = nullptr,
          .topk = 0,
          .slab = {},
          .out = args.out,
          .unrotated_copy = nullptr},
         /*few_rows=*/false, stream);
}

}  // namespace galley::backend::cuda
