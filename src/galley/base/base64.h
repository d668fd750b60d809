// SPDX-License-Identifier: Apache-2.0
// Base64 (RFC 4648, with padding). Pure.
#pragma once

#include <string>
#include <string_view>

namespace galley {

[[nodiscard]] std::string Base64Encode(std::string_view bytes);
// Up to the first character that is not of the alphabet.
[[nodiscard]] std::string Base64Decode(std::string_view text);

}  // namespace galley
