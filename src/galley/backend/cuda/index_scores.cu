// SPDX-License-Identifier: Apache-2.0
// Scores of the indexer (2.8) for every row and entry that the row scores, and the best of every group of
// kScoreGroup entries. A block of threads takes a stretch of entries for one row, or for several of one sequence that
// share the keys: one warp copies keys of history blocks into a ring by bulk copies, two warpgroups take its stages in
// turn and decode them into registers, 64 keys by all heads a product. A row's score is the sum over heads in one fixed
// order, whatever the stretch and the rows beside it.
#include "galley/backend/cuda/kernels.h"
#include "galley/backend/cuda/launch.h"
#include "galley/backend/cuda/ptx/bulk_copy.cuh"
#include "galley/backend/cuda/ptx/mma.cuh"
#include "galley/backend/cuda/ptx/wgmma.cuh"
#include "galley/backend/cuda/step.cuh"

namespace galley::backend::cuda {
namespace {

constexpr int kWarps = 8, kThreads = (kWarps + 1) * 32;         // warps that multiply, and one that copies
constexpr int kGroupWarps = 4, kGroups = kWarps / kGroupWarps;  // of a warpgroup; warpgroups
constexpr int kProductKeys = kGroupWarps * 16, kStageKeys = 2 * kProductKeys, kStages = 4;
static_assert(kGroups == 2 && kStages % kGroups == 0, "warpgroups take stages in turn, each always the same ones");
constexpr int kCodeBytes = kIndexDim / 2, kScaleBytes = kIndexDim / 32;  // of a key
constexpr int kScalesAt = kStageKeys * kCodeBytes, kStageBytes = kScalesAt + kStageKeys * kScaleBytes;
constexpr int kStretchMax = 8192;  // keys of a block of threads
constexpr int kHalfSteps = kIndexDim / 32,
              kUnits = kIndexDim / 8;  // of K in a product; 16-byte pieces of a packed query

// Shared memory of a block of threads: the ring's stages, queries of `Columns` heads in cores of 8 columns (unit by
// unit of K, as IndexQueries packs them), barriers.
template <int Columns>
struct Ring {
  static constexpr int kQueriesAt = kStages * kStageBytes;
  static constexpr int kBarriersAt = kQueriesAt + Columns * kIndexDim * 2;
  static constexpr int kBytes = kBarriersAt + (2 * kStages + 1) * 8;
  std::uint8_t* bytes;
  int stage = 0;
  std::uint32_t parity = 0;

