// SPDX-License-Identifier: Apache-2.0
// Mixture of experts (2.9) in three to five launches: pairs (row, expert) grouped by expert and cut into tiles; w1 and
// w3 with SwiGLU, routing weight and the quantiser of the next product; w2; the sum over experts in ascending id, then
// shared. The shared expert is one more expert that every row has chosen. A pair's values do not depend on its tile.
#include "galley/backend/cuda/kernels.h"
#include "galley/backend/cuda/last_blocks.cuh"
#include "galley/backend/cuda/launch.h"
#include "galley/backend/cuda/moe_work.h"
#include "galley/backend/cuda/stream_dot.cuh"

namespace galley::backend::cuda {
namespace {

constexpr int kThreads = 128, kWarps = 4, kTiles = 4, kStages = 3, kExpertsMax = 1024;
constexpr int kColumns = 32;  // intermediate values of a block: 32 rows of w1 and the same of w3
constexpr int kPartialStride = kTiles * 16 + 4;

std::size_t Aligned(std::size_t bytes) {
  return (bytes + 255) / 256 * 256;
}

// Sizes and, given a base, places of the work buffer.
std::size_t Layout(const MoeShape& shape, std::byte* base, MoeWork* work) {
  MoeWork w{};
  const int rows = shape.rows, experts = shape.experts;
  w.pairs = rows * shape.topk;
  const int mean = w.pairs / (experts > 0 ? experts : 1);
  const bool wide = shape.form == MoeForm::kWide, slim = shape.form == MoeForm::kSlim, packed = wide || slim;
  w.align = packed ? kPackedRows : 1;
  w.routed_tile = wide ? kWideTile : slim || mean > 5 ? 16 : 8;
  w.shared_tile = wide ? kWideSharedTile : rows <= 8 ? 8 : slim ? kSlimSharedTile : 16;
  w.tiles_max =
      (w.pairs < experts ? w.pairs : experts) + w.pairs / w.routed_tile + (rows + w.shared_tile - 1) / w.shared_tile;
  const auto whole = [](int count) { return (count + kPackedRows - 1) / kPackedRows * kPackedRows; };
  // Every expert's last group may be short.
  w.shared_begin = packed ? whole(w.pairs + (kPackedRows - 1) * (w.pairs < experts ? w.pairs : experts)) : w.pairs;
  const auto pairs = static_cast<std::size_t>(w.pairs),
             positions = static_cast<std::size_t>(w.shared_begin + (packed ? whole(rows) : rows));
  std::size_t at = 0;
  const auto place = [&](auto*& pointer, std::size_t count) {
    pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(base + at);
    at += Aligned(count * sizeof(*pointer));
  };
  place(w.position, pairs);
  place(w.token, positions);
  place(w.weight, positions);
  place(w.tiles, static_cast<std::size_t>(w.tiles_max));
  place(w.activated, positions * static_cast<std::size_t>(shape.inter));
  place(w.y, positions * static_cast<std::size_t>(shape.dim));
  if (work != nullptr) *work = w;
  return at;
}

// Where in `position` pair i of `experts` [T][topk] stands: its row's pairs are there by ascending expert.
__device__ __forceinline__ int PlaceOfPair(const std::int32_t* experts, int topk, int i) {
  const std::int32_t mine = experts[i];
  int place = i / topk * topk;
  for (int j = i / topk * topk; j < i / topk * topk + topk; ++j) {
    place += experts[j] < mine || (experts[j] == mine && j < i) ? 1 : 0;
  }
  return place;
}

// Inclusive sum over 1,024 threads.
__device__ int ScanBlock(int value, int* warp_sums) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll
  for (int step = 1; step < 32; step <<= 1) {
    const int other = __shfl_up_sync(kFullWarp, value, step);
    if (lane >= step) value += other;
  }
  if (lane == 31) warp_sums[warp] = value;
  __syncthreads();
  if (warp == 0) {
    int sum = warp_sums[lane];
#pragma unroll
    for (int step = 1; step < 32; step <<= 1) {
      const int other = __shfl_up_sync(kFullWarp, sum, step);
      if (lane >= step) sum += other;
    }
    warp_sums[lane] = sum;
  }
  __syncthreads();
  const int result = value + (warp > 0 ? warp_sums[warp - 1] : 0);
  __syncthreads();
  return result;
}

__global__ void __launch_bounds__(1024) GroupKernel(MoeArgs args, MoeWork work) {
  ptx::BeginKernel();
  __shared__ int counts[kExpertsMax], cursor[kExpertsMax], warp_sums[32];
  const int tid = static_cast<int>(threadIdx.x);
  counts[tid] = 0;
  __syncthreads();
  for (int i = tid; i < work.pairs; i += 1024) atomicAdd(&counts[args.experts[i]], 1);
  __syncthreads();
  const int count = counts[tid], tiles = (count + work.routed_tile - 1) / work.routed_tile;
  const auto whole = [&](int rows) { return (rows + work.align - 1) / work.align * work.align; };
  const int begin = ScanBlock(whole(count), warp_sums) - whole(count);
  const int tiles_end = ScanBlock(tiles, warp_sums);
  cursor[tid] = begin;
  // Tiles of the shared expert first: they take longest.
  const int shared_tiles = (args.rows + work.shared_tile - 1) / work.shared_tile;
  const int each = tiles > 0 ? whole((count + tiles - 1) / tiles) : 0;  // tiles of nearly equal size
  for (int i = 0; i < tiles; ++i) {
    work.tiles[shared_tiles + tiles_end - tiles + i] = {tid, begin + i * each, min(each, count - i * each)};
  }
  counts[tid] = tiles_end;
  __syncthreads();
  for (int i = shared_tiles + counts[1023] + tid; i < work.tiles_max; i += 1024) work.tiles[i] = {0, 0, 0};
  for (int i = tid; i < shared_tiles; i += 1024) {
    const int from = i * work.shared_tile;
    work.tiles[i] = {args.expert_count, work.shared_begin + from, min(work.shared_tile, args.rows - from)};
  }
  for (int i = tid; i < work.pairs; i += 1024) {
    const int position = atomicAdd(&cursor[args.experts[i]], 1);
    work.position[PlaceOfPair(args.experts, args.topk, i)] = position;
    work.token[position] = i / args.topk;
    work.weight[position] = args.weights[i];
  }
  for (int t = tid; t < args.rows; t += 1024) {
    work.token[work.shared_begin + t] = t;
    work.weight[work.shared_begin + t] = 1.0f;
  }
}

// The same for so few pairs that each is compared with all others, an expert a tile; beside it, in the other blocks of
// threads, x is quantised, a warp a group of 32.
constexpr int kFewRows = 8, kFewPairs = 64;
__global__ void __launch_bounds__(256) PrepareFewKernel(MoeArgs args, MoeWork work, int dim, BFloat16* quantized) {
  ptx::BeginKernel();
  const int tid = static_cast<int>(threadIdx.x);
  if (blockIdx.x > 0) {
    const std::int64_t group = static_cast<std::int64_t>(blockIdx.x - 1) * 8 + tid / 32, lane = tid % 32;
    if (group * 32 >= static_cast<std::int64_t>(args.rows) * dim) return;
    const float value = ToFloat(args.x[group * 32 + lane]);
    quantized[group * 32 + PairedPlace(tid % 32)] = ToBFloat16(FakeFp8(value, Fp8Scale(WarpMax(fabsf(value)))));
    return;
  }
  __shared__ int expert[kFewPairs], leads[kFewPairs];
  const int mine = tid < work.pairs ? args.experts[tid] : 0;
  const float weight = tid < work.pairs ? args.weights[tid] : 0;
  if (tid < kFewPairs) expert[tid] = mine;
  __syncthreads();
  int smaller = 0, same = 0, before = 0;
  for (int i = 0; i < work.pairs; ++i) {
    const int other = expert[i];
    smaller += other < mine ? 1 : 0;
    same += other == mine ? 1 : 0;
    before += other == mine && i < tid ? 1 : 0;
  }
  const bool inside = tid < work.pairs, leader = inside && before == 0;
  if (tid < kFewPairs) leads[tid] = leader ? 1 : 0;
  __syncthreads();
  int tile = 1, tiles = 1;  // the shared expert's comes first
  for (int i = 0; i < work.pairs; ++i) {
    tile += expert[i] < mine ? leads[i] : 0;
    tiles += leads[i];
  }
  if (inside) {
    work.position[PlaceOfPair(expert, args.topk, tid)] = smaller + before;
    work.token[smaller + before] = tid / args.topk;
    work.weight[smaller + before] = weight;
  }
  if (leader) work.tiles[tile] = {mine, smaller, same};
  for (int i = tiles + tid; i < work.tiles_max; i += 256) work.tiles[i] = {0, 0, 0};
  if (tid == 0) work.tiles[0] = {args.expert_count, work.shared_begin, args.rows};
  if (tid < args.rows) {
    work.token[work.shared_begin + tid] = tid;
    work.weight[work.shared_begin + tid] = 1.0f;
  }
}

// Blocks of threads for the rows of w2.
constexpr int DownBlocks(int dim) {
  return (dim + kTiles * 16 - 1) / (kTiles * 16);
}

template <WeightFormat F, int NT>
using Dot = StreamDot<F, kTiles, NT, kStages, kThreads>;

// Bytes of shared memory that a product over `cols` needs.
template <WeightFormat F, int NT>
__host__ __device__ constexpr int SharedBytes(int cols) {
  const int blocks = (cols + kBlockK<F> - 1) / kBlockK<F>;
  const int bytes =
      Dot<F, NT>::kRingBytes + kWarps * ((Dot<F, NT>::ScaleBytes((blocks + kWarps - 1) / kWarps) + 15) / 16 * 16);
  const int partial = kWarps * NT * 8 * kPartialStride * 4;
  return bytes > partial ? bytes : partial;
}

// The four warps take a quarter of K each and leave their sums in shared memory.
template <WeightFormat F, int NT, bool Waits>
__device__ __forceinline__ void Multiply(Dot<F, NT>& dot, std::uint8_t* shared) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int blocks = (dot.cols + kBlockK<F> - 1) / kBlockK<F>;
  dot.ring = shared;
  dot.scales = shared + Dot<F, NT>::kRingBytes +
               warp * ((Dot<F, NT>::ScaleBytes((blocks + kWarps - 1) / kWarps) + 15) / 16 * 16);
  float acc[kTiles][NT][4] = {};
  dot.template Run<false, Waits>(SplitBegin(blocks, kWarps, warp), SplitBegin(blocks, kWarps, warp + 1), acc);
  __syncthreads();
  StorePartial<kTiles, NT>(acc, reinterpret_cast<float*>(shared) + warp * NT * 8 * kPartialStride);
  __syncthreads();
}
template <int NT>
__device__ __forceinline__ float SumParts(const std::uint8_t* shared, int token, int row) {
  const float* partial = reinterpret_cast<const float*>(shared) + token * kPartialStride + row;
  float sum = 0;
#pragma unroll
  for (int s = 0; s < kWarps; ++s) sum += partial[s * NT * 8 * kPartialStride];
  return sum;
}

