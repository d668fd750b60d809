// SPDX-License-Identifier: Apache-2.0
#include "packed_file.h"

#include <array>
#include <cstdio>

namespace galley::bench {

std::string ReadPacked(const std::string& path) {
  FILE* pipe = popen(((path.ends_with(".xz") ? "xz -dc '" : "cat '") + path + "'").c_str(), "r");
  if (pipe == nullptr) return {};
  std::string out;
  std::array<char, 1 << 16> buffer{};
  for (std::size_t n = 0; (n = fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) out.append(buffer.data(), n);
  return pclose(pipe) == 0 ? out : std::string();
}

}  // namespace galley::bench