  __device__ __forceinline__ std::uint32_t at(int offset) const {
    return ptx::SharedAddress(bytes) + static_cast<std::uint32_t>(offset);
  }
  __device__ __forceinline__ std::uint32_t data() const { return at(stage * kStageBytes); }
  __device__ __forceinline__ std::uint32_t full(int i) const { return at(kBarriersAt + 8 * i); }
  __device__ __forceinline__ std::uint32_t empty(int i) const { return full(kStages + i); }
  __device__ __forceinline__ std::uint32_t queries() const { return full(2 * kStages); }
  // `copying`: threads that announce what comes into a stage.
  __device__ __forceinline__ void Init(int copying) const {
    if (threadIdx.x == 0) {
      for (int i = 0; i < kStages; ++i) {
        ptx::InitBarrier(full(i), copying);
        ptx::InitBarrier(empty(i), kGroupWarps);
      }
      ptx::InitBarrier(queries(), 1);
      ptx::FenceBarriers();
    }
    __syncthreads();
  }
  __device__ __forceinline__ void Advance(int stages) {
    stage += stages;
    if (stage >= kStages) stage -= kStages, parity ^= 1;
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

// Codes of the first index key of a history block; those of the others follow, then all scales.
__device__ __forceinline__ const std::uint8_t* KeysOf(const HistorySlab& slab, std::int32_t block) {
  return reinterpret_cast<const std::uint8_t*>(slab.base) + static_cast<std::size_t>(block) * slab.block_bytes() +
         static_cast<std::size_t>(slab.entries()) * (slab.latent_bytes() + slab.latent_scales());
}

// The copying warp's part of a run of all visible entries: the keys of whole history blocks, one a lane.
template <int Columns>
__device__ void CopyBlocks(const IndexSelectArgs& args, int row, const Run& run, Ring<Columns>& ring) {
  const int lane = static_cast<int>(threadIdx.x) % 32, entries = args.slab.entries(), per_stage = kStageKeys / entries;
  const std::int32_t* blocks = args.step.blocks + args.step.sequence_of(row).block_offset;
  const int first = run.begin / entries, count = (run.end + entries - 1) / entries;
  // Ids of 32 blocks are loaded at once, a batch ahead.
  const auto load = [&](int i) { return i < count ? blocks[i] : 0; };
  std::int32_t now = load(first + lane), next = load(first + 32 + lane);
  for (int i = first, in_batch = 0; i < count; i += per_stage, in_batch += per_stage) {
    if (in_batch == 32) in_batch = 0, now = next, next = load(i + 32 + lane);
    const std::uint8_t* keys = KeysOf(args.slab, __shfl_sync(kFullWarp, now, in_batch + lane));
    ptx::WaitPhase(ring.empty(ring.stage), ring.parity ^ 1);
    const int here = min(per_stage, count - i);
    const std::uint32_t barrier = ring.full(ring.stage);
    if (lane == 0) ptx::ArriveAndExpect(barrier, here * entries * (kCodeBytes + kScaleBytes));
    __syncwarp();
    if (lane < here) {
      ptx::CopyBulk(ring.data() + static_cast<std::uint32_t>(lane * entries * kCodeBytes), keys, entries * kCodeBytes,
                    barrier);
      ptx::CopyBulk(ring.data() + static_cast<std::uint32_t>(kScalesAt + lane * entries * kScaleBytes),
                    keys + entries * kCodeBytes, entries * kScaleBytes, barrier);
    }
    ring.Advance(1);
  }
}

// The same of a row's candidate blocks, whose keys are too few for bulk copies, which cost the same however small they
// are: a lane copies 16 bytes at a time.
template <int Columns>
__device__ void CopyCandidates(const IndexSelectArgs& args, int row, const Run& run, Ring<Columns>& ring) {
  constexpr int kPerStage = kStageKeys / kScoreGroup;
  static_assert(kScoreGroup * kCodeBytes == 32 * 16 && kPerStage * kScoreGroup * kScaleBytes == 32 * 16);
  const int lane = static_cast<int>(threadIdx.x) % 32, entries = args.slab.entries();
  const std::int32_t* blocks = args.step.blocks + args.step.sequence_of(row).block_offset;
  const std::int32_t* candidates = args.candidates + static_cast<std::int64_t>(row) * args.candidate_blocks;
  const int first = run.begin / kScoreGroup, count = (run.end + kScoreGroup - 1) / kScoreGroup;
  const auto shift = static_cast<unsigned>(31 - __clz(entries));  // entries of a block are a power of two
  // Candidates are loaded two batches of 32 ahead, their history blocks one.
  const auto load = [&](int i) { return i < count ? candidates[i] * kScoreGroup : 0; };
  std::int32_t entry = load(first + lane), next_entry = load(first + 32 + lane), block = blocks[entry >> shift];
  for (int batch = first; batch < count; batch += 32) {
    const std::int32_t far_entry = load(batch + 64 + lane), next_block = blocks[next_entry >> shift];
    const int in_block = entry & (entries - 1);
    const std::uint8_t* keys = KeysOf(args.slab, block);
    const auto codes = reinterpret_cast<unsigned long long>(keys + in_block * kCodeBytes),
               scales = reinterpret_cast<unsigned long long>(keys + entries * kCodeBytes + in_block * kScaleBytes);
    for (int i = 0; i < min(32, count - batch); i += kPerStage) {
      ptx::WaitPhase(ring.empty(ring.stage), ring.parity ^ 1);
      std::uint8_t* to = ring.bytes + ring.stage * kStageBytes + lane * 16;
      const int here = min(kPerStage, count - batch - i);
#pragma unroll
      for (int c = 0; c < kPerStage; ++c) {
        const auto* from = reinterpret_cast<const std::uint8_t*>(__shfl_sync(kFullWarp, codes, i + c)) + lane * 16;
        if (c < here) ptx::CopyAsync16(to + c * 32 * 16, from, true);
      }
      const auto* from =
          reinterpret_cast<const std::uint8_t*>(__shfl_sync(kFullWarp, scales, i + lane / 2)) + lane % 2 * 16;
      if (lane / 2 < here) ptx::CopyAsync16(to + kScalesAt, from, true);
      ptx::ArriveAfterCopies(ring.full(ring.stage));
      ring.Advance(1);
    }
    entry = next_entry, next_entry = far_entry, block = next_block;
  }
}

// Half of 16 keys' values, those of keys lane / 4 and lane / 4 + 8 of the warp, as rows of a product's operand. A lane
// decodes one group of a key's values, its steps of K being the pairs that the group's words give.
template <int Half>
__device__ __forceinline__ void DecodeHalf(const uint4 (&codes)[2], const std::uint32_t (&scale)[2],
                                           std::uint32_t (&a)[kHalfSteps][4]) {
#pragma unroll
  for (int key = 0; key < 2; ++key) {
    const std::uint32_t words[2] = {Half == 0 ? codes[key].x : codes[key].z, Half == 0 ? codes[key].y : codes[key].w};
    const std::uint32_t factor = ScalePair<kFp4Shift>(scale[key]);
#pragma unroll
    for (int w = 0; w < 2; ++w) {
      std::uint32_t pairs[4];
      DecodeFp4x8(words[w], factor, pairs);
#pragma unroll
      for (int i = 0; i < 4; ++i) a[2 * w + i / 2][i % 2 * 2 + key] = pairs[i];
    }
  }
}

// Begins sum[keys of a warpgroup][Columns] += half of the keys' values times queries, which lie at `queries` and are
// described by `descriptor`.
template <int Columns, int Half>
__device__ __forceinline__ void MultiplyHalf(const std::uint32_t (&a)[kHalfSteps][4], std::uint32_t queries,
                                             std::uint64_t descriptor, float (&sum)[Columns / 2]) {
  constexpr std::uint32_t kStepBytes = 2 * Columns * 16, kFirst = Half * kHalfSteps;
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  ptx::WarpgroupFence();
#pragma unroll
  for (std::uint32_t s = 0; s < kHalfSteps; ++s) {
    ptx::Wgmma<Columns>::Add(sum, a[s], descriptor + (kFirst + s) * (kStepBytes >> 4));
  }
  ptx::WarpgroupCommit();
#else
  const std::uint32_t lane = threadIdx.x % 32, at = queries + lane / 4 * 16 + lane % 4 * 4;
#pragma unroll
  for (std::uint32_t s = 0; s < kHalfSteps; ++s) {
#pragma unroll
    for (std::uint32_t n = 0; n < Columns / 8; ++n) {
      const std::uint32_t core = at + (kFirst + s) * kStepBytes + n * 128;
      ptx::Mma16x8x16(reinterpret_cast<float(&)[4]>(sum[4 * n]), a[s], ptx::LoadShared4(core),
                      ptx::LoadShared4(core + kStepBytes / 2));
    }
  }
#endif
}
// Until at most `Pending` of the products that were begun last are not done.
template <int Pending>
__device__ __forceinline__ void WaitForProducts() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  ptx::WarpgroupWait<Pending>();
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

// A multiplying warp's part of a run, of which its warpgroup takes stages `turn`, turn + kGroups, …: the two are not
// in step, so that one decodes while the other multiplies.
template <int Padded, int Rows>
__device__ void ScoreKeys(const IndexScratch& scratch, int first, int local, const Run& run, int turn,
                          const float (&weight)[Rows][Padded / 4], Ring<Padded * Rows>& ring) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32 % kGroupWarps;
  int counts[Rows] = {};
#pragma unroll
  for (int r = 0; r < Rows; ++r) {
    if constexpr (Rows == 1) {
      counts[r] = run.end;  // the same without another load
    } else if (r >= run.row && r < run.row + run.rows) {
      counts[r] = min(run.end, scratch.counts[first + r]);
    }
  }
  constexpr int kColumns = Padded * Rows;
  const auto group = static_cast<std::uint32_t>(warp * 16 * kScaleBytes + lane);  // of values that this lane decodes
  const int key = warp * 16 + lane / 4 + lane % 2 * 8;                            // whose sum this lane gets
  float* scores = scratch.scores + local * scratch.score_stride + key;
  float* best = scratch.best + local * scratch.best_stride + key / kScoreGroup;
  const std::uint32_t queries = ring.at(Ring<kColumns>::kQueriesAt);
  const std::uint64_t descriptor = ptx::CoreDescriptor(queries, kColumns * 16);
  uint4 codes[2];
  std::uint32_t scale[2], a[2][kHalfSteps][4];
  // Loads the first or the second 64 keys of the stage, of which the first are waited for.
  const auto load = [&](bool second) {
    if (!second) ptx::WaitPhase(ring.full(ring.stage), ring.parity);
    const std::uint32_t codes_at = ring.data() + (second ? kProductKeys * kCodeBytes : 0) + group * 16,
                        scale_at = ring.data() + kScalesAt + (second ? kProductKeys * kScaleBytes : 0) + group;
    codes[0] = ptx::LoadShared16(codes_at), codes[1] = ptx::LoadShared16(codes_at + 8 * kCodeBytes);
    scale[0] = ptx::LoadShared1(scale_at), scale[1] = ptx::LoadShared1(scale_at + 8 * kScaleBytes);
  };
  const auto release = [&] {
    __syncwarp();
    if (lane == 0) ptx::Arrive(ring.empty(ring.stage));
    ring.Advance(kGroups);
  };
  const auto sum_heads = [&](int i, const float(&products)[kColumns / 2]) {
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
  };
  constexpr int kTurnKeys = kGroups * kStageKeys;
  const int begin = run.begin + turn * kStageKeys;
  if (begin >= run.end) return;
  if constexpr (Rows == 1) {
    for (int i = begin; i < run.end; i += kTurnKeys) {
#pragma unroll
      for (int p = 0; p < 2; ++p) {
        float products[kColumns / 2] = {};
        load(p == 1);
        if (p == 1) release();
        DecodeHalf<0>(codes, scale, a[0]), DecodeHalf<1>(codes, scale, a[1]);
        MultiplyHalf<kColumns, 0>(a[0], queries, descriptor, products);
        MultiplyHalf<kColumns, 1>(a[1], queries, descriptor, products);
        WaitForProducts<0>();
        sum_heads(i + p * kProductKeys, products);
      }
    }
  } else {
    // Products of several rows take long enough to decode the first half of the next keys beside those of the second.
    load(false);
    DecodeHalf<0>(codes, scale, a[0]);
    for (int i = begin; i < run.end; i += kTurnKeys) {
#pragma unroll 1
      for (int p = 0; p < 2; ++p) {
        const bool first_product = p == 0;
        float products[kColumns / 2] = {};
        MultiplyHalf<kColumns, 0>(a[0], queries, descriptor, products);
        DecodeHalf<1>(codes, scale, a[1]);
        MultiplyHalf<kColumns, 1>(a[1], queries, descriptor, products);
        if (first_product || i + kTurnKeys < run.end) load(first_product);
        WaitForProducts<1>();
        DecodeHalf<0>(codes, scale, a[0]);
        if (first_product) release();
        WaitForProducts<0>();
        sum_heads(i + p * kProductKeys, products);
      }
    }
  }
}

template <int Padded, int Rows>
__global__ void __launch_bounds__(kThreads, Padded* Rows <= 32 ? 2 : 1)
    ScoreKernel(IndexSelectArgs args, IndexScratch scratch, int begin_row, int rows, int keys_per_block) {
  extern __shared__ __align__(128) std::uint8_t bytes[];
  constexpr int kColumns = Padded * Rows;
  const bool user = args.role == CandidateRole::kUser;
  Ring<kColumns> ring{.bytes = bytes};
  ring.Init(user ? 32 : 1);
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
      user ? CopyCandidates(args, first + run.row, run, ring) : CopyBlocks(args, first + run.row, run, ring);
    });
    return;
  }
  float weight[Rows][Padded / 4];
  bool begun = false;
  const int group = static_cast<int>(threadIdx.x) / (kGroupWarps * 32);
  ring.Advance(group);
  int turn = group;  // the stage of the next run that this warpgroup takes first
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
    ScoreKeys<Padded, Rows>(scratch, first, local, run, turn, weight, ring);
    turn = (turn + (run.end - run.begin + kStageKeys - 1) / kStageKeys) % kGroups;
  });
}

template <int Padded, int Rows>
void Launch(const IndexSelectArgs& args, const IndexScratch& scratch, int first, int rows, cudaStream_t stream) {
  const auto kernel = ScoreKernel<Padded, Rows>;
  constexpr int kBytes = Ring<Padded * Rows>::kBytes;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  // Long stretches, but so many that they fill the device.
  constexpr int kBlocksMin = Rows == 1 ? 256 : 512;
  const int groups = (rows + Rows - 1) / Rows;
  std::int64_t keys = kStageKeys;
  while (keys < kStretchMax && scratch.score_stride / (2 * keys) * groups >= kBlocksMin) keys *= 2;
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
