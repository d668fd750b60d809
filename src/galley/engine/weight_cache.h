// SPDX-License-Identifier: Apache-2.0
// The weights of a model once more, in one file and in the order in which they are used: the arrays of an expert lie
// together, whatever the model's own files look like, so an expert is one read. The file is a tensor file whose
// metadata name a version and the digest of the model it was made from; one that does not belong to the model, whose
// header or length is damaged, or that cannot be written is never in the way of a start. Changed bytes of weights are
// noticed when that is asked for, since it takes reading all of them. It may be deleted at any time, also while it is
// in use.
#pragma once

#include <filesystem>

#include "galley/base/error.h"
#include "galley/model/checkpoint.h"

namespace galley::engine {

enum class CacheCheck {
  kHeader,  // whether it belongs to the model and is whole
  kBytes,   // and every byte of weights, against the model's own files
};

// The model of `dir`, its tensors from the cache at `cache` when that is good; otherwise the cache is written first. If
// that fails a warning says why, and the model's own files are read. Errors: those of Checkpoint::Open;
// kInvalidArgument (`cache` is another file, which is left alone, or would lie among the tensor files of `dir`); those
// of InputFile::Open (it is a file that cannot be read).
[[nodiscard]] Result<model::Checkpoint> OpenWithCache(const std::filesystem::path& dir,
                                                      const std::filesystem::path& cache,
                                                      CacheCheck check = CacheCheck::kHeader);

}  // namespace galley::engine
