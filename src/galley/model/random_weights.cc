// SPDX-License-Identifier: Apache-2.0
#include "galley/model/random_weights.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "galley/base/check.h"
#include "galley/base/rng.h"
#include "galley/model/tensor_list.h"
#include "galley/tensor/numeric.h"

namespace galley::model {
namespace {

enum Kind : std::size_t { kNorm, kMatrix, kFloats, kFp8, kFp8Scales, kFp4, kFp4Scales, kKinds };

Kind KindOf(const ImpliedTensor& tensor) {
  const bool experts = tensor.part == Part::kRoutedExperts;
  if (tensor.dtype == DType::kBF16) return tensor.shape.size() == 1 ? kNorm : kMatrix;
  if (tensor.dtype == DType::kF32) return kFloats;
  if (tensor.dtype == DType::kF8E4M3) return kFp8;
  if (tensor.dtype == DType::kI8) return kFp4;
  CHECK(tensor.dtype == DType::kE8M0) << tensor.name;
  return experts ? kFp4Scales : kFp8Scales;
}

// Four bytes of a tensor.
std::uint32_t WordOf(Kind kind, std::uint32_t random) {
  const auto pair = [](std::uint32_t bits) { return bits | bits << 16; };
  switch (kind) {
    case kNorm:
      return pair(ToBFloat16(1.0f).bits);
    case kMatrix: {  // even in +-0.04
      const auto value = [](std::uint32_t half) {
        return std::uint32_t{ToBFloat16((static_cast<float>(half) - 32768.0f) * (0.04f / 32768.0f)).bits};
      };
      return value(random & 0xFFFFu) | value(random >> 16) << 16;
    }
    case kFloats: {
      const float value = (static_cast<float>(random >> 8) - 0x1p23f) * (0.1f / 0x1p23f);
      std::uint32_t bits;
      std::memcpy(&bits, &value, sizeof(bits));
      return bits;
    }
    case kFp8:
      return random & 0xF7F7F7F7u;  // magnitudes up to 240, no NaN
    case kFp8Scales:
      return 0x77777777u + (random & 0x01010101u);  // 2^-8 and 2^-7
    case kFp4Scales:
      return 0x79797979u + (random & 0x01010101u);  // 2^-6 and 2^-5
    default:
      return random;
  }
}

constexpr std::size_t kStep = 4096;  // tensors begin at multiples of this

using Memory = std::array<std::vector<std::uint32_t>, kKinds>;

}  // namespace

Checkpoint RandomCheckpoint(const Config& config, std::uint64_t seed) {
  const std::vector<ImpliedTensor> list = ImpliedTensors(config);
  const auto bytes_of = [](const ImpliedTensor& tensor) {
    return TensorView{tensor.dtype, tensor.shape, nullptr}.bytes();
  };
  std::array<std::size_t, kKinds> largest{};
  for (const ImpliedTensor& tensor : list) {
    std::size_t& most = largest[KindOf(tensor)];
    most = std::max(most, bytes_of(tensor));
  }
  constexpr std::size_t kStarts = 256;
  const auto memory = std::make_shared<Memory>();
  for (std::size_t kind = 0; kind < kKinds; ++kind) {
    std::vector<std::uint32_t>& words = (*memory)[kind];
    words.resize((largest[kind] + kStarts * kStep) / 4);
    for (std::size_t i = 0; i < words.size(); i += 4) {
      const auto random = Philox4x32(
          {static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(i >> 32), static_cast<std::uint32_t>(kind), 0},
          {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
      for (std::size_t j = 0; j < std::min<std::size_t>(4, words.size() - i); ++j)
        words[i + j] = WordOf(static_cast<Kind>(kind), random[j]);
    }
  }
  std::vector<std::pair<std::string, TensorView>> tensors;
  for (const ImpliedTensor& tensor : list) {
    const std::size_t start = MixBits(seed + tensors.size()) % kStarts * kStep;
    const auto* base = reinterpret_cast<const std::byte*>((*memory)[KindOf(tensor)].data());
    tensors.emplace_back(tensor.name, TensorView{tensor.dtype, tensor.shape, base + start});
  }
  return Checkpoint::Of(config, tensors, memory);
}

}  // namespace galley::model