template <WeightFormat F, int NT>
__device__ __forceinline__ void GateUp(const MoeProblem& p, const Tile& tile, std::uint8_t* shared) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const ExpertPointers& expert = p.experts[tile.expert];
  const int column0 = static_cast<int>(blockIdx.x) * kColumns;
  Dot<F, NT> dot;
  dot.cols = p.dim;
#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
    dot.tile[m] = {.data = m < 2 ? expert.w1 : expert.w3,
                   .scales = m < 2 ? expert.s1 : expert.s3,
                   .row = column0 + m % 2 * 16,
                   .end = p.inter};
  }
#pragma unroll
  for (int n = 0; n < NT; ++n) {
    const int i = n * 8 + lane / 4;
    dot.x[n] = i < tile.count ? p.x + static_cast<std::int64_t>(p.work.token[tile.begin + i]) * p.dim : nullptr;
  }
  Multiply<F, NT, false>(dot, shared);
  // A warp a row of x, a lane a column: a group of the quantiser.
  for (int i = warp; i < tile.count; i += kWarps) {
    const float g = RoundToBFloat16(SumParts<NT>(shared, i, lane)),
                u = RoundToBFloat16(SumParts<NT>(shared, i, 32 + lane));
    const float gate = fminf(g, p.limit), up = ClampTo(u, p.limit);
    const float activated = gate / (1.0f + expf(-gate)) * up;
    const float value = RoundToBFloat16(p.work.weight[tile.begin + i] * activated);
    const float scale = Fp8Scale(WarpMax(fabsf(value)));
    p.work.activated[static_cast<std::int64_t>(tile.begin + i) * p.inter + column0 + PairedPlace(lane)] =
        ToBFloat16(FakeFp8(value, scale));
  }
}

