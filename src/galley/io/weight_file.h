// SPDX-License-Identifier: Apache-2.0
// A file with weights: where it is mapped, and where it lies, for those who read parts of it by themselves. A value;
// the mapping belongs to the checkpoint.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>

namespace galley::io {

// Which file a path stood for when it was opened, whatever it stands for later. All zero: not known.
struct FileId {
  std::uint64_t device = 0, inode = 0;
  friend bool operator==(const FileId&, const FileId&) = default;
};

struct WeightFile {
  std::span<const std::byte> mapped;  // the whole file, from its first byte on
  std::filesystem::path path;
  FileId id = {};
};

// Told how many bytes of how many are done, never fewer than before; false ends the work with kCancelled.
using Progress = std::function<bool(std::uint64_t done, std::uint64_t total)>;

}  // namespace galley::io
