// SPDX-License-Identifier: Apache-2.0
// The pre-tokenizer of the DeepSeek V3 and V4 families, written by hand. It cuts text exactly as the three official
// Split patterns do when each is applied to the pieces of the one before:
//   1. \p{N}{1,3}
//   2. [一-龥぀-ゟ゠-ヿ]+
//   3. [ASCII punctuation][A-Za-z]+ | [^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+ | ?[\p{P}\p{S}]+[\r\n]* | \s*[\r\n]+ |
//      \s+(?!\S) | \s+
// Matches and the gaps between them are pieces. Bytes that are not valid UTF-8 count as characters of no class, one for
// each maximal invalid subpart. Pure functions; each byte is looked at a bounded number of times.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace galley::text {

// Whether `patterns` are the three official ones, in either spelling of their escapes that tokenizer files use.
[[nodiscard]] bool IsOfficialSplit(std::span<const std::string> patterns);

// End of the piece that starts at `pos`, which must be 0 or the end of a piece. Requires pos < text.size().
[[nodiscard]] std::size_t OfficialPieceEnd(std::string_view text, std::size_t pos);

// Characters that cutting all of `text` looks at, those looked at twice counted twice. Lets tests show that the work is
// linear without a clock.
[[nodiscard]] std::int64_t OfficialSplitSteps(std::string_view text);

}  // namespace galley::text
