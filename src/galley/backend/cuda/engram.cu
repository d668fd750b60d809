// SPDX-License-Identifier: Apache-2.0
// Engram (2.10): n-gram row numbers, table rows, and their gated addition to the stream.
#include "galley/backend/cuda/kernels.h"
#include "galley/backend/cuda/launch.h"
#include "galley/backend/cuda/ptx/async_copy.cuh"
#include "galley/backend/cuda/step.cuh"

namespace galley::backend::cuda {
namespace {

constexpr int kNgramMax = 16, kLayersMax = 8;

struct HashViews {
  EngramHashView layer[kLayersMax];
};

// Compressed id at position `p` of the row's sequence: of the step when it holds that row, else from the ring.
__device__ std::int32_t IdAt(const EngramRowsArgs& args, const SequenceEntry& sequence, std::int64_t p) {
  if (p >= sequence.start) {
    const auto row = sequence.first_row + (p - sequence.start);
    const bool image = args.step.image_rows != nullptr && args.step.image_rows[row] != 0;
    return image ? -1 : args.compressed_ids[args.step.tokens[row]];
  }
  return *reinterpret_cast<const std::int32_t*>(RingRow(args.id_ring, sequence.slot, p));
}

__global__ void EngramRowsKernel(EngramRowsArgs args, HashViews hashes) {
  ptx::BeginKernel();
  const int t = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (t >= args.step.rows) return;
  const SequenceEntry& sequence = args.step.sequence_of(t);
  const std::int64_t p = args.step.positions[t];
  std::int64_t ids[kNgramMax];
  bool alive = true;
  for (int s = 0; s < args.max_ngram; ++s) {
    const std::int32_t id = alive && p >= s ? IdAt(args, sequence, p - s) : -1;
    alive = alive && id >= 0;
    ids[s] = alive ? id : args.pad;
  }
  const std::int64_t columns = static_cast<std::int64_t>(args.max_ngram - 1) * args.heads;
  for (int layer = 0; layer < args.layers; ++layer) {
    const EngramHashView& hash = hashes.layer[layer];
    std::int32_t* out = args.rows + (static_cast<std::int64_t>(layer) * args.step.rows + t) * columns;
    std::int64_t mixed = ids[0] * hash.multipliers[0];
    for (int s = 1, column = 0; s < args.max_ngram; ++s) {
      mixed ^= ids[s] * hash.multipliers[s];
      for (int head = 0; head < args.heads; ++head, ++column) {
        out[column] = static_cast<std::int32_t>(mixed % hash.primes[column] + hash.offsets[column]);
      }
    }
  }
}

// After the rows have been read: the ids of the last rows of every sequence.
__global__ void EngramIdsKernel(EngramRowsArgs args) {
  ptx::BeginKernel();
  const int t = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (t >= args.step.rows) return;
  const SequenceEntry& sequence = args.step.sequence_of(t);
  if (t - sequence.first_row < sequence.rows - args.id_ring.rows) return;
  const std::int64_t p = args.step.positions[t];
  *reinterpret_cast<std::int32_t*>(RingRow(args.id_ring, sequence.slot, p)) = IdAt(args, sequence, p);
}

__global__ void EngramGatherKernel(EngramGatherArgs args) {
  ptx::BeginKernel();
  const auto cell = static_cast<std::int64_t>(blockIdx.x);
  const std::int64_t row = args.row_numbers != nullptr ? args.row_numbers[cell] : cell;
  for (int i = static_cast<int>(threadIdx.x); i < args.dim; i += static_cast<int>(blockDim.x)) {
    const float scale = DecodeE8M0(args.scales[row * (args.dim / 32) + i / 32]);
    args.out[cell * args.dim + i] = ToBFloat16(DecodeE4M3(args.codes[row * args.dim + i]) * scale);
  }
}

// A block a (row, copy).
__global__ void EngramMixKernel(EngramMixArgs args, float inverse_root_dim) {
  ptx::BeginKernel();
  __shared__ float shared[8];
  const auto t = static_cast<std::int64_t>(blockIdx.x);
  const int copy = static_cast<int>(blockIdx.y), dim = args.dim;
  if (args.step.image_rows != nullptr && args.step.image_rows[t] != 0) return;  // gate 0
  BFloat16* stream = args.h + (t * args.copies + copy) * dim;
  const BFloat16* key = args.key_value + (t * (args.copies + 1) + copy) * dim;
  const BFloat16* value = args.key_value + (t * (args.copies + 1) + args.copies) * dim;
  float hh = 0, kk = 0, hk = 0;
  for (int i = static_cast<int>(threadIdx.x); i < dim; i += 256) {
    const float h = ToFloat(stream[i]), k = ToFloat(key[i]);
    const float weight = ToFloat(args.q_weight[copy * dim + i]) * ToFloat(args.k_weight[copy * dim + i]);
    hh += h * h;
    kk += k * k;
    hk += h * weight * k;
  }
  hh = BlockSum<8>(hh, shared);
  kk = BlockSum<8>(kk, shared);
  hk = BlockSum<8>(hk, shared);
  const float n = static_cast<float>(dim);
  const float r = 1.0f / sqrtf(hh / n + args.eps) * (1.0f / sqrtf(kk / n + args.eps));
  const float d = hk * r * inverse_root_dim;
  const float gate = SigmoidOf(copysignf(sqrtf(fmaxf(fabsf(d), 1e-6f)), d));
  for (int i = static_cast<int>(threadIdx.x); i < dim; i += 256) {
    stream[i] = ToBFloat16(ToFloat(stream[i]) + gate * ToFloat(value[i]));
  }
}

}  // namespace

void EngramRows(const EngramRowsArgs& args, cudaStream_t stream) {
  if (args.layers > kLayersMax || args.max_ngram > kNgramMax) return;  // refused by the backend before
  HashViews views{};
  for (int i = 0; i < args.layers; ++i) views.layer[i] = args.hashes[i];
  const auto blocks = static_cast<unsigned>((args.step.rows + 127) / 128);
  LaunchKernel(EngramRowsKernel, blocks, 128, 0, stream, args, views);
  LaunchKernel(EngramIdsKernel, blocks, 128, 0, stream, args);
}

void EngramGather(const EngramGatherArgs& args, cudaStream_t stream) {
  const std::int64_t cells = static_cast<std::int64_t>(args.rows) * args.columns;
  if (cells == 0) return;
  LaunchKernel(EngramGatherKernel, static_cast<unsigned>(cells), 128, 0, stream, args);
}

void EngramMix(const EngramMixArgs& args, cudaStream_t stream) {
  const float scale = static_cast<float>(1.0 / sqrt(static_cast<double>(args.dim)));
  LaunchKernel(EngramMixKernel, dim3(static_cast<unsigned>(args.step.rows), static_cast<unsigned>(args.copies)), 256, 0,
               stream, args, scale);
}

}  // namespace galley::backend::cuda
