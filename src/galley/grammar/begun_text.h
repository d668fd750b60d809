// SPDX-License-Identifier: Apache-2.0
// What the beginning of a string's spelling says of its text. A pure function; the spelling is one that a lexeme took.
#pragma once

#include <string>
#include <string_view>

#include "galley/grammar/code_point_set.h"

namespace galley::grammar {

struct BegunText {
  std::u32string text;  // whole characters
  CodePointSet next;    // what the character under way may still become; empty between two characters
};

// `raw` begins behind the opening quote and is read up to the closing one, if that is there. `escapes`: those of JSON;
// otherwise a backslash stands for itself.
[[nodiscard]] BegunText ReadBegunText(std::string_view raw, bool escapes);

}  // namespace galley::grammar
