// SPDX-License-Identifier: Apache-2.0
// Compressed history (2.7): latents of finished groups and their index keys. Three launches: latents, the ring of open
// groups' inputs (after everything that reads it), keys.
#include "galley/backend/cuda/kernels.h"
#include "galley/backend/cuda/launch.h"
#include "galley/backend/cuda/ptx/async_copy.cuh"
#include "galley/backend/cuda/step.cuh"

namespace galley::backend::cuda {
namespace {

constexpr int kDimMax = 1024;

// Entry that row `t` completes, -1 when it completes none that may be written.
__device__ std::int64_t FinishedEntry(const CompressArgs& args, const SequenceEntry& sequence, std::int64_t p) {
  if (p < sequence.history_from) return -1;
  return args.slab.ratio == 1 ? p : p % 2 == 0 ? -1 : p / 2;
}

// Contents and gates of position p: of this step when it holds that row, else from the ring.
__device__ void InputsAt(const CompressArgs& args, const CompressScratch& scratch, const SequenceEntry& sequence,
                         std::int64_t p, const float** content, const float** gate) {
  const int dim = args.slab.latent_dim;
  if (p >= sequence.start) {
    const std::int64_t row = sequence.first_row + (p - sequence.start);
    *content = scratch.content + row * dim;
    *gate = scratch.gate + row * dim;
    return;
  }
  *content = reinterpret_cast<const float*>(RingRow(args.input_ring, sequence.slot, p));
  *gate = *content + dim;
}

// Packed e2m1 of two neighbours.
__device__ std::uint8_t PackFp4(float low, float high, float scale) {
  return static_cast<std::uint8_t>(EncodeFp4(low, scale) | (EncodeFp4(high, scale) << 4));
}

__global__ void __launch_bounds__(256) LatentKernel(CompressArgs args, CompressScratch scratch) {
  ptx::BeginKernel();
  __shared__ float x[kDimMax];
  __shared__ float shared[8];
  const int t = static_cast<int>(blockIdx.x), dim = args.slab.latent_dim, tid = static_cast<int>(threadIdx.x);
  const SequenceEntry& sequence = args.step.sequence_of(t);
  const std::int64_t p = args.step.positions[t], j = FinishedEntry(args, sequence, p);
  if (j < 0) return;
  float square = 0;
  if (args.slab.ratio == 1) {
    for (int i = tid; i < dim; i += 256)
      x[i] = RoundToBFloat16(scratch.content[static_cast<std::int64_t>(t) * dim + i]);
  } else {
    const float *even, *even_gate, *odd, *odd_gate;
    InputsAt(args, scratch, sequence, p - 1, &even, &even_gate);
    InputsAt(args, scratch, sequence, p, &odd, &odd_gate);
    for (int i = tid; i < dim; i += 256) {
      const float largest = fmaxf(even_gate[i], odd_gate[i]);
      const float a = expf(even_gate[i] - largest), b = expf(odd_gate[i] - largest), sum = a + b;
      x[i] = RoundToBFloat16(even[i] * (a / sum) + odd[i] * (b / sum));
    }
  }
  for (int i = tid; i < dim; i += 256) square += x[i] * x[i];
  const float r = 1.0f / sqrtf(BlockSum<8>(square, shared) / static_cast<float>(dim) + args.eps);
  for (int i = tid; i < dim; i += 256) {
    x[i] = RoundToBFloat16(ToFloat(args.norm[i]) * (x[i] * r));
    scratch.latent[static_cast<std::int64_t>(t) * dim + i] = ToBFloat16(x[i]);  // the key is made from it before RoPE
  }
  __syncthreads();
  const std::int64_t position = j * args.slab.ratio;
  for (int i = tid; i < args.rope.dims / 2; i += 256) {
    float* pair = x + dim - args.rope.dims + 2 * i;
    const float2 turned = Turn(pair[0], pair[1], RopeAngle(args.rope, position, i));
    pair[0] = turned.x, pair[1] = turned.y;
  }
  __syncthreads();
  const HistoryEntry entry = EntryOf(args.slab, args.step.blocks + sequence.block_offset, j);
  for (int group = tid; group < dim / 16; group += 256) {
    const float* values = x + group * 16;
    float amax = 0;
    for (int i = 0; i < 16; ++i) amax = fmaxf(amax, fabsf(values[i]));
    const std::uint8_t code = Fp4KvScale(amax);
    const float scale = DecodeE4M3(code);
    entry.latent_scales[group] = code;
    for (int i = 0; i < 8; ++i) entry.latent[group * 8 + i] = PackFp4(values[2 * i], values[2 * i + 1], scale);
  }
}

// The inputs of the last rows of every sequence.
__global__ void InputRingKernel(CompressArgs args, CompressScratch scratch) {
  ptx::BeginKernel();
  const int t = static_cast<int>(blockIdx.x), dim = args.slab.latent_dim;
  const SequenceEntry& sequence = args.step.sequence_of(t);
  if (t - sequence.first_row < sequence.rows - args.input_ring.rows) return;
  auto* to = reinterpret_cast<float*>(RingRow(args.input_ring, sequence.slot, args.step.positions[t]));
  for (int i = static_cast<int>(threadIdx.x); i < dim; i += static_cast<int>(blockDim.x)) {
    to[i] = scratch.content[static_cast<std::int64_t>(t) * dim + i];
    to[dim + i] = scratch.gate[static_cast<std::int64_t>(t) * dim + i];
  }
}

__global__ void __launch_bounds__(128) KeyKernel(CompressArgs args, CompressScratch scratch) {
  ptx::BeginKernel();
  __shared__ float x[kDimMax];
  __shared__ float shared[4];
  const int t = static_cast<int>(blockIdx.x), dim = args.slab.index_dim, tid = static_cast<int>(threadIdx.x);
  const SequenceEntry& sequence = args.step.sequence_of(t);
  const std::int64_t j = FinishedEntry(args, sequence, args.step.positions[t]);
  if (j < 0) return;
  float square = 0;
  for (int i = tid; i < dim; i += 128) {
    x[i] = ToFloat(scratch.key[static_cast<std::int64_t>(t) * dim + i]);
    square += x[i] * x[i];
  }
  const float r = 1.0f / sqrtf(BlockSum<4>(square, shared) / static_cast<float>(dim) + args.eps);
  for (int i = tid; i < dim; i += 128) x[i] = RoundToBFloat16(ToFloat(args.index_norm[i]) * (x[i] * r));
  __syncthreads();
  for (int i = tid; i < args.rope.dims / 2; i += 128) {
    float* pair = x + dim - args.rope.dims + 2 * i;
    const float2 turned = Turn(pair[0], pair[1], RopeAngle(args.rope, j * args.slab.ratio, i));
    pair[0] = turned.x, pair[1] = turned.y;
  }
  __syncthreads();
  const HistoryEntry entry = EntryOf(args.slab, args.step.blocks + sequence.block_offset, j);
  for (int group = tid; group < dim / 32; group += 128) {
    const float* values = x + group * 32;
    float amax = 0;
    for (int i = 0; i < 32; ++i) amax = fmaxf(amax, fabsf(values[i]));
    const float scale = Fp4IndexScale(amax);
    entry.key_scales[group] = EncodeE8M0(scale);
    for (int i = 0; i < 16; ++i) entry.key[group * 16 + i] = PackFp4(values[2 * i], values[2 * i + 1], scale);
  }
}

}  // namespace

void CompressLatents(const CompressArgs& args, const CompressScratch& scratch, cudaStream_t stream) {
  const auto rows = static_cast<unsigned>(args.step.rows);
  LaunchKernel(LatentKernel, rows, 256, 0, stream, args, scratch);
  if (args.slab.ratio > 1) LaunchKernel(InputRingKernel, rows, 128, 0, stream, args, scratch);
}

void CompressKeys(const CompressArgs& args, const CompressScratch& scratch, cudaStream_t stream) {
  LaunchKernel(KeyKernel, static_cast<unsigned>(args.step.rows), 128, 0, stream, args, scratch);
}

}  // namespace galley::backend::cuda
