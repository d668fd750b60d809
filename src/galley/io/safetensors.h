// SPDX-License-Identifier: Apache-2.0
// The safetensors format: eight bytes with the length of a JSON header, the header, then the tensors' bytes without
// holes. Reading trusts nothing: after a successful parse every tensor lies inside the file, no two overlap, and each
// has exactly the bytes that its shape and dtype need. Functions are pure but for WriteSafetensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "galley/base/error.h"

namespace galley::io {

// Longest header that is read, the limit of the format's own library.
inline constexpr std::size_t kSafetensorsHeaderMax = 100'000'000;

// Bits of one element of a dtype that the format knows ("BF16": 16, "F4": 4), nothing for another name.
[[nodiscard]] std::optional<int> SafetensorsBits(std::string_view dtype);

struct SafetensorsEntry {
  std::string name;
  std::string dtype;                // the format's spelling, one that SafetensorsBits knows
  std::vector<std::int64_t> shape;  // up to 64 dimensions >= 0; none for a scalar; the product fits std::int64_t
  std::uint64_t offset = 0;         // of the first byte, from the start of the file
  std::uint64_t bytes = 0;
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> tensors;  // in the order of their offsets
  std::vector<std::pair<std::string, std::string>> metadata;
};

// Parses the header of a whole file in memory (a mapping: only the header is touched). `where` names the file in
// errors. kCorrupt, naming the tensor and the value: a header longer than the file or the limit, invalid JSON, repeated
// or non-UTF-8 names, unknown dtypes, negative or overflowing shapes, offsets that are reversed, outside the file,
// overlapping, leave a hole, or disagree with shape and dtype.
[[nodiscard]] Result<SafetensorsHeader> ParseSafetensors(std::span<const std::byte> file, std::string_view where);

struct SafetensorsTensor {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::span<const std::byte> data;
};

// Writes a file atomically. Tensors are placed by falling element size, else in the given order, and the data starts
// at a multiple of eight, so that every element is aligned. kInvalidArgument: a repeated or non-UTF-8 name, an unknown
// dtype, or data that does not fit the shape; else as WriteFileAtomic. `written` is told of each tensor's data when
// that is no longer needed.
[[nodiscard]] Status WriteSafetensors(const std::filesystem::path& path, std::span<const SafetensorsTensor> tensors,
                                      std::span<const std::pair<std::string, std::string>> metadata = {},
                                      const std::function<void(std::span<const std::byte>)>& written = {});

}  // namespace galley::io
