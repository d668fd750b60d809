// SPDX-License-Identifier: Apache-2.0
// Grammars from the command line: what commands that constrain or check an answer share.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "command.h"
#include "galley/engine/grammar_constraint.h"

namespace galley::app {

// --whitespace, --any-order, --lenient, --grammar-limits.
[[nodiscard]] Result<grammar::CompileOptions> CompileOptionsOf(const options::Values& values);

// A refusal as an error of the command: `where` is the file or flag, followed by the place inside it.
[[nodiscard]] Error RefusalError(const grammar::CompileError& error, const std::string& where);

// What a file of this kind holds: JSON, or for regex and ebnf text, a pattern without its last line end.
[[nodiscard]] Result<grammar::JsonValue> ReadSpec(const std::string& path, std::string_view kind,
                                                  const grammar::Limits& limits);

// What --json-schema, --regex or --grammar ask for; nothing when none is given. Errors: kInvalidArgument when several
// are, those of reading.
struct AskedGrammar {
  std::string where;  // file or flag, for errors
  engine::GrammarRequest request;
};
[[nodiscard]] Result<std::optional<AskedGrammar>> ReadAskedGrammar(const options::Values& values);

// The constraint for one answer of this model. With `thinking` it begins behind the reasoning.
[[nodiscard]] Result<std::shared_ptr<const engine::TokenConstraint>> MakeConstraint(AskedGrammar asked,
                                                                                    const engine::Generator& generator,
                                                                                    bool thinking);

}  // namespace galley::app
