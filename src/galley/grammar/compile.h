// SPDX-License-Identifier: Apache-2.0
// Front ends: what users send → Grammar. Each is a pure function; a refusal names the place and the reason. One call
// per thread at a time; the results may be shared.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "galley/grammar/json_value.h"
#include "galley/grammar/matcher.h"

namespace galley::grammar {

// Blanks between the tokens of JSON.
enum class Whitespace {
  kCompact,   // none
  kDefault,   // at most one space behind "," and ":"
  kFlexible,  // up to kBlanksMax blanks anywhere JSON allows them
};

// Longest run of blanks: enough for deep indentation, and an end to a model that would write nothing else.
inline constexpr std::uint32_t kBlanksMax = 128;

struct CompileOptions {
  Whitespace whitespace = Whitespace::kDefault;
  bool any_order = false;      // declared members in any order instead of the schema's
  bool plain_numbers = false;  // whole numbers without fraction and exponent, which a model could go on with for ever
  bool lenient = false;        // unknown keywords and formats become warnings instead of refusals
  Limits limits = {};
};

// Where a limit was reached while `result` was compiled, the refusal that names it, instead of a grammar in which
// states are missing or of an error that takes them for texts that do not exist.
[[nodiscard]] Compiled<Grammar> UnlessLimited(Compiled<Grammar> result, const Limits& limits, std::string_view what);

// The marker of tool calls in DeepSeek's models.
inline constexpr std::string_view kDsmlMarker = "｜DSML｜";

// A token that stands for itself, never for its spelling.
struct Marker {
  std::string text;         // how it is written in specifications and in checks
  std::uint32_t token = 0;  // its id
};

[[nodiscard]] Compiled<Grammar> CompileRegex(std::string_view pattern, const CompileOptions& options,
                                             std::shared_ptr<const Vocabulary> vocabulary);
[[nodiscard]] Compiled<Grammar> CompileChoice(const std::vector<std::string>& choices, const CompileOptions& options,
                                              std::shared_ptr<const Vocabulary> vocabulary);
[[nodiscard]] Compiled<Grammar> CompileEbnf(std::string_view text, const CompileOptions& options,
                                            std::shared_ptr<const Vocabulary> vocabulary);
[[nodiscard]] Compiled<Grammar> CompileJsonSchema(const JsonValue& schema, const CompileOptions& options,
                                                  std::shared_ptr<const Vocabulary> vocabulary);
// `markers` are the control tokens that the tag may name in "token" parts or inside its strings.
[[nodiscard]] Compiled<Grammar> CompileStructuralTag(const JsonValue& tag, const std::vector<Marker>& markers,
                                                     const CompileOptions& options,
                                                     std::shared_ptr<const Vocabulary> vocabulary);
// Tool calls in DeepSeek's markup. `tools` is {spelling: "v41" | "v4", mode: "block" | "inside" | "auto",
// parallel: bool, only: name | null, tools: [{name, parameters, strict}], otherwise: {kind: "json_schema" | "regex",
// spec}}. With `otherwise` (mode auto) the text is the block or an answer of that form, instead of free text. A tool
// without parameters takes any, each name once; where `strict` is false, so does one whose schema cannot be enforced.
[[nodiscard]] Compiled<Grammar> CompileDsml(const JsonValue& tools, const Marker& marker, const CompileOptions& options,
                                            std::shared_ptr<const Vocabulary> vocabulary);

// By the name that requests use: json_schema, regex, ebnf, choice, structural_tag, dsml.
[[nodiscard]] Compiled<Grammar> CompileKind(std::string_view kind, const JsonValue& spec,
                                            const std::vector<Marker>& markers, const CompileOptions& options,
                                            std::shared_ptr<const Vocabulary> vocabulary);

}  // namespace galley::grammar
