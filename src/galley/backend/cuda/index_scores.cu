// SPDX-License-Identifier: Apache-2.0
// Scores of the indexer (2.8) for every row and entry that the row scores, and the best of every group of
// kScoreGroup entries. A block of threads takes a stretch of entries for one row, or for several of one sequence that
// share the keys: one warp copies keys of history blocks into a ring by bulk copies, two warpgroups decode them into
// registers, 64 keys by all heads a product. A row's score is the sum over heads in one fixed order, whatever the
// stretch and the rows beside it.
#include "galley/backend/cuda/kernels.h"
#include "galley/backend/cuda/launch.h"
#include "galley/backend/cuda/ptx/bulk_copy.cuh"
#include "galley/backend/cuda/ptx/mma.cuh"
#include "galley/backend/cuda/ptx/wgmma.cuh"
#include "galley/backend/cuda/step.cuh"

namespace galley::backend::cuda {
namespace {

constexpr int kWarps = 8, kThreads = (kWarps + 1) * 32;  // warps that multiply, and one that copies
constexpr int kStageKeys = kWarps * 16, kStages = 4;
constexpr int kCodeBytes = kIndexDim / 2, kScaleBytes = kIndexDim / 32;  // of a key
constexpr int kScalesAt = kStageKeys * kCodeBytes, kStageBytes = kScalesAt + kStageKeys * kScaleBytes;
constexpr int kSteps = kIndexDim / 16, kUnits = kIndexDim / 8;  // of K in a product; 16-byte pieces of a packed query

// Shared memory of a block of threads: the ring's stages, queries of `Columns` heads in cores of 8 columns (unit by
// unit of K, as IndexQueries packs them), barriers.
template <int Columns>
struct Ring {
  static constexpr int kQueriesAt = kStages * kStageBytes;
  static constexpr int kBarriersAt = kQueriesAt + Columns * kIndexDim * 2;
  static constexpr int kBytes = kBarriersAt + (2 * kStages + 1) * 8;
  std::uint32_t base;
  int stage = 0;
  std::uint32_t parity = 0;

