// SPDX-License-Identifier: Apache-2.0
#include "galley/backend/cuda/device_memory.h"

#include <fmt/core.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <utility>

#include "galley/backend/cuda/cuda_backend.h"
#include "galley/base/aligned_bytes.h"
#include "galley/base/memory.h"
#include "galley/base/thread_pool.h"

namespace galley::backend::cuda {
namespace {

constexpr std::size_t kAlignment = 256;
constexpr std::size_t kPieceBytes = std::size_t{256} << 20;
constexpr std::size_t kLargePage = std::size_t{2} << 20, kLargeBytes = 8 * kLargePage;

double ToMiB(std::size_t bytes) {
  return static_cast<double>(bytes) / (1 << 20);
}

// Memory in large pages, which several threads have the system make, and then pinned: ten times as fast as the driver's
// own allocation (docs/performance.md), which matters to the start of a model of hundreds of gigabytes. Empty when the
// driver or the device does not take it.
Buffer PinLarge(std::size_t bytes) {
  const std::size_t whole = (bytes + kLargePage - 1) / kLargePage * kLargePage;
  auto* const data = static_cast<std::byte*>(std::aligned_alloc(kLargePage, whole));
  if (data == nullptr) return {};
  (void)madvise(data, whole, MADV_HUGEPAGE);
  ThreadPool(std::clamp(UsableProcessors(), 1, 8))
      .ParallelFor(static_cast<std::int64_t>(whole / kLargePage), [=](auto i) {
        constexpr std::size_t kPage = 4096;  // where there are no large ones
        std::byte* const from = data + static_cast<std::size_t>(i) * kLargePage;
        for (std::size_t at = 0; at < kLargePage; at += kPage) from[at] = std::byte{0};
      });
  void* seen = nullptr;
  const bool pinned = cudaHostRegister(data, whole, cudaHostRegisterMapped) == cudaSuccess;
  if (pinned && cudaHostGetDevicePointer(&seen, data, 0) == cudaSuccess && seen == data) {
    return {data, bytes, [](std::byte* p) {
              cudaHostUnregister(p);
              std::free(p);
            }};
  }
  if (pinned) cudaHostUnregister(data);
  cudaGetLastError();
  std::free(data);
  return {};
}

}  // namespace

Error DeviceError(cudaError_t code, std::string_view doing) {
  return {.code = ErrorCode::kDevice,
          .message = fmt::format("{} failed on the GPU: {} ({}); `nvidia-smi` shows the device's state", doing,
                                 cudaGetErrorString(code), cudaGetErrorName(code)),
          .where = {}};
}

Result<Buffer> AllocateDevice(std::size_t bytes, std::string_view purpose, cudaStream_t stream) {
  if (bytes == 0) return Buffer{};
  void* data = nullptr;
  const cudaError_t code = cudaMalloc(&data, bytes);
  if (code == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    std::size_t free = 0, total = 0;
    cudaMemGetInfo(&free, &total);
    return Err(ErrorCode::kResourceExhausted,
               fmt::format("{} needs {:.1f} MiB, but the GPU has {:.1f} of {:.1f} MiB left; use a shorter context "
                           "(--max-seq-len), a smaller chunk (--prefill-chunk) or fewer sequences (--max-seqs)",
                           purpose, ToMiB(bytes), ToMiB(free), ToMiB(total)));
  }
  if (code != cudaSuccess) return Err(DeviceError(code, "allocation"));
  Buffer buffer(static_cast<std::byte*>(data), bytes, [](std::byte* p) { cudaFree(p); });
  const cudaError_t filled = cudaMemsetAsync(data, 0, bytes, stream);
  if (filled != cudaSuccess) return Err(DeviceError(filled, "clearing memory"));
  return buffer;
}

Result<Buffer> AllocateHost(std::size_t bytes, const HostWeights& what, std::size_t pinned) {
  if (bytes == 0) return Buffer{};
  Buffer buffer = bytes < kLargeBytes ? Buffer{} : PinLarge(bytes);
  if (buffer.data() != nullptr) return buffer;
  void* data = nullptr;
  const cudaError_t code = cudaHostAlloc(&data, bytes, cudaHostAllocMapped);
  if (code == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    return Err(ErrorCode::kResourceExhausted,
               fmt::format("{} need {:.1f} MiB more of main memory that can be pinned; {:.1f} MiB are, and of the "
                           "{:.1f} MiB that the process may use the system pins no more; free main memory or use {}",
                           what.name, ToMiB(bytes), ToMiB(pinned), ToMiB(UsableMemoryBytes()), what.instead));
  }
  if (code != cudaSuccess) return Err(DeviceError(code, "pinning memory"));
  return Buffer(static_cast<std::byte*>(data), bytes, [](std::byte* p) { cudaFreeHost(p); });
}

Buffer AllocateForCopies(std::size_t bytes) {
  auto memory = std::make_shared<AlignedBytes>(bytes);
  std::byte* data = memory->data();
  const bool pinned = cudaHostRegister(data, bytes, cudaHostRegisterDefault) == cudaSuccess;
  if (!pinned) cudaGetLastError();
  return {data, bytes, [memory = std::move(memory), pinned](std::byte* p) {
            if (pinned) cudaHostUnregister(p);
          }};
}

Result<Buffer> WeightArena::NewPiece(std::size_t bytes, cudaStream_t stream) {
  Result<Buffer> piece = host_ ? AllocateHost(bytes, *host_, total_) : AllocateDevice(bytes, "weights", stream);
  if (piece) total_ += bytes;
  return piece;
}

Result<std::byte*> WeightArena::Take(std::size_t bytes, cudaStream_t stream) {
  const std::size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (pieces_.empty() || used_ + rounded > pieces_.back().bytes()) {
    // A tensor larger than a piece gets one of its own; the last piece stays open for small ones.
    const std::size_t piece = std::max(rounded, kPieceBytes);
    ASSIGN_OR_RETURN(Buffer buffer, NewPiece(piece, stream));
    const bool own = rounded > kPieceBytes && !pieces_.empty();
    std::byte* data = buffer.data();
    if (own) {
      pieces_.insert(pieces_.end() - 1, std::move(buffer));
      return data;
    }
    pieces_.push_back(std::move(buffer));
    used_ = 0;
  }
  std::byte* at = pieces_.back().data() + used_;
  used_ += rounded;
  return at;
}

Result<std::byte*> Scratch::Get(ScratchUse use, std::size_t bytes, cudaStream_t stream) {
  Buffer& buffer = buffers_[static_cast<std::size_t>(use)];
  if (buffer.bytes() < bytes) {
    // Kernels in flight may still use the old one; cudaFree waits for them.
    buffer = Buffer{};
    ++moves_;
    ASSIGN_OR_RETURN(buffer, AllocateDevice(bytes, "scratch of the largest step", stream));
  }
  return buffer.data();
}

}  // namespace galley::backend::cuda

namespace galley::backend {

std::uint64_t CudaFreeBytes() {
  std::size_t free = 0, total = 0;
  return cudaMemGetInfo(&free, &total) == cudaSuccess ? free : 0;
}

}  // namespace galley::backend
