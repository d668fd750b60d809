// SPDX-License-Identifier: Apache-2.0
// Rows around attention (2.4): window records from the output of wkv, and the rotation of queries.
#include "galley/backend/cuda/kernels.h"
#include "galley/backend/cuda/launch.h"
#include "galley/backend/cuda/ptx/async_copy.cuh"
#include "galley/backend/cuda/step.cuh"

namespace galley::backend::cuda {
namespace {

constexpr int kHeadDimMax = 1024, kRopeMax = 128;

struct RecordTarget {
  Ring ring;
  bool to_ring;
};

// A block a row: norm, rotation, FP8 in groups of 32.
__global__ void __launch_bounds__(128) WindowRecordKernel(WindowRecordArgs args, RecordTarget target) {
  ptx::BeginKernel();
  __shared__ float x[kHeadDimMax];
  __shared__ float shared[4];
  const int t = static_cast<int>(blockIdx.x), dim = args.head_dim, lane = static_cast<int>(threadIdx.x) % 32;
  const SequenceEntry& sequence = args.step.sequence_of(t);
  // Rows of the ring that later rows of the step overwrite are left out: they would race for the place.
  if (target.to_ring && t - sequence.first_row < sequence.rows - target.ring.rows) return;
  const BFloat16* kv = args.kv + static_cast<std::int64_t>(t) * dim;
  float square = 0;
  for (int i = static_cast<int>(threadIdx.x); i < dim; i += 128) {
    x[i] = ToFloat(kv[i]);
    square += x[i] * x[i];
  }
  const float r = 1.0f / sqrtf(BlockSum<4>(square, shared) / static_cast<float>(dim) + args.eps);
  for (int i = static_cast<int>(threadIdx.x); i < dim; i += 128) {
    x[i] = RoundToBFloat16(ToFloat(args.norm[i]) * (x[i] * r));
  }
  __syncthreads();
  const std::int64_t p = args.step.positions[t];
  for (int i = static_cast<int>(threadIdx.x); i < args.rope.dims / 2; i += 128) {
    float* pair = x + dim - args.rope.dims + 2 * i;
    const float2 turned = Turn(pair[0], pair[1], RopeAngle(args.rope, p, i));
    pair[0] = turned.x, pair[1] = turned.y;
  }
  __syncthreads();
  std::uint8_t* record = target.to_ring ? RingRow(target.ring, sequence.slot, p)
                                        : args.out + static_cast<std::size_t>(t) * WindowRecordBytes(dim);
  for (int group = static_cast<int>(threadIdx.x) / 32; group < dim / 32; group += 4) {
    const float value = x[group * 32 + lane], scale = Fp8Scale(WarpMax(fabsf(value)));
    record[group * 32 + lane] = EncodeE4M3(ClampTo(value / scale, 448.0f));
    if (lane == 0) record[dim + group] = EncodeE8M0(scale);
  }
}

__global__ void __launch_bounds__(256) RotateKernel(StepView step, BFloat16* q, int heads, int head_dim, Rope rope) {
  ptx::BeginKernel();
  __shared__ float2 angle[kRopeMax / 2];
  const int t = static_cast<int>(blockIdx.x), pairs = rope.dims / 2;
  for (int i = static_cast<int>(threadIdx.x); i < pairs; i += 256) angle[i] = RopeAngle(rope, step.positions[t], i);
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < heads * pairs; i += 256) {
    const int head = i / pairs, pair = i % pairs;
    auto* at = reinterpret_cast<std::uint32_t*>(q + (static_cast<std::int64_t>(t) * heads + head + 1) * head_dim -
                                                rope.dims + 2 * pair);
    const float2 turned = Turn(LowHalf(*at), HighHalf(*at), angle[pair]);
    *at = Pack(turned.x, turned.y);
  }
}

}  // namespace

void WindowRecords(const WindowRecordArgs& args, cudaStream_t stream) {
  if (args.step.rows == 0) return;
  const RecordTarget target{.ring = args.ring != nullptr ? *args.ring : Ring{}, .to_ring = args.ring != nullptr};
  LaunchKernel(WindowRecordKernel, static_cast<unsigned>(args.step.rows), 128, 0, stream, args, target);
}

void RotateHeads(const StepView& step, BFloat16* q, int heads, int head_dim, const Rope& rope, cudaStream_t stream) {
  if (step.rows == 0) return;
  LaunchKernel(RotateKernel, static_cast<unsigned>(step.rows), 256, 0, stream, step, q, heads, head_dim, rope);
}

}  // namespace galley::backend::cuda
