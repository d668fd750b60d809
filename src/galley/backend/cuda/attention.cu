// SPDX-License-Identifier: Apache-2.0
// Attention of one row over the window and the selected entries (2.4), and of draft blocks (2.12). A block of threads
// takes 16 heads of a row and goes through the list of keys in blocks of 48 places (two blocks of threads fit on a
// multiprocessor then): keys are fetched as records while the block before them
// is computed, decoded to bf16 in shared memory, and used both as keys and as values. No sum is split by anything but
// the places, so decode and prefill give the same bits.
#include "galley/backend/cuda/attention_keys.cuh"
#include "galley/backend/cuda/launch.h"

namespace galley::backend::cuda {
namespace {

// Threads of a block: more where few rows leave the device idle, so that each block is done sooner. Same bits.
constexpr int kHeads = 16, kBlock = 48, kManyRows = 256, kFewRows = 512;
constexpr int kFewRowsMax = 32;           // rows up to which blocks have kFewRows threads; 0: never
constexpr int kScoreStride = kBlock + 4;  // fp32 values
constexpr int kProbStride = kBlock + 8;   // bf16 values

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
__device__ void Finish(const AttentionTask& task, int t, int head0, const float (&acc)[Tiles][4], Shared& s) {
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
      StorePair(task, s.angle, kDim - task.rope.dims, at, d, pair);
    }
  }
}

template <int kThreads>
__global__ void __launch_bounds__(kThreads, kThreads == kManyRows ? 2 : 1)
    AttentionKernel(AttentionTask task, float scale) {
  ptx::BeginKernel();
  extern __shared__ __align__(16) std::uint8_t memory[];
  Shared& s = *reinterpret_cast<Shared*>(memory);
  const int t = static_cast<int>(blockIdx.y), head0 = static_cast<int>(blockIdx.x) * kHeads;
  const int tid = static_cast<int>(threadIdx.x);
  const SequenceEntry sequence = task.step.sequence_of(t);
  const Places places = PlacesOf(task, sequence, t, CountEntries<kThreads>(task, t));
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

  FindKeys<kThreads, kBlock>(task, sequence, places, t, s.places);
  __syncthreads();
  float acc[kDim * 4 / kThreads][4] = {};
  int begin = places.NextBlock<kBlock>(0);
  if (begin < places.end()) FetchKeys<kThreads, kBlock>(s.places + begin, s.raw);
  while (begin < places.end()) {
    const int next = places.NextBlock<kBlock>(begin + kBlock);
    ptx::WaitCopies<0>();
    __syncthreads();
    DecodeKeys<kThreads>(begin, s);
    __syncthreads();
    if (next < places.end()) FetchKeys<kThreads, kBlock>(s.places + next, s.raw);
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
void LaunchThreads(const AttentionTask& task, cudaStream_t stream) {
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

// Fewer heads leave most of a warpgroup product unused; up to so many rows, more blocks of threads a row are faster.
constexpr int kWarpgroupHeadsMin = 32, kWarpgroupRowsMin = 65;

void Launch(const AttentionTask& task, bool few_rows, cudaStream_t stream) {
  few_rows&& task.step.rows <= kFewRowsMax ? LaunchThreads<kFewRows>(task, stream)
                                           : LaunchThreads<kManyRows>(task, stream);
}

}  // namespace

void Attention(const AttentionArgs& args, bool few_rows, bool warpgroups, cudaStream_t stream) {
  if (warpgroups && args.heads >= kWarpgroupHeadsMin && args.step.rows >= kWarpgroupRowsMin) {
    return HeadsAttention(TaskOf(args), stream);
  }
  Launch(TaskOf(args), few_rows, stream);
}

void DraftAttention(const DraftAttentionArgs& args, cudaStream_t stream) {
  Launch(TaskOf(args), /*few_rows=*/false, stream);
}

}  // namespace galley::backend::cuda
