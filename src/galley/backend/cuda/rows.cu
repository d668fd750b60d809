// SPDX-License-Identifier: Apache-2.0
// Ops that move or combine whole rows: embedding, gathers, means, norms, window rings.
#include <type_traits>

#include "galley/backend/cuda/kernels.h"
#include "galley/backend/cuda/launch.h"
#include "galley/backend/cuda/ptx/async_copy.cuh"
#include "galley/backend/cuda/step.cuh"
#include "galley/backend/cuda/stream_dot.cuh"

namespace galley::backend::cuda {
namespace {

__global__ void EmbedKernel(EmbedArgs args) {
  ptx::BeginKernel();
  const auto t = static_cast<std::int64_t>(blockIdx.x);
  const BFloat16* from = args.table + static_cast<std::int64_t>(args.step.tokens[t]) * args.dim;
  for (int i = static_cast<int>(threadIdx.x); i < args.copies * args.dim; i += static_cast<int>(blockDim.x)) {
    args.h[t * args.copies * args.dim + i] = from[i % args.dim];
  }
  const int copy = static_cast<int>(threadIdx.x);
  if (copy < args.copies) args.pre[t * args.copies + copy] = copy == 0 ? 1.0f : 0.0f;
}

__global__ void MeanCopiesKernel(MeanCopiesArgs args) {
  ptx::BeginKernel();
  const auto t = static_cast<std::int64_t>(blockIdx.y);
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= args.dim) return;
  float sum = 0;
  for (int c = 0; c < args.copies; ++c) sum += ToFloat(args.h[(t * args.copies + c) * args.dim + i]);
  args.out[t * args.out_stride + i] = ToBFloat16(sum / static_cast<float>(args.copies));
}

__global__ void WindowWriteKernel(WindowWriteArgs args) {
  ptx::BeginKernel();
  const int t = static_cast<int>(blockIdx.x);
  const SequenceEntry& sequence = args.step.sequence_of(t);
  const int i = t - sequence.first_row;
  // A chunk longer than the ring leaves its last rows; earlier ones would race with them for the same place.
  if (i < sequence.rows - args.ring.rows) return;
  std::uint8_t* to = RingRow(args.ring, sequence.slot, std::int64_t{sequence.start} + i);
  const std::uint8_t* from = args.window + static_cast<std::size_t>(t) * args.ring.row_bytes;
  for (std::size_t b = threadIdx.x; b < args.ring.row_bytes; b += blockDim.x) to[b] = from[b];
}

__global__ void GatherRowsKernel(const std::byte* in, std::byte* out, const std::int32_t* rows, std::size_t bytes) {
  ptx::BeginKernel();
  const std::byte* from = in + static_cast<std::size_t>(rows[blockIdx.x]) * bytes;
  std::byte* to = out + static_cast<std::size_t>(blockIdx.x) * bytes;
  if (bytes % 16 == 0) {
    for (std::size_t i = threadIdx.x; i < bytes / 16; i += blockDim.x) {
      reinterpret_cast<uint4*>(to)[i] = reinterpret_cast<const uint4*>(from)[i];
    }
  } else {
    for (std::size_t i = threadIdx.x; i < bytes; i += blockDim.x) to[i] = from[i];
  }
}

__global__ void NormRowsKernel(const BFloat16* x, const std::int32_t* rows, int dim, const BFloat16* weight, float eps,
                               BFloat16* out) {
  ptx::BeginKernel();
  __shared__ float shared[8];
  const auto i = static_cast<std::int64_t>(blockIdx.x);
  const BFloat16* from = x + (rows != nullptr ? rows[i] : i) * dim;
  float square = 0;
  for (int d = static_cast<int>(threadIdx.x); d < dim; d += 256) {
    const float value = ToFloat(from[d]);
    square += value * value;
  }
  const float r = 1.0f / sqrtf(BlockSum<8>(square, shared) / static_cast<float>(dim) + eps);
  for (int d = static_cast<int>(threadIdx.x); d < dim; d += 256) {
    out[i * dim + d] = ToBFloat16(ToFloat(weight[d]) * (ToFloat(from[d]) * r));
  }
}

// A thread a piece of 16 bytes of the arranged matrix.
template <WeightFormat F>
__global__ void ArrangeKernel(const std::uint8_t* natural, int rows, int cols, bool tiled, uint4* out) {
  const std::size_t pieces = static_cast<std::size_t>(rows) * RowBytes<F>(cols) / 16;
  const std::size_t stride = static_cast<std::size_t>(gridDim.x) * blockDim.x,
                    blocks = static_cast<std::size_t>(cols / kBlockK<F>),
                    above = static_cast<std::size_t>(TileStep(rows) / 1024);
  for (std::size_t i = blockIdx.x * static_cast<std::size_t>(blockDim.x) + threadIdx.x; i < pieces; i += stride) {
    std::size_t from = i * 16;
    if (tiled) {
      const std::size_t lane = i % 32, half = i / 32 % 2, block = i / 64 / above % blocks,
                        tile = i / 64 / above / blocks * above + i / 64 % above;
      from = (tile * 16 + half * 8 + lane / 4) * RowBytes<F>(cols) + block * 64 + lane % 4 * 16;
    }
    uint4 piece = *reinterpret_cast<const uint4*>(natural + from);
    if (F == WeightFormat::kMxfp4) {
      piece = {ArrangeFp4(piece.x), ArrangeFp4(piece.y), ArrangeFp4(piece.z), ArrangeFp4(piece.w)};
    }
    out[i] = piece;
  }
}

// A thread four scales of a row of an MXFP4 matrix.
__global__ void ArrangeScalesKernel(const std::uint32_t* natural, int rows, int cols, std::uint8_t* out) {
  const std::int64_t blocks = cols / kBlockK<WeightFormat::kMxfp4>, words = rows * blocks;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x; i < words; i += stride) {
    const int row = static_cast<int>(i / blocks), block = static_cast<int>(i % blocks);
    std::uint8_t* to = out + (TileOffset(row / 16 * 16, rows, blocks) + block * TileStep(rows)) / kTileBytesPerScale;
    for (int quarter = 0; quarter < 4; ++quarter) {
      const std::uint32_t scale = natural[i] >> (8 * quarter) & 255;
      to[(row % 8 * 4 + quarter) * 2 + row / 8 % 2] = static_cast<std::uint8_t>(min(scale, 254u - kFp4Shift));
    }
  }
}

}  // namespace

