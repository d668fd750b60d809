// SPDX-License-Identifier: Apache-2.0
// Why a text is refused, for people: where it stops being the beginning of any sentence, what stands there, and what
// could. Pure; uses the matcher's grammar, so belongs to its thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "galley/grammar/compile.h"

namespace galley::grammar {

struct Explanation {
  std::string failure;  // a limit was reached, so that nothing else is known
  Matcher::Judgement judgement;
  std::size_t line = 1;              // of the first byte that is not accepted, from 1
  std::size_t column = 1;            // in characters, from 1
  std::string found;                 // the character there, quoted, or "the end of the text"
  std::vector<std::string> allowed;  // what may stand there: quoted characters, ranges, control tokens, the end
  std::string forced;                // when there is no choice: what has to follow
  std::string place;                 // JSON text: JSON Pointer of the value that is being written there
  std::string schema_pointer;        // JSON Schema: where the schema for that value is, when it can be told
  std::string schema;                // and its text, cut when long
};

// `spec` is the JSON Schema that the grammar came from, or null for other grammars. `markers` names control tokens;
// in the text, the spelling of the tool call marker stands for its token.
[[nodiscard]] Explanation Explain(Matcher& matcher, std::string_view text, const JsonValue* schema,
                                  const std::vector<Marker>& markers);

// Some lines for a terminal; `text` is the one that was explained.
[[nodiscard]] std::string ToText(const Explanation& explanation, std::string_view text);
// One JSON object.
[[nodiscard]] std::string ToJson(const Explanation& explanation);

}  // namespace galley::grammar