template <WeightFormat F, int NT>
__device__ __forceinline__ void Down(const MoeProblem& p, const Tile& tile, std::uint8_t* shared) {
  const int lane = static_cast<int>(threadIdx.x) % 32, row0 = static_cast<int>(blockIdx.x) * kTiles * 16;
  const ExpertPointers& expert = p.experts[tile.expert];
  Dot<F, NT> dot;
  dot.cols = p.inter;
#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
    dot.tile[m] = {.data = expert.w2, .scales = expert.s2, .row = row0 + m * 16, .end = p.dim};
  }
#pragma unroll
  for (int n = 0; n < NT; ++n) {
    const int i = n * 8 + lane / 4;
    dot.x[n] = i < tile.count ? p.work.activated + static_cast<std::int64_t>(tile.begin + i) * p.inter : nullptr;
  }
  Multiply<F, NT, true>(dot, shared);
  for (int i = static_cast<int>(threadIdx.x); i < tile.count * kTiles * 16; i += kThreads) {
    const int row = i % (kTiles * 16), token = i / (kTiles * 16);
    if (row0 + row >= p.dim) continue;
    p.work.y[static_cast<std::int64_t>(tile.begin + token) * p.dim + row0 + row] =
        ToBFloat16(SumParts<NT>(shared, token, row));
  }
}