  __device__ __forceinline__ std::uint32_t at(int offset) const { return base + static_cast<std::uint32_t>(offset); }
  __device__ __forceinline__ std::uint32_t data() const { return at(stage * kStageBytes); }
  __device__ __forceinline__ std::uint32_t full(int i) const { return at(kBarriersAt + 8 * i); }
  __device__ __forceinline__ std::uint32_t empty(int i) const { return full(kStages + i); }
  __device__ __forceinline__ std::uint32_t queries() const { return full(2 * kStages); }
  __device__ __forceinline__ void Init() const {
    if (threadIdx.x == 0) {
      for (int i = 0; i < kStages; ++i) {
        ptx::InitBarrier(full(i), 1);
        ptx::InitBarrier(empty(i), kWarps);
      }
      ptx::InitBarrier(queries(), 1);
      ptx::FenceBarriers();
    }
    __syncthreads();
  }
  __device__ __forceinline__ void Advance() {
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
};

// What a block of threads works on: entries [begin, end) of rows that follow each other and belong to one sequence.
struct Run {
  int row = 0, rows = 0;  // the first, counted from the block's first row
  int begin = 0, end = 0;
};

// Calls visit(run) for the runs among rows [first, first + rows) that have entries in [begin, limit).
template <typename Visit>
__device__ __forceinline__ void ForRuns(const IndexSelectArgs& args, const IndexScratch& scratch, int first, int rows,
                                        int begin, int limit, Visit&& visit) {
  for (int row = 0; row < rows;) {
    Run run{.row = row, .begin = begin};
    const int sequence = args.step.row_sequence[first + row];
    for (; row < rows && args.step.row_sequence[first + row] == sequence; ++row) {
      run.end = max(run.end, min(limit, scratch.counts[first + row]));
    }
    run.rows = row - run.row;
    if (run.end > begin) visit(run);
  }
}

// Where neighbouring keys of one piece of memory lie: `codes`, and `scales` behind them.
struct Piece {
  const std::uint8_t* codes = nullptr;
  const std::uint8_t* scales = nullptr;
};

// The copying warp's part of a run. A stage comes in pieces of `piece` keys, one a lane; addresses of 32 pieces are
// found at once, one batch ahead.
template <int Columns>
__device__ void CopyKeys(const IndexSelectArgs& args, int row, const Run& run, Ring<Columns>& ring) {
  const bool user = args.role == CandidateRole::kUser;
  const int lane = static_cast<int>(threadIdx.x) % 32, entries = args.slab.entries();
  const int piece = user ? args.candidate_block_size : min(entries, kStageKeys), per_stage = kStageKeys / piece;
  const std::int32_t* blocks = args.step.blocks + args.step.sequence_of(row).block_offset;
  const std::int32_t* candidates = args.candidates + static_cast<std::int64_t>(row) * args.candidate_blocks;
  const int count = (run.end + piece - 1) / piece;
  const auto find = [&](int i) -> Piece {
    if (i >= count) return {};
    const int entry = (user ? candidates[i] : i) * piece, in_block = entry & (entries - 1);
    const std::uint8_t* keys =
        reinterpret_cast<const std::uint8_t*>(args.slab.base) +
        static_cast<std::size_t>(blocks[entry / entries]) * args.slab.block_bytes() +
        static_cast<std::size_t>(entries) * (args.slab.latent_bytes() + args.slab.latent_scales());
    return {keys + in_block * kCodeBytes, keys + entries * kCodeBytes + in_block * kScaleBytes};
  };
  const int first = run.begin / piece;
  Piece now = find(first + lane), next = find(first + 32 + lane);
  for (int i = first, in_batch = 0; i < count; i += per_stage, in_batch += per_stage) {
    if (in_batch == 32) in_batch = 0, now = next, next = find(i + 32 + lane);
    const Piece mine = {reinterpret_cast<const std::uint8_t*>(
                            __shfl_sync(kFullWarp, reinterpret_cast<unsigned long long>(now.codes), in_batch + lane)),
                        reinterpret_cast<const std::uint8_t*>(
                            __shfl_sync(kFullWarp, reinterpret_cast<unsigned long long>(now.scales), in_batch + lane))};
    ptx::WaitPhase(ring.empty(ring.stage), ring.parity ^ 1);
    const int here = min(per_stage, count - i);
    const std::uint32_t barrier = ring.full(ring.stage);
    if (lane == 0) ptx::ArriveAndExpect(barrier, here * piece * (kCodeBytes + kScaleBytes));
    __syncwarp();
    if (lane < here) {
      ptx::CopyBulk(ring.data() + static_cast<std::uint32_t>(lane * piece * kCodeBytes), mine.codes, piece * kCodeBytes,
                    barrier);
      ptx::CopyBulk(ring.data() + static_cast<std::uint32_t>(kScalesAt + lane * piece * kScaleBytes), mine.scales,
                    piece * kScaleBytes, barrier);
    }
    ring.Advance();
  }
}

__device__ __forceinline__ uint4 LoadShared16(std::uint32_t at) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at));
  return v;
}
__device__ __forceinline__ std::uint32_t LoadShared1(std::uint32_t at) {
  std::uint32_t v;
  asm volatile("ld.shared.u8 %0, [%1];" : "=r"(v) : "r"(at));
  return v;
}

// 16 keys of a warp, those of lane / 4 and of lane / 4 + 8, as rows of a product's operand. A lane decodes one group of
// a key's values, its steps of K being the pairs that the group's words give.
__device__ __forceinline__ void DecodeKeys(const uint4 (&codes)[2], const std::uint32_t (&scale)[2],
                                           std::uint32_t (&a)[kSteps][4]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const std::uint32_t words[4] = {codes[half].x, codes[half].y, codes[half].z, codes[half].w};
    const std::uint32_t factor = ScalePair<kFp4Shift>(scale[half]);
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      std::uint32_t pairs[4];
      DecodeFp4x8(words[w], factor, pairs);
#pragma unroll
      for (int i = 0; i < 4; ++i) a[2 * w + i / 2][i % 2 * 2 + half] = pairs[i];
    }
  }
}

// sum[keys of a warpgroup][Columns] = keys times queries, which lie at `queries` and are described by `descriptor`.
template <int Columns>
__device__ __forceinline__ void MultiplyKeys(const std::uint32_t (&a)[kSteps][4], std::uint32_t queries,
                                             std::uint64_t descriptor, float (&sum)[Columns / 2]) {
  constexpr std::uint32_t kUnitBytes = Columns * 16;
#pragma unroll
  for (float& value : sum) value = 0;
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  ptx::WarpgroupFence();
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
    ptx::Wgmma<Columns>::Add(sum, a[s], descriptor + static_cast<std::uint32_t>(2 * s) * (kUnitBytes >> 4));
  }
  ptx::WarpgroupCommit();
  ptx::WarpgroupWait<0>();