namespace {

// Calls `f` with the format as a constant.
template <typename F>
auto WithFormat(WeightFormat format, F&& f) {
  switch (format) {
    case WeightFormat::kMxfp4:
      return f(std::integral_constant<WeightFormat, WeightFormat::kMxfp4>());
    case WeightFormat::kFp8Block32:
      return f(std::integral_constant<WeightFormat, WeightFormat::kFp8Block32>());
    default:
      return f(std::integral_constant<WeightFormat, WeightFormat::kBF16>());
  }
}

int PanelRowsOf(WeightFormat format, int rows, int cols) {
  const bool tiled = WithFormat(format, [&](auto f) { return IsTiled<f()>(rows, cols); });
  return !tiled ? 0 : rows % kPanelRows == 0 ? kPanelRows : 16;
}

std::size_t RowBytesOf(const Arrangement& a) {
  if (a.kind == Arrangement::Kind::kScales) return static_cast<std::size_t>(a.cols) / 32;
  return static_cast<std::size_t>(WithFormat(a.format, [&](auto f) { return RowBytes<f()>(a.cols); }));
}

// Rows that are panels of as many rows as the kernels take such a number for. Not by LaunchKernel: products read
// weights before they wait for earlier kernels.
void ArrangeRows(const Arrangement& a, const std::uint8_t* from, int rows, int cols, std::uint8_t* to,
                 cudaStream_t stream) {
  if (a.kind == Arrangement::Kind::kScales) {
    ArrangeScalesKernel<<<1056, 256, 0, stream>>>(reinterpret_cast<const std::uint32_t*>(from), rows, cols, to);
    return;
  }
  WithFormat(a.format, [&](auto f) {
    ArrangeKernel<f()><<<1056, 256, 0, stream>>>(from, rows, cols, a.panel_rows > 0, reinterpret_cast<uint4*>(to));
  });
}

}  // namespace

