// SPDX-License-Identifier: Apache-2.0
// Rows around attention (2.4): window records from the output of wkv, the norm of low-rank queries, and the rotation of
// queries.
#include "galley/backend/cuda/kernels.h"
#include "galley/backend/cuda/launch.h"
#include "galley/backend/cuda/pack_rows.cuh"
#include "galley/backend/cuda/step.cuh"

namespace galley::backend::cuda {
namespace {

constexpr int kHeadDimMax = 1024, kRopeMax = 128;

struct RecordTarget {
  Ring ring;
  bool to_ring;
};

// By a block of 32 × Warps threads, of which the first four warps add up the squares: norm, rotation, FP8 in groups of
// 32. What is constant is on its way before the kernel before this one has ended. `shared`: one float a warp.
template <int Warps>
__device__ __forceinline__ void WriteRecord(const WindowRecordArgs& args, const RecordTarget& target, float2* angles,
                                            float* shared) {
  constexpr int kThreads = Warps * 32, kEach = kHeadDimMax / kThreads;
  static_assert(kRopeMax / 2 <= kThreads);
  __shared__ float x[kHeadDimMax];
  const int t = static_cast<int>(blockIdx.x), dim = args.head_dim, thread = static_cast<int>(threadIdx.x);
  const bool turns = thread < args.rope.dims / 2;
  float weight[kEach];
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const int i = thread + j * kThreads;
    weight[j] = i < dim ? ToFloat(args.norm[i]) : 0.0f;
  }
  const float frequency = turns ? args.rope.frequencies[thread] : 0.0f;
  ptx::WaitForPreviousKernel();
  const std::int64_t p = args.step.positions[t];
  const SequenceEntry& sequence = args.step.sequence_of(t);
  // Rows of the ring that later rows of the step overwrite are left out: they would race for the place.
  if (target.to_ring && t - sequence.first_row < sequence.rows - target.ring.rows) return;
  const BFloat16* kv = args.kv + static_cast<std::int64_t>(t) * dim;
  float square = 0;
  for (int i = thread; i < dim && thread < 128; i += 128) {
    x[i] = ToFloat(kv[i]);
    square += x[i] * x[i];
  }
  const float2 angle = turns ? RopeAngle(frequency, p) : float2{};
  if (turns && angles != nullptr) angles[static_cast<std::int64_t>(t) * (args.rope.dims / 2) + thread] = angle;
  const float r = 1.0f / sqrtf(BlockSum<Warps>(square, shared) / static_cast<float>(dim) + args.eps);
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const int i = thread + j * kThreads;
    if (i < dim) x[i] = RoundToBFloat16(weight[j] * (x[i] * r));
  }
  __syncthreads();
  if (turns) {
    float* pair = x + dim - args.rope.dims + 2 * thread;
    const float2 turned = Turn(pair[0], pair[1], angle);
    pair[0] = turned.x, pair[1] = turned.y;
  }
  __syncthreads();
  std::uint8_t* record = target.to_ring ? RingRow(target.ring, sequence.slot, p)
                                        : args.out + static_cast<std::size_t>(t) * WindowRecordBytes(dim);
  const int lane = thread % 32;
  for (int group = thread / 32; group < dim / 32; group += Warps) {
    const float value = x[group * 32 + lane], scale = Fp8Scale(WarpMax(fabsf(value)));
    record[group * 32 + lane] = EncodeE4M3(ClampTo(value / scale, 448.0f));
    if (lane == 0) record[dim + group] = EncodeE8M0(scale);
  }
}

__global__ void __launch_bounds__(128) WindowRecordKernel(WindowRecordArgs args, RecordTarget target) {
  ptx::LetNextKernelStart();
  __shared__ float shared[4];
  WriteRecord<4>(args, target, nullptr, shared);
}

// Two blocks a row: one the window record, one the norm and the quantiser of qr.
__global__ void __launch_bounds__(256) QueryRowKernel(QueryRowArgs args) {
  ptx::LetNextKernelStart();
  __shared__ float shared[8];
  if (blockIdx.y == 1) return WriteRecord<8>(args.window, {}, args.angles, shared);
  constexpr int kEach = kQueryRankMax / 256;
  const int t = static_cast<int>(blockIdx.x), rank = args.rank, thread = static_cast<int>(threadIdx.x);
  float weight[kEach], value[kEach], square = 0;
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const int i = thread + j * 256;
    weight[j] = i < rank ? ToFloat(args.norm[i]) : 0.0f;
  }
  ptx::WaitForPreviousKernel();
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const int i = thread + j * 256;
    value[j] = i < rank ? ToFloat(args.low[static_cast<std::int64_t>(t) * rank + i]) : 0.0f;
  }
