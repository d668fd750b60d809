// SPDX-License-Identifier: Apache-2.0
// The tensor files of a model directory: model.safetensors.index.json and the shards it names, or one
// model.safetensors. Opening maps every shard and reads its header only. It goes on after a problem, so that one look
// at a damaged directory finds everything that is wrong. Owns the mappings; views of tensors stay valid until the set
// is destroyed. Movable; reading is safe from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "galley/base/error.h"
#include "galley/io/mapped_file.h"
#include "galley/io/safetensors.h"

namespace galley::io {

inline constexpr std::string_view kIndexFile = "model.safetensors.index.json";
inline constexpr std::string_view kSingleFile = "model.safetensors";

// The weight_map of an index: (tensor name, file name) in file order. kCorrupt: not JSON, no weight_map, repeated
// names, or a file name that is not a plain *.safetensors name in the same directory.
using WeightMap = std::vector<std::pair<std::string, std::string>>;
[[nodiscard]] Result<WeightMap> ParseIndex(std::string_view json, std::string_view where);

struct ShardTensor {
  SafetensorsEntry entry;
  std::size_t shard;  // index into ShardSet::files
};

struct ShardFile {
  std::string name;  // without the directory, when it lies in that
  MappedFile file;
};

struct ShardSet {
  std::vector<ShardFile> files;      // those that could be opened and parsed
  std::vector<ShardTensor> tensors;  // those that index and shard agree on
  // Names that the index gives to a shard that is absent or unreadable, or that the shard does not hold. They have been
  // reported in `problems`, so a check of the tensor list need not report them again.
  std::vector<std::string> unreadable;
  std::vector<Error> problems;
  std::uint64_t total_bytes = 0;  // of all files, headers included

  // Bytes of a tensor of this set.
  [[nodiscard]] std::span<const std::byte> Data(const ShardTensor& tensor) const {
    return files[tensor.shard].file.bytes().subspan(static_cast<std::size_t>(tensor.entry.offset),
                                                    static_cast<std::size_t>(tensor.entry.bytes));
  }
};

[[nodiscard]] ShardSet OpenShards(const std::filesystem::path& dir);

// One file in place of a directory's: its only shard, named by the whole path.
[[nodiscard]] ShardSet OpenTensorFile(const std::filesystem::path& path);

// "a, b, c and 17 more": at most `shown` of the names, made printable.
[[nodiscard]] std::string ListNames(std::span<const std::string> names, std::size_t shown);

}  // namespace galley::io
