// SPDX-License-Identifier: Apache-2.0
// The Markov chain of a draft block (2.12): embeddings of the tokens before a row and confidences. Its draws are with
// the others (draw.cu).
#include "galley/backend/cuda/kernels.h"
#include "galley/backend/cuda/launch.h"
#include "galley/backend/cuda/numbers.cuh"
#include "galley/backend/cuda/ptx/async_copy.cuh"

namespace galley::backend::cuda {
namespace {

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

}  // namespace

void DraftEmbed(const DraftStepArgs& args, cudaStream_t stream) {
  LaunchKernel(EmbedKernel, static_cast<unsigned>(args.sequences), 256, 0, stream, args);
}

}  // namespace galley::backend::cuda