#pragma unroll
  for (int j = 0; j < kEach; ++j) square += value[j] * value[j];
  const float r = 1.0f / sqrtf(BlockSum<8>(square, shared) / static_cast<float>(rank) + args.window.eps);
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const int i = thread + j * 256;
    if (i >= rank) break;
    const BFloat16 normed = ToBFloat16(weight[j] * (value[j] * r));
    args.qr[static_cast<std::int64_t>(t) * rank + i] = normed;
    if (args.quantized == nullptr) continue;
    // A warp a group of 32.
    const float rounded = ToFloat(normed);
    const BFloat16 code = ToBFloat16(FakeFp8(rounded, Fp8Scale(WarpMax(fabsf(rounded)))));
    std::int64_t to = static_cast<std::int64_t>(t) * rank;
    if (args.order == RowOrder::kPacked) {
      to = PackedElement(args.window.step.rows, rank, args.tile_rows, t, i);
    } else if (args.order == RowOrder::kSlots) {
      to += SlotPlace(i, kLaneValues<WeightFormat::kFp8Block32>, true);
    } else {
      to += PairedPlace(i);
    }
    args.quantized[to] = code;
  }
}

// A thread eight neighbouring values, or two where those do not fill the rotated ones.
template <int Count>
__global__ void __launch_bounds__(256)
    RotateKernel(const float2* angles, BFloat16* q, int heads, int head_dim, int rotated) {
  ptx::BeginKernel();
  const int each = rotated / Count, i = static_cast<int>(blockIdx.y * 256 + threadIdx.x);
  if (i >= heads * each) return;
  const auto t = static_cast<std::int64_t>(blockIdx.x);
  const float2* angle = angles + t * (rotated / 2) + i % each * (Count / 2);
  auto* at = reinterpret_cast<std::uint32_t*>(q + (t * heads + i / each + 1) * head_dim - rotated + i % each * Count);
  alignas(16) std::uint32_t pairs[Count / 2];
  if constexpr (Count == 8) {
    *reinterpret_cast<uint4*>(pairs) = *reinterpret_cast<const uint4*>(at);
  } else {
    pairs[0] = *at;
  }
#pragma unroll
  for (int p = 0; p < Count / 2; ++p) {
    const float2 turned = Turn(LowHalf(pairs[p]), HighHalf(pairs[p]), angle[p]);
    pairs[p] = Pack(turned.x, turned.y);
  }
  if constexpr (Count == 8) {
    *reinterpret_cast<uint4*>(at) = *reinterpret_cast<const uint4*>(pairs);
  } else {
    *at = pairs[0];
  }
}

}  // namespace

void WindowRecords(const WindowRecordArgs& args, cudaStream_t stream) {
  if (args.step.rows == 0) return;
  const RecordTarget target{.ring = args.ring != nullptr ? *args.ring : Ring{}, .to_ring = args.ring != nullptr};
  LaunchKernel(WindowRecordKernel, static_cast<unsigned>(args.step.rows), 128, 0, stream, args, target);
}

void QueryRows(const QueryRowArgs& args, cudaStream_t stream) {
  if (args.window.step.rows == 0) return;
  LaunchKernel(QueryRowKernel, dim3(static_cast<unsigned>(args.window.step.rows), 2), 256, 0, stream, args);
}

void RotateHeads(const float2* angles, BFloat16* q, int rows, int heads, int head_dim, int rotated,
                 cudaStream_t stream) {
  if (rows == 0 || rotated == 0) return;
  const bool eights = rotated % 8 == 0 && head_dim % 8 == 0;
  const int pieces = heads * rotated / (eights ? 8 : 2);
  LaunchKernel(eights ? RotateKernel<8> : RotateKernel<2>,
               dim3(static_cast<unsigned>(rows), static_cast<unsigned>((pieces + 255) / 256)), 256, 0, stream, angles,
               q, heads, head_dim, rotated);
}

}  // namespace galley::backend::cuda
