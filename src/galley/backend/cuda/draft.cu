// SPDX-License-Identifier: Apache-2.0
// The Markov chain of a draft block (2.12): embeddings of the tokens before a row, confidences, and the draw with the
// rule of backend/sampling.h in double precision, as the host does it.
#include <cfloat>

#include "galley/backend/cuda/kernels.h"
#include "galley/backend/cuda/launch.h"
#include "galley/backend/cuda/numbers.cuh"
#include "galley/backend/cuda/ptx/async_copy.cuh"
#include "galley/base/rng.h"

namespace galley::backend::cuda {
namespace {

constexpr int kThreads = 1024;

__device__ std::int32_t TokenBefore(const DraftStepArgs& args, int sequence) {
  return args.row == 0 ? args.first_tokens[sequence] : args.tokens[sequence * args.block + args.row - 1];
}

// A block a sequence: the embedding, and the confidence of [x ; embedding].
__global__ void __launch_bounds__(256) EmbedKernel(DraftStepArgs args) {
  ptx::BeginKernel();
  __shared__ float shared[8];
  const int s = static_cast<int>(blockIdx.x);
  const std::int64_t row = static_cast<std::int64_t>(s) * args.block + args.row;
  const BFloat16* from = args.embed + static_cast<std::int64_t>(TokenBefore(args, s)) * args.rank;
  float sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < args.rank; i += 256) {
    args.embedding[static_cast<std::int64_t>(s) * args.rank + i] = from[i];
    sum += ToFloat(from[i]) * ToFloat(args.confidence[args.dim + i]);
  }
  for (int i = static_cast<int>(threadIdx.x); i < args.dim; i += 256) {
    sum += ToFloat(args.x[row * args.dim + i]) * ToFloat(args.confidence[i]);
  }
  sum = BlockSum<8>(sum, shared);
  if (threadIdx.x == 0) args.confidences[row] = sum;
}

// Exponential noise of a token, as SampleNoise.
__device__ double NoiseOf(std::uint64_t seed, std::int64_t position, std::uint32_t token) {
  const auto words = Philox4x32({token / 4, static_cast<std::uint32_t>(position),
                                 static_cast<std::uint32_t>(static_cast<std::uint64_t>(position) >> 32), 0},
                                {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
  const double uniform = (static_cast<double>(words[token % 4]) + 0.5) * 0x1p-32;
  return -log1p(-uniform);
}

struct Best {
  double value;
  int token;
};
// The larger value; equal ones by lower token. A token of -1 is nothing.
__device__ Best Better(Best a, Best b) {
  if (a.token < 0) return b;
  if (b.token < 0) return a;
  return b.value > a.value || (b.value == a.value && b.token < a.token) ? b : a;
}
__device__ Best BlockBest(Best mine, Best* shared) {
#pragma unroll
  for (int step = 16; step > 0; step >>= 1) {
    mine = Better(mine, {__shfl_xor_sync(kFullWarp, mine.value, step), __shfl_xor_sync(kFullWarp, mine.token, step)});
  }
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = mine;
  __syncthreads();
  Best best = shared[0];
  for (int w = 1; w < kThreads / 32; ++w) best = Better(best, shared[w]);
  __syncthreads();
  return best;
}
__device__ double BlockTotal(double x, double* shared) {
#pragma unroll
  for (int step = 16; step > 0; step >>= 1) x += __shfl_xor_sync(kFullWarp, x, step);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
  __syncthreads();
  double sum = 0;
  for (int w = 0; w < kThreads / 32; ++w) sum += shared[w];
  __syncthreads();
  return sum;
}

__device__ __forceinline__ std::uint32_t OrderOf(float x) {
  const std::uint32_t bits = __float_as_uint(x + 0.0f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

struct DrawShared {
  Best best[kThreads / 32];
  double total[kThreads / 32];
};

__global__ void __launch_bounds__(kThreads) DrawKernel(DraftStepArgs args) {
  ptx::BeginKernel();
  __shared__ DrawShared shared;
  const int s = static_cast<int>(blockIdx.x), tid = static_cast<int>(threadIdx.x);
  const std::int64_t row = static_cast<std::int64_t>(s) * args.block + args.row;
  float* logits = args.logits + row * args.vocab;
  const float* bias = args.bias + static_cast<std::int64_t>(s) * args.vocab;
  const SampleParams params = args.params[s];
  Best best{-INFINITY, -1};
  for (int v = tid; v < args.vocab; v += kThreads) {
    const float logit = logits[v] + bias[v];
    logits[v] = logit;
    if (logit > -INFINITY) best = Better(best, {static_cast<double>(logit), v});
  }
  best = BlockBest(best, shared.best);
  int drawn = best.token < 0 ? 0 : best.token;  // a row without a usable logit drafts token 0
  if (best.token >= 0 && params.temperature > 0.0f && !isinf(best.value)) {
    const double largest = best.value, temperature = static_cast<double>(params.temperature);
    const auto weight_of = [&](int v) {
      const double weight = exp((static_cast<double>(logits[v]) - largest) / temperature);
      return weight > 0 && weight >= static_cast<double>(params.min_p) ? weight : 0.0;
    };
    // Count or mass of the tokens that come before the border (key, id): larger logits, and equal ones of lower id.
    const auto measure = [&](std::uint32_t key, int id, bool mass) {
      double sum = 0;
      for (int v = tid; v < args.vocab; v += kThreads) {
        const double weight = weight_of(v);
        if (weight == 0) continue;
        const std::uint32_t mine = OrderOf(logits[v]);
        if (mine > key || (mine == key && v < id)) sum += mass ? weight : 1.0;
      }
      return BlockTotal(sum, shared.total);
    };
    // The largest prefix whose measure before its last token is below `limit`: the token that crosses it stays.
    const auto cut = [&](bool mass, double limit, std::uint32_t& key, int& id) {
      std::uint32_t low = 0, high = 0xFFFFFFFFu;  // smallest key for which what lies above it is below the limit
      while (low < high) {
        const std::uint32_t middle = low + (high - low) / 2;
        if (measure(middle, 0, mass) < limit) {
          high = middle;
        } else {
          low = middle + 1;
        }
      }
      int id_low = 0, id_high = args.vocab;  // largest count of ids among equals: the last one still begins below it
      while (id_low < id_high) {
        const int middle = id_low + (id_high - id_low + 1) / 2;
        if (measure(low, middle - 1, mass) < limit) {
          id_low = middle;
        } else {
          id_high = middle - 1;
        }
      }
      key = low, id = id_low;
    };
    std::uint32_t key = 0;
    int id = args.vocab;
    if (params.top_k > 0 && params.top_k < args.vocab) cut(false, static_cast<double>(params.top_k), key, id);
    if (params.top_p < 1.0f) {
      const double total = measure(key, id, true);
      std::uint32_t p_key = 0;
      int p_id = args.vocab;
      cut(true, fmax(static_cast<double>(params.top_p) * total, DBL_MIN), p_key, p_id);
      if (p_key > key || (p_key == key && p_id < id)) key = p_key, id = p_id;
    }
    Best winner{-1, -1};
    for (int v = tid; v < args.vocab; v += kThreads) {
      const double weight = weight_of(v);
      const std::uint32_t mine = OrderOf(logits[v]);
      if (weight == 0 || mine < key || (mine == key && v >= id)) continue;
      winner =
          Better(winner, {weight / NoiseOf(params.seed, params.position + args.row, static_cast<std::uint32_t>(v)), v});
    }
    winner = BlockBest(winner, shared.best);
    if (winner.token >= 0) drawn = winner.token;
  }
  if (tid == 0) args.tokens[row] = drawn;
}

}  // namespace

void DraftEmbed(const DraftStepArgs& args, cudaStream_t stream) {
  LaunchKernel(EmbedKernel, static_cast<unsigned>(args.sequences), 256, 0, stream, args);
}

void DraftDraw(const DraftStepArgs& args, cudaStream_t stream) {
  LaunchKernel(DrawKernel, static_cast<unsigned>(args.sequences), kThreads, 0, stream, args);
}

}  // namespace galley::backend::cuda