#else
  const std::uint32_t lane = threadIdx.x % 32;
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
#pragma unroll
    for (int n = 0; n < Columns / 8; ++n) {
      std::uint32_t b[2];
      const std::uint32_t at = queries + static_cast<std::uint32_t>(2 * s) * kUnitBytes +
                               static_cast<std::uint32_t>(n * 128) + lane / 4 * 16 + lane % 4 * 4;
      asm volatile("ld.shared.u32 %0, [%1];" : "=r"(b[0]) : "r"(at));
      asm volatile("ld.shared.u32 %0, [%1];" : "=r"(b[1]) : "r"(at + kUnitBytes));
      ptx::Mma16x8x16(reinterpret_cast<float(&)[4]>(sum[4 * n]), a[s], b[0], b[1]);
    }
  }
#endif
}

// Sum over heads of one row for keys lane / 4 (even lanes) and lane / 4 + 8 (odd lanes) of the warp: `products` are
// those of Padded heads, `weight` half of the weights of this lane's heads, 8 b + 2 (lane % 4) and the next.
template <int Padded>
__device__ __forceinline__ float SumHeads(const float* products, const float* weight) {
  // Twice the positive part, without the units that decoding needs; NaN stays NaN.
  const auto relu = [](float x) { return x + fabsf(x); };
  float low = 0, high = 0;
#pragma unroll
  for (int b = 0; b < Padded / 8; ++b) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      low = fmaf(relu(products[4 * b + i]), weight[2 * b + i], low);
      high = fmaf(relu(products[4 * b + 2 + i]), weight[2 * b + i], high);
    }
  }
  const bool odd = threadIdx.x % 2 != 0;
  float sum = odd ? high : low;
  sum += __shfl_xor_sync(kFullWarp, odd ? low : high, 1);
  sum += __shfl_xor_sync(kFullWarp, sum, 2);
  return isnan(sum) ? -INFINITY : sum;
}

// A multiplying warp's part of a run.
template <int Padded, int Rows>
__device__ void ScoreKeys(const IndexScratch& scratch, int first, int local, const Run& run,
                          const float (&weight)[Rows][Padded / 4], Ring<Padded * Rows>& ring) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  int counts[Rows] = {};
#pragma unroll
  for (int r = 0; r < Rows; ++r) {
    if (r >= run.row && r < run.row + run.rows) counts[r] = min(run.end, scratch.counts[first + r]);
  }
  const int quad = lane / 4, in_stage = warp * 16 + quad;
  const auto codes_at = static_cast<std::uint32_t>(in_stage * kCodeBytes + lane % 4 * 16),
             scale_at = static_cast<std::uint32_t>(kScalesAt + in_stage * kScaleBytes + lane % 4);
  const int key = warp * 16 + quad + lane % 2 * 8;  // whose sum this lane gets
  float* scores = scratch.scores + local * scratch.score_stride + key;
  float* best = scratch.best + local * scratch.best_stride + key / kScoreGroup;
  const std::uint32_t queries = ring.at(Ring<Padded * Rows>::kQueriesAt);
  const std::uint64_t descriptor = ptx::CoreDescriptor(queries, Padded * Rows * 16);
  for (int i = run.begin; i < run.end; i += kStageKeys) {
    ptx::WaitPhase(ring.full(ring.stage), ring.parity);
    const std::uint32_t data = ring.data();
    const uint4 codes[2] = {LoadShared16(data + codes_at), LoadShared16(data + codes_at + 8 * kCodeBytes)};
    const std::uint32_t scale[2] = {LoadShared1(data + scale_at), LoadShared1(data + scale_at + 8 * kScaleBytes)};
    std::uint32_t a[kSteps][4];
    DecodeKeys(codes, scale, a);
    __syncwarp();
    if (lane == 0) ptx::Arrive(ring.empty(ring.stage));
    ring.Advance();
    float products[Padded * Rows / 2];
    MultiplyKeys<Padded * Rows>(a, queries, descriptor, products);
#pragma unroll
    for (int r = 0; r < Rows; ++r) {
      const float sum = SumHeads<Padded>(products + r * Padded / 2, weight[r]);
      const bool inside = i + key < counts[r];
      float largest = inside ? sum : -INFINITY;
#pragma unroll
      for (int step = 4; step < 32; step <<= 1) largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, step));
      if (inside && lane % 4 < 2) scores[r * scratch.score_stride + i] = sum;
      if (inside && lane < 2) best[r * scratch.best_stride + static_cast<unsigned>(i) / kScoreGroup] = largest;
    }
  }
}

