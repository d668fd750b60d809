// SPDX-License-Identifier: Apache-2.0
// Memory, and the ops that only move rows.
#include "galley/backend/ref/ref_backend.h"

#include <fmt/core.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "galley/base/memory.h"

namespace galley::backend {
namespace {

double ToMiB(std::uint64_t bytes) {
  return static_cast<double>(bytes) / (1 << 20);
}

}  // namespace

Result<Buffer> RefBackend::Allocate(std::size_t bytes, std::string_view purpose) {
  if (bytes == 0) return Buffer{};
  const std::uint64_t usable = UsableMemoryBytes();
  // calloc leaves pages untouched until they are used, so a large plan costs nothing by itself; a plan that could never
  // be used in full is refused here rather than killed later.
  const bool fits = allocated_ + bytes <= usable;
  auto* data = fits ? static_cast<std::byte*>(std::calloc(bytes, 1)) : nullptr;
  if (data == nullptr) {
    return Err(
        ErrorCode::kResourceExhausted,
        fmt::format("{} needs {:.1f} MiB on top of {:.1f} MiB already planned, but {}; use a shorter context "
                    "(--max-seq-len), a smaller chunk (--prefill-chunk) or a machine with more memory",
                    purpose, ToMiB(bytes), ToMiB(allocated_),
                    fits ? fmt::format("the system has no more to give (program, weights and plan share {:.1f} MiB)",
                                       ToMiB(usable))
                         : fmt::format("this process may use {:.1f} MiB", ToMiB(usable))));
  }
  allocated_ += bytes;
  ++allocations_;
  return Buffer(data, bytes, [](std::byte* p) { std::free(p); });
}

Status RefBackend::CopyToDevice(void* device, const void* host, std::size_t bytes) {
  if (bytes > 0) std::memcpy(device, host, bytes);
  return {};
}

Status RefBackend::CopyToHost(void* host, const void* device, std::size_t bytes) {
  if (bytes > 0) std::memcpy(host, device, bytes);
  return {};
}

void RefBackend::CopyOnDevice(void* to, const void* from, std::size_t bytes) {
  std::memcpy(to, from, bytes);
}

void RefBackend::Embed(const EmbedArgs& args) {
  const auto dim = static_cast<std::size_t>(args.dim), copies = static_cast<std::size_t>(args.copies);
  for (int t = 0; t < args.step.rows; ++t) {
    const auto row = static_cast<std::size_t>(t);
    const BFloat16* from = args.table + static_cast<std::size_t>(args.step.tokens[t]) * dim;
    for (std::size_t c = 0; c < copies; ++c) {
      std::memcpy(args.h + (row * copies + c) * dim, from, dim * sizeof(BFloat16));
      args.pre[row * copies + c] = c == 0 ? 1.0f : 0.0f;
    }
  }
}

void RefBackend::GatherRows(const GatherRowsArgs& args) {
  for (int i = 0; i < args.count; ++i) {
    std::memcpy(static_cast<std::byte*>(args.out) + static_cast<std::size_t>(i) * args.row_bytes,
                static_cast<const std::byte*>(args.in) + static_cast<std::size_t>(args.row_list[i]) * args.row_bytes,
                args.row_bytes);
  }
}

void RefBackend::WindowWrite(const WindowWriteArgs& args) {
  for (int s = 0; s < args.step.sequences; ++s) {
    const SequenceEntry& sequence = args.step.table[s];
    // A chunk longer than the ring leaves its last rows; the others would only be overwritten.
    const int first = sequence.rows > args.ring.rows ? sequence.rows - args.ring.rows : 0;
    for (int i = first; i < sequence.rows; ++i) {
      std::memcpy(args.ring.At(sequence.slot, sequence.start + i),
                  args.window + static_cast<std::size_t>(sequence.first_row + i) * args.ring.row_bytes,
                  args.ring.row_bytes);
    }
  }
}

}  // namespace galley::backend
