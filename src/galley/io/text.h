// SPDX-License-Identifier: Apache-2.0
// Text from files that nobody has vetted (tensor names, file names, JSON tokens), made safe to show to a person or to
// write as JSON. Pure functions.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace galley::io {

// Bytes of the well-formed UTF-8 sequence at the start of `text` (1 to 4), or 0 when it is malformed: overlong,
// truncated, a surrogate or above U+10FFFF. `text` must not be empty.
[[nodiscard]] std::size_t Utf8SequenceLength(std::string_view text);

// `text` for an error message: control characters and malformed bytes as \xNN, cut to about `max_bytes` with "…".
[[nodiscard]] std::string Printable(std::string_view text, std::size_t max_bytes = 200);

// `text` as a JSON string with its quotes. Malformed UTF-8 becomes U+FFFD, so that the result is always valid JSON.
[[nodiscard]] std::string JsonQuote(std::string_view text);

}  // namespace galley::io