template <int Padded, int Rows>
__global__ void __launch_bounds__(kThreads, Padded* Rows <= 32 ? 2 : 1)
    ScoreKernel(IndexSelectArgs args, IndexScratch scratch, int begin_row, int rows, int keys_per_block) {
  extern __shared__ __align__(128) std::uint8_t bytes[];
  constexpr int kColumns = Padded * Rows;
  Ring<kColumns> ring{.base = ptx::SharedAddress(bytes)};
  ring.Init();
  ptx::BeginKernel();
  const int local = static_cast<int>(blockIdx.y) * Rows, first = begin_row + local, here = min(Rows, rows - local);
  const int begin = static_cast<int>(blockIdx.x) * keys_per_block, limit = begin + keys_per_block;
  if (threadIdx.x >= kWarps * 32) {
    bool begun = false;
    ForRuns(args, scratch, first, here, begin, limit, [&](const Run& run) {
      if (!begun) {
        begun = true;
        const int lane = static_cast<int>(threadIdx.x) % 32;
        if (lane == 0) ptx::ArriveAndExpect(ring.queries(), here * Padded * kIndexDim * 2);
        __syncwarp();
        // Units of the rows alternate, so that they are columns of one product.
        for (int i = lane; i < kUnits * here; i += 32) {
          const int r = i / kUnits, unit = i % kUnits;
          ptx::CopyBulk(ring.at(Ring<kColumns>::kQueriesAt + (unit * Rows + r) * Padded * 16),
                        scratch.query + (static_cast<std::int64_t>(first + r) * kUnits + unit) * Padded * 8,
                        Padded * 16, ring.queries());
        }
      }
      CopyKeys(args, first + run.row, run, ring);
    });
    return;
  }
  float weight[Rows][Padded / 4];
  bool begun = false;
  ForRuns(args, scratch, first, here, begin, limit, [&](const Run& run) {
    if (!begun) {
      begun = true;
#pragma unroll
      for (int r = 0; r < Rows; ++r) {
#pragma unroll
        for (int h = 0; h < Padded / 4; ++h) {
          const int head = h / 2 * 8 + static_cast<int>(threadIdx.x) % 4 * 2 + h % 2;
          weight[r][h] = r < here ? scratch.weight[static_cast<std::int64_t>(first + r) * Padded + head] * 0.5f : 0.0f;
        }
      }
      ptx::WaitPhase(ring.queries(), 0);
    }
    ScoreKeys<Padded, Rows>(scratch, first, local, run, weight, ring);
  });
}

template <int Padded, int Rows>
void Launch(const IndexSelectArgs& args, const IndexScratch& scratch, int first, int rows, cudaStream_t stream) {
  const auto kernel = ScoreKernel<Padded, Rows>;
  constexpr int kBytes = Ring<Padded * Rows>::kBytes;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  // Long stretches, but so many that they fill the device some times over.
  const int groups = (rows + Rows - 1) / Rows;
  std::int64_t keys = kStageKeys;
  while (keys < 8192 && scratch.score_stride / (2 * keys) * groups >= 1024) keys *= 2;
  LaunchKernel(kernel,
               dim3(static_cast<unsigned>((scratch.score_stride + keys - 1) / keys), static_cast<unsigned>(groups)),
               kThreads, kBytes, stream, args, scratch, first, rows, static_cast<int>(keys));
}

}  // namespace

void IndexScores(const IndexSelectArgs& args, const IndexScratch& scratch, int first, int rows, cudaStream_t stream) {
  // Rows of one sequence share keys, but not those of candidate blocks, which are a row's own.
  const bool together = args.role != CandidateRole::kUser && rows > args.step.sequences;
  if (PaddedIndexHeads(args.heads) == 32) {
    together ? Launch<32, 4>(args, scratch, first, rows, stream) : Launch<32, 1>(args, scratch, first, rows, stream);
  } else {
    together ? Launch<64, 2>(args, scratch, first, rows, stream) : Launch<64, 1>(args, scratch, first, rows, stream);
  }
}

}  // namespace galley::backend::cuda
