// SPDX-License-Identifier: Apache-2.0
// Input of benchmarks.
#pragma once

#include <string>

namespace galley::bench {

// A file's bytes, unpacked by `xz` when its name ends in .xz; empty when it cannot be read.
[[nodiscard]] std::string ReadPacked(const std::string& path);

}  // namespace galley::bench