// Outputs d and d + 1 of row t: the sum over its experts in ascending id, then the shared one.
__device__ __forceinline__ void CombinePair(const MoeProblem& p, int t, int d) {
  const auto pair_at = [&](int position) {
    return __ldcg(reinterpret_cast<const std::uint32_t*>(p.work.y + static_cast<std::int64_t>(position) * p.dim + d));
  };
  float low = 0, high = 0;
#pragma unroll 4
  for (int j = 0; j < p.topk; ++j) {
    const std::uint32_t pair = pair_at(p.work.position[t * p.topk + j]);
    low += LowHalf(pair), high += HighHalf(pair);
  }
  const std::uint32_t pair = pair_at(p.work.shared_begin + t);
  *reinterpret_cast<std::uint32_t*>(p.out + static_cast<std::int64_t>(t) * p.dim + d) =
      Pack(low + LowHalf(pair), high + HighHalf(pair));
}

template <bool First, WeightFormat Routed, int RoutedNT, WeightFormat Shared, int SharedNT>
__global__ void __launch_bounds__(kThreads, RoutedNT* SharedNT == 1 ? 4 : 3) ExpertKernel(MoeProblem p) {
  extern __shared__ __align__(16) std::uint8_t shared[];
  // The second product starts while the first still runs. The tiles are there by then, because the first lets its
  // successor start only after its own wait.
  if constexpr (First) ptx::WaitForPreviousKernel();
  ptx::LetNextKernelStart();
  const Tile tile = p.work.tiles[blockIdx.y];
  if (tile.count == 0) {
    if (First || p.arrivals == nullptr) return;
  } else if (tile.expert != p.shared_expert) {
    First ? GateUp<Routed, RoutedNT>(p, tile, shared) : Down<Routed, RoutedNT>(p, tile, shared);
  } else {
    First ? GateUp<Shared, SharedNT>(p, tile, shared) : Down<Shared, SharedNT>(p, tile, shared);
  }
  if constexpr (First) return;
  // Of few rows the last block to arrive of those with the same outputs adds them up.
  if (p.arrivals == nullptr) return;
  __shared__ int number;
  if (ArriveInGroup(p.arrivals, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.y), 1, number) < 0) return;
  constexpr int kPairs = kTiles * 16 / 2;
  for (int i = static_cast<int>(threadIdx.x); i < p.rows * kPairs; i += kThreads) {
    const int d = static_cast<int>(blockIdx.x) * kTiles * 16 + i % kPairs * 2;
    if (d < p.dim) CombinePair(p, i / kPairs, d);
  }
}

__global__ void __launch_bounds__(256) CombineKernel(MoeProblem p) {
  ptx::BeginKernel();
  const int d = static_cast<int>(blockIdx.x * 256 + threadIdx.x) * 2;
  if (d < p.dim) CombinePair(p, static_cast<int>(blockIdx.y), d);
}

