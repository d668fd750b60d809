// SPDX-License-Identifier: Apache-2.0
// What identifies a model for the cache: cached history of one must never be taken for that of another. Digests are
// cheap, so they cover what changes when weights change rather than every byte of them: of each tensor file its name,
// size, time of last change and header, and all bytes of the configuration. A copy of a model with other times counts
// as another model, which costs cache hits between the two and nothing else.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>

#include "galley/base/error.h"
#include "galley/kv/sha256.h"

namespace galley::engine {

struct ModelDigest {
  kv::Digest weights;
  kv::Digest tokenizer;  // of all bytes of tokenizer.json
};

// Does not depend on where the directory lies. Errors: kIo, kNotFound.
[[nodiscard]] Result<ModelDigest> DigestModel(const std::filesystem::path& dir);

// Of every byte of the tensor files: SHA-256 over their names in order, each with its size and the digests of its
// pieces of 64 MiB, which `threads` threads read. Equal for every copy of a model. `progress` is told of bytes, done
// and in all, by one thread at a time; false ends the work. Errors: kIo, kNotFound (no tensor files), kCancelled.
[[nodiscard]] Result<kv::Digest> DigestWeights(
    const std::filesystem::path& dir, int threads,
    const std::function<bool(std::uint64_t done, std::uint64_t total)>& progress);

}  // namespace galley::engine
