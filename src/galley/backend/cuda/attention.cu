// SPDX-License-Identifier: Apache-2.0
// Attention of one row over the window and the selected entries (2.4), and of draft blocks (2.12), for models with few
// heads and for devices without warpgroup products; attention_heads.cu is for the others. A block of threads takes 16
// heads of a row and goes through the list of keys in blocks of 48 places (two blocks of threads fit on a
// multiprocessor then): keys are fetched as records while the block before them is computed, decoded to bf16 in shared
// memory, and used both as keys and as values. No sum is split by anything but the places, so decode and prefill give
// the same bits.
#include "galley/backend/cuda/attention_keys.cuh"
#include "galley/backend/cuda/launch.h"

namespace galley::backend::cuda {
namespace {

constexpr int kHeads = 16, kBlock = 48, kThreads = 256;
constexpr int kRowStride = kDim + 8;          // bf16 values; 16 bytes more keep ldmatrix free of bank conflicts
constexpr int kRawStride = kDim + kDim / 32;  // bytes of a raw record in shared memory
constexpr int kScoreStride = kBlock + 4;      // fp32 values
constexpr int kProbStride = kBlock + 8;       // bf16 values

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

// Entries of row t's list, by all threads of a block.
__device__ int CountEntries(const AttentionTask& task, int t) {
  int entries = 0;
  for (int i = 0; task.list != nullptr && i < task.topk; i += kThreads) {
    const int at = i + static_cast<int>(threadIdx.x);
    entries += __syncthreads_count(at < task.topk && task.list[static_cast<std::int64_t>(t) * task.topk + at] >= 0);
  }
  return entries;
}

// Where every key of the list lies, up to whole blocks.
__device__ void FindKeys(const AttentionTask& task, const SequenceEntry& sequence, const Places& places, int t,
                         KeyPlace* out) {
  const int end = (places.end() + kBlock - 1) / kBlock * kBlock;
  for (int place = static_cast<int>(threadIdx.x); place < end; place += kThreads) {
    const std::int32_t entry = EntryAt(task, places, t, place);
    out[place] = KeyAt(task, places, place, {entry, BlockOf(task, sequence.block_offset, entry)});
  }
}

// Starts the copies of the raw records of a block of keys, of up to 64: 33 pieces of 16 bytes a window record, 16 + 2
// an entry. kPerKey threads work on a key.
__device__ void FetchKeys(const AttentionTask& task, const KeyPlace* keys, std::uint8_t* raw) {
  constexpr int kPerKey = kThreads / 64;
  const int local = static_cast<int>(threadIdx.x) / kPerKey;
  if (local < kBlock && keys[local].kind() != KeyKind::kNone) {
    const KeyPlace key = keys[local];
    const bool entry = key.kind() == KeyKind::kEntry;
    const int code_pieces = entry ? kDim / 32 : kDim / 16, pieces = code_pieces + (entry ? 2 : 1);
    const std::uint8_t* codes = key.codes();
    std::uint8_t* to = raw + local * kRawStride;
    for (int piece = static_cast<int>(threadIdx.x) % kPerKey; piece < pieces; piece += kPerKey) {
      const int scale = piece - code_pieces;
      ptx::CopyAsync16(to + (scale >= 0 ? (entry ? kDim - 16 : kDim) + scale * 16 : piece * 16),
                       codes + (scale >= 0 ? key.scales() + scale : piece) * 16, true);
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
// The e4m3 scale of 16 values of an entry, twice.
__device__ __forceinline__ std::uint32_t EntryScale(std::uint32_t code) {
  return MultiplyPairs(((code * 0x00100010u) & 0x07F007F0u) | ((code * 0x01000100u) & 0x80008000u),
                       ScalePair<kFp8Shift>(127));
}
__device__ __forceinline__ uint4 DecodeEntry(std::uint32_t codes, std::uint32_t scale) {
  std::uint32_t p[4];
  DecodeFp4x8(codes, ScalePair<kFp4Shift>(127), p);  // times 1
#pragma unroll
  for (std::uint32_t& pair : p) pair = MultiplyPairs(pair, scale);  // two and four bits of mantissa: exact
  return {__byte_perm(p[0], p[1], 0x5410), __byte_perm(p[2], p[3], 0x5410), __byte_perm(p[0], p[1], 0x7632),
          __byte_perm(p[2], p[3], 0x7632)};
}

// Raw records to bf16 rows; rows without a key become zero so that a zero probability times them is zero. Each of the
// kPerKey threads of a key takes every kPerKey-th piece of eight values, four at once: all are read before the first is
// decoded, or a thread would wait for shared memory after every piece.
__device__ void DecodeKeys(int begin, Shared& s) {
  constexpr int kPerKey = kThreads / 64, kAtOnce = 4;
  const int local = static_cast<int>(threadIdx.x) / kPerKey;
  if (local >= kBlock) return;
  const KeyKind kind = s.places[begin + local].kind();
  const std::uint8_t* raw = s.raw + local * kRawStride;
  BFloat16* out = s.keys + local * kRowStride;
  const int first = static_cast<int>(threadIdx.x) % kPerKey;
#pragma unroll 1
  for (int i = 0; i < kDim / 8; i += kAtOnce * kPerKey) {
    uint4 natural[kAtOnce] = {};
    std::uint32_t scales[kAtOnce];
    if (kind == KeyKind::kStep || kind == KeyKind::kRing) {
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
      for (int j = 0; j < kAtOnce; ++j) natural[j] = DecodeEntry(codes[j], EntryScale(scales[j]));
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
    const bool used = s.places[begin + key].kind() != KeyKind::kNone;
    s.scores[(lane / 4 + i / 2 * 8) * kScoreStride + key] = used ? (even[i] + odd[i]) * scale : -INFINITY;
  }
}

// Two heads a warp: the running maximum, probabilities, and how much earlier sums shrink.
__device__ void Softmax(Shared& s) {
  constexpr int kPerWarp = kHeads * 32 / kThreads;
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

constexpr int kTiles = kDim * 4 / kThreads;  // of eight values, of a warp

// acc[16 heads][values of this warp] = acc * rescale + probabilities times values.
__device__ void AddValues(const Shared& s, float (&acc)[kTiles][4]) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const float top = s.rescale[lane / 4], bottom = s.rescale[lane / 4 + 8];
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    acc[n][0] *= top, acc[n][1] *= top;
    acc[n][2] *= bottom, acc[n][3] *= bottom;
  }
#pragma unroll
  for (int step = 0; step < kBlock / 16; ++step) {
    std::uint32_t a[4];
    ptx::LoadMatrix4(a, s.probabilities + (lane % 16) * kProbStride + step * 16 + lane / 16 * 8);
#pragma unroll
    for (int n = 0; n < kTiles / 2; ++n) {
      std::uint32_t b[4];
      ptx::LoadMatrix4Transposed(
          b, s.keys + (step * 16 + lane % 16) * kRowStride + warp * (kTiles * 8) + n * 16 + lane / 16 * 8);
      ptx::Mma16x8x16(acc[2 * n], a, b[0], b[1]);
      ptx::Mma16x8x16(acc[2 * n + 1], a, b[2], b[3]);
    }
  }
}

// Values d and d + 1 of a head as a pair, number `at` of the output's pairs: as they are, where a copy of that is
// wanted, and from value `turned_from` on turned back by the row's angles.
__device__ __forceinline__ void StorePair(const AttentionTask& task, const float2* angles, int turned_from,
                                          std::int64_t at, int d, std::uint32_t pair) {
  if (task.unrotated_copy != nullptr) reinterpret_cast<std::uint32_t*>(task.unrotated_copy)[at] = pair;
  std::uint32_t out = pair;
  if (d >= turned_from) {
    const float2 angle = angles[(d - turned_from) / 2];
    const float2 back = Turn(LowHalf(pair), HighHalf(pair), {angle.x, -angle.y});
    out = Pack(back.x, back.y);
  }
  reinterpret_cast<std::uint32_t*>(task.out)[at] = out;
}

__device__ void Finish(const AttentionTask& task, int t, int head0, const float (&acc)[kTiles][4], Shared& s) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int local = lane / 4 + half * 8, head = head0 + local;
    if (head >= task.heads) continue;
    const float denominator = s.denominator[local] + expf(task.sink[head] - s.running[local]);
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const int d = warp * (kTiles * 8) + n * 8 + lane % 4 * 2;
      const std::uint32_t pair = Pack(acc[n][2 * half] / denominator, acc[n][2 * half + 1] / denominator);
      const std::int64_t at = ((static_cast<std::int64_t>(t) * task.heads + head) * kDim + d) / 2;
      StorePair(task, s.angle, kDim - task.rope.dims, at, d, pair);
    }
  }
}

__global__ void __launch_bounds__(kThreads, 2) AttentionKernel(AttentionTask task, float scale) {
  ptx::BeginKernel();
  extern __shared__ __align__(16) std::uint8_t memory[];
  Shared& s = *reinterpret_cast<Shared*>(memory);
  const int t = static_cast<int>(blockIdx.y), head0 = static_cast<int>(blockIdx.x) * kHeads;
  const int tid = static_cast<int>(threadIdx.x);
  const SequenceEntry sequence = task.step.sequence_of(t);
  const Places places = PlacesOf(task, sequence, task.step.positions[t], CountEntries(task, t));
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

  FindKeys(task, sequence, places, t, s.places);
  __syncthreads();
  float acc[kTiles][4] = {};
  const int blocks = places.Blocks<kBlock>();
  if (blocks > 0) FetchKeys(task, s.places + places.BlockBegin<kBlock>(0), s.raw);
  for (int i = 0; i < blocks; ++i) {
    const int begin = places.BlockBegin<kBlock>(i);
    ptx::WaitCopies<0>();
    __syncthreads();
    DecodeKeys(begin, s);
    __syncthreads();
    if (i + 1 < blocks) FetchKeys(task, s.places + places.BlockBegin<kBlock>(i + 1), s.raw);
    Scores(scale, begin, s);
    __syncthreads();
    Softmax(s);
    __syncthreads();
    AddValues(s, acc);
  }
  __syncthreads();
  Finish(task, t, head0, acc, s);
}

// From so many heads on a warpgroup product has use for most of its rows. A matter of the model alone: the kernels
// differ in bits.
constexpr int kWarpgroupHeadsMin = 32;

void Launch(const AttentionTask& task, bool warpgroups, cudaStream_t stream) {
  if (task.step.rows == 0) return;
  if (warpgroups && task.heads >= kWarpgroupHeadsMin) return HeadsAttention(task, stream);
  const std::size_t shared = sizeof(Shared) + PlacesMax(task, kBlock) * sizeof(KeyPlace);
  cudaFuncSetAttribute(AttentionKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared));
  LaunchKernel(AttentionKernel,
               dim3(static_cast<unsigned>((task.heads + kHeads - 1) / kHeads), static_cast<unsigned>(task.step.rows)),
               kThreads, shared, stream, task, ScoreScale());
}

}  // namespace

void Attention(const AttentionArgs& args, bool warpgroups, cudaStream_t stream) {
  Launch(TaskOf(args), warpgroups, stream);
}

void DraftAttention(const DraftAttentionArgs& args, bool warpgroups, cudaStream_t stream) {
  Launch(TaskOf(args), warpgroups, stream);
}

}  // namespace galley::backend::cuda