Arrangement ArrangementOfCodes(WeightFormat format, int rows, int cols) {
  Arrangement a{
      .kind = Arrangement::Kind::kCodes, .format = format, .cols = cols, .panel_rows = PanelRowsOf(format, rows, cols)};
  if (a.panel_rows > 0) {
    a.grain = static_cast<std::size_t>(a.panel_rows) * RowBytesOf(a);
  } else if (format == WeightFormat::kMxfp4) {
    a.grain = 16;  // codes of a word are still spread
  } else {
    a.kind = Arrangement::Kind::kNone;
  }
  return a;
}

Arrangement ArrangementOfScales(WeightFormat format, int rows, int cols) {
  Arrangement a{.format = format, .cols = cols};
  if (format != WeightFormat::kMxfp4 || PanelRowsOf(format, rows, cols) == 0) return a;
  a.kind = Arrangement::Kind::kScales;
  a.panel_rows = PanelRowsOf(format, rows, cols);
  a.grain = static_cast<std::size_t>(a.panel_rows) * RowBytesOf(a);
  return a;
}

void Arrange(const Arrangement& arrangement, const void* natural, std::size_t bytes, void* out, cudaStream_t stream) {
  const auto* from = static_cast<const std::uint8_t*>(natural);
  auto* to = static_cast<std::uint8_t*>(out);
  // As one long row, which is not cut into tiles.
  if (arrangement.panel_rows == 0) return ArrangeRows(arrangement, from, 1, static_cast<int>(bytes * 2), to, stream);
  const std::size_t row = RowBytesOf(arrangement);
  int rows = static_cast<int>(bytes / row);
  if (arrangement.panel_rows < kPanelRows && rows % kPanelRows == 0) {
    // As many rows would be panels of kPanelRows, but the whole matrix has others.
    rows -= arrangement.panel_rows;
    const std::size_t last = static_cast<std::size_t>(rows) * row;
    ArrangeRows(arrangement, from + last, arrangement.panel_rows, arrangement.cols, to + last, stream);
  }
  ArrangeRows(arrangement, from, rows, arrangement.cols, to, stream);
}

void Embed(const EmbedArgs& args, cudaStream_t stream) {
  LaunchKernel(EmbedKernel, static_cast<unsigned>(args.step.rows), 256, 0, stream, args);
}

void MeanCopies(const MeanCopiesArgs& args, cudaStream_t stream) {
  if (args.rows == 0) return;
  LaunchKernel(MeanCopiesKernel, dim3(static_cast<unsigned>((args.dim + 255) / 256), static_cast<unsigned>(args.rows)),
               256, 0, stream, args);
}

void WindowWrite(const WindowWriteArgs& args, cudaStream_t stream) {
  if (args.step.rows == 0) return;
  LaunchKernel(WindowWriteKernel, static_cast<unsigned>(args.step.rows), 128, 0, stream, args);
}

void GatherRows(const GatherRowsArgs& args, const std::int32_t* device_rows, cudaStream_t stream) {
  if (args.count == 0) return;
  LaunchKernel(GatherRowsKernel, static_cast<unsigned>(args.count), 256, 0, stream,
               static_cast<const std::byte*>(args.in), static_cast<std::byte*>(args.out), device_rows, args.row_bytes);
}

void NormRows(const BFloat16* x, const std::int32_t* rows, int count, int dim, const BFloat16* weight, float eps,
              BFloat16* out, cudaStream_t stream) {
  if (count == 0) return;
  LaunchKernel(NormRowsKernel, static_cast<unsigned>(count), 256, 0, stream, x, rows, dim, weight, eps, out);
}

}  // namespace galley::backend::cuda