template <WeightFormat Routed, int RoutedNT, WeightFormat Shared, int SharedNT>
void LaunchExperts(const MoeProblem& p, cudaStream_t stream) {
  const auto first = ExpertKernel<true, Routed, RoutedNT, Shared, SharedNT>;
  const auto second = ExpertKernel<false, Routed, RoutedNT, Shared, SharedNT>;
  const int bytes1 = max(SharedBytes<Routed, RoutedNT>(p.dim), SharedBytes<Shared, SharedNT>(p.dim));
  const int bytes2 = max(SharedBytes<Routed, RoutedNT>(p.inter), SharedBytes<Shared, SharedNT>(p.inter));
  cudaFuncSetAttribute(first, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes1);
  cudaFuncSetAttribute(second, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes2);
  const auto tiles = static_cast<unsigned>(p.work.tiles_max);
  LaunchKernel(first, dim3(static_cast<unsigned>((p.inter + kColumns - 1) / kColumns), tiles), kThreads,
               static_cast<unsigned>(bytes1), stream, p);
  LaunchKernel(second, dim3(static_cast<unsigned>(DownBlocks(p.dim)), tiles), kThreads, static_cast<unsigned>(bytes2),
               stream, p);
}

template <WeightFormat Routed, WeightFormat Shared>
void ChooseTiles(const MoeProblem& p, cudaStream_t stream) {
  if (p.work.shared_tile == 8)
    return LaunchExperts<Routed, 1, Shared, 1>(p, stream);  // so few rows have routed tiles of 8
  p.work.routed_tile == 8 ? LaunchExperts<Routed, 1, Shared, 2>(p, stream)
                          : LaunchExperts<Routed, 2, Shared, 2>(p, stream);
}

}  // namespace

MoeForm ChooseMoeForm(const MoeShape& shape, bool slim) {
  if (shape.experts == 0 || shape.dim % 128 != 0 || shape.inter % 128 != 0) return MoeForm::kStream;
  if (shape.rows * shape.topk / shape.experts >= 16) return MoeForm::kWide;
  return slim ? MoeForm::kSlim : MoeForm::kStream;
}

std::size_t MoeWorkBytes(const MoeShape& shape) {
  return Layout(shape, nullptr, nullptr);
}

void Moe(const MoeArgs& args, const MoeShape& shape, const MoeScratch& scratch, cudaStream_t stream) {
  if (args.rows == 0) return;
  MoeProblem p{.work = {},
               .experts = scratch.experts,
               .x = shape.form == MoeForm::kStream ? scratch.quantized : args.x,
               .out = args.y,
               .shared_expert = args.expert_count,
               .rows = args.rows,
               .topk = args.topk,
               .dim = shape.dim,
               .inter = shape.inter,
               .limit = args.swiglu_limit,
               .arrivals = nullptr};
  Layout(shape, scratch.work, &p.work);
  const bool streams = shape.form == MoeForm::kStream;
  const bool few = streams && args.rows <= kFewRows && p.work.pairs <= kFewPairs;
  if (few && DownBlocks(shape.dim) <= kArrivalGroups) p.arrivals = scratch.arrivals;
  if (few) {
    const int groups = args.rows * shape.dim / 32;
    LaunchKernel(PrepareFewKernel, static_cast<unsigned>(1 + (groups + 7) / 8), 256, 0, stream, args, p.work, shape.dim,
                 scratch.quantized);
  } else {
    if (streams) {
      Reorder({.x = args.x, .rows = args.rows, .cols = shape.dim, .quantize = true, .out = scratch.quantized}, stream);
    }
    LaunchKernel(GroupKernel, 1, 1024, 0, stream, args, p.work);
  }
  switch (shape.form) {
    case MoeForm::kStream:
      ChooseTiles<WeightFormat::kMxfp4, WeightFormat::kFp8Block32>(p, stream);
      break;
    case MoeForm::kSlim:
      SlimExperts(p, args.rows, stream);
      break;
    case MoeForm::kWide:
      WideExperts(p, args.rows, stream);
      break;
  }
  if (p.arrivals != nullptr) return;
  LaunchKernel(CombineKernel,
               dim3(static_cast<unsigned>((shape.dim / 2 + 255) / 256), static_cast<unsigned>(args.rows)), 256, 0,
               stream, p);
}

}  // namespace galley::backend::cuda
