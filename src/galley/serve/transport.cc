// SPDX-License-Identifier: Apache-2.0
#include "galley/serve/transport.h"

#include <algorithm>

namespace galley::serve {
namespace {

char Lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
}

}  // namespace

std::string_view FindHeader(const Headers& headers, std::string_view name) {
  const auto same = [&](const auto& header) {
    return std::equal(header.first.begin(), header.first.end(), name.begin(), name.end(),
                      [](char a, char b) { return Lower(a) == Lower(b); });
  };
  const auto found = std::find_if(headers.begin(), headers.end(), same);
  return found == headers.end() ? std::string_view() : std::string_view(found->second);
}

}  // namespace galley::serve
