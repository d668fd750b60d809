// SPDX-License-Identifier: Apache-2.0
// The `format` names that are enforced, as patterns. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace galley::grammar {

// Every `must` and no `must_not` pattern (searched, as `pattern` is) has to match.
struct FormatPatterns {
  std::vector<std::string> must;
  std::vector<std::string> must_not;
  std::uint32_t length_max = 0;  // 0 for none
  bool host_name = false;        // HostNames instead of patterns
  [[nodiscard]] bool known() const { return !must.empty() || host_name; }
};

[[nodiscard]] FormatPatterns FindFormat(std::string_view name);

// Names that FindFormat knows, for messages.
[[nodiscard]] std::string KnownFormats();

}  // namespace galley::grammar
