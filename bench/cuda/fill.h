// SPDX-License-Identifier: Apache-2.0
// Random device memory and a read of it, for benchmarks. Streams are cudaStream_t.
#pragma once

#include <cstddef>
#include <cstdint>

namespace galley::bench {

enum class Pattern : int { kAny, kE4M3, kScales, kBF16, kFloat };

void Fill(void* device, std::size_t bytes, Pattern pattern, std::uint64_t seed, void* stream);
// Reads every byte once.
void ReadAll(const void* device, std::size_t bytes, void* out, void* stream);

}  // namespace galley::bench
