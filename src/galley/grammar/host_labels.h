// SPDX-License-Identifier: Apache-2.0
// Labels of international host names in their ASCII form, xn--…: Punycode (RFC 3492) of what IDNA 2008 (RFC 5892, 5893)
// allows, judged on the safe side: what would take tables of decompositions to decide is not valid here. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace galley::grammar {

struct HostLabel {
  bool right_to_left = false;
};

// `text` is what stands behind "xn--", in lower case. Nothing when it is not valid.
[[nodiscard]] std::optional<HostLabel> ReadHostLabel(std::string_view text);

// Punycode without its prefix; `label` holds at least one code point beyond ASCII.
[[nodiscard]] std::string Punycode(const std::vector<std::uint32_t>& label);

}  // namespace galley::grammar
