// SPDX-License-Identifier: Apache-2.0
// A file with weights: where it is mapped, and where it lies, for backends that read parts of it by themselves. A
// value; the mapping belongs to the checkpoint.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

namespace galley::backend {

struct WeightFile {
  std::span<const std::byte> mapped;  // the whole file, from its first byte on
  std::filesystem::path path;
};

}  // namespace galley::backend
