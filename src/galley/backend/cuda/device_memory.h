// SPDX-License-Identifier: Apache-2.0
// Device memory of the CUDA backend: errors in our vocabulary, the arena of weights, and scratch that grows until the
// largest step has been seen. Used by the backend's thread only.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <optional>
#include <string_view>
#include <vector>

#include "galley/backend/backend.h"

namespace galley::backend::cuda {

[[nodiscard]] Error DeviceError(cudaError_t code, std::string_view doing);

// Zero-filled. Errors: kResourceExhausted with the numbers, kDevice.
[[nodiscard]] Result<Buffer> AllocateDevice(std::size_t bytes, std::string_view purpose, cudaStream_t stream);

// What is to lie in pinned main memory.
struct HostWeights {
  std::string_view name;
  std::string_view instead;  // option that needs less of it
};
inline constexpr HostWeights kHostExperts = {"routed experts", "--experts disk"};
inline constexpr HostWeights kHostEngram = {"Engram's tables", "--engram disk"};

// Host memory that the device reads by the same address. Not cleared. `pinned`: bytes that these weights have already.
// Errors: kResourceExhausted with the numbers, kDevice.
[[nodiscard]] Result<Buffer> AllocateHost(std::size_t bytes, const HostWeights& what, std::size_t pinned);
// Host memory at a multiple of 4096 that copies to the device go from: pinned, unless the driver refuses that.
[[nodiscard]] Buffer AllocateForCopies(std::size_t bytes);

// Places tensors one after the other in large pieces of device memory, or of pinned main memory.
class WeightArena {
 public:
  WeightArena() = default;
  explicit WeightArena(const HostWeights& on_host) : host_(on_host) {}
  // Address of `bytes` free bytes, aligned for every kernel.
  [[nodiscard]] Result<std::byte*> Take(std::size_t bytes, cudaStream_t stream);

 private:
  [[nodiscard]] Result<Buffer> NewPiece(std::size_t bytes, cudaStream_t stream);
  std::optional<HostWeights> host_;
  std::vector<Buffer> pieces_;
  std::size_t total_ = 0;  // bytes of all pieces
  std::size_t used_ = 0;   // of the last piece
};

enum class ScratchUse {
  kQuantized,  // activations after the quantiser
  kProduct,    // output of a projection
  kProduct2,
  kProduct3,
  kSmall,
  kPartials,
  kScores,
  kCounts,
  kExperts,
  kHostRows,  // row lists that came from the host
  kUpload,    // a matrix before it is arranged
  kCount,
};

// One growing buffer a purpose. Contents do not survive the op that asked.
class Scratch {
 public:
  [[nodiscard]] Result<std::byte*> Get(ScratchUse use, std::size_t bytes, cudaStream_t stream);
  // How often a buffer has been replaced, which moves it.
  [[nodiscard]] std::int64_t moves() const { return moves_; }

 private:
  std::int64_t moves_ = 0;
  std::array<Buffer, static_cast<std::size_t>(ScratchUse::kCount)> buffers_;
};

}  // namespace galley::backend::cuda
