// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "galley/grammar/compile.h"
#include "galley/grammar/ebnf.h"

namespace galley::grammar {

Compiled<Grammar> UnlessLimited(Compiled<Grammar> result, const Limits& limits, std::string_view what) {
  if (!limits.meter->tripped()) return result;
  if (!result && result.error().code != CompileCode::kUnsatisfiable) return result;
  CompileError error{CompileCode::kTooComplex, limits.Reached(*limits.meter, std::string(what)), "", "", std::nullopt};
  if (!result) error.pointer = result.error().pointer;
  return Refuse(std::move(error));
}

Compiled<Grammar> CompileKind(std::string_view kind, const JsonValue& spec, const std::vector<Marker>& markers,
                              const CompileOptions& options, std::shared_ptr<const Vocabulary> vocabulary) {
  const auto bad = [](std::string message) {
    return Refuse({CompileCode::kBadGrammar, std::move(message), "", "", std::nullopt});
  };
  if (kind == "json_schema") return CompileJsonSchema(spec, options, std::move(vocabulary));
  if (kind == "dsml") {
    for (const Marker& marker : markers) {
      if (marker.text == kDsmlMarker) return CompileDsml(spec, marker, options, std::move(vocabulary));
    }
    return bad("the model has no token for the tool call marker");
  }
  if (kind == "structural_tag") return CompileStructuralTag(spec, markers, options, std::move(vocabulary));
  if (kind == "choice") {
    std::vector<std::string> choices;
    for (const JsonValue& item : spec.items) {
      if (!item.is(JsonValue::Type::kString)) return bad("choice needs a list of strings");
      choices.push_back(item.text);
    }
    return CompileChoice(choices, options, std::move(vocabulary));
  }
  if (!spec.is(JsonValue::Type::kString)) return bad(fmt::format("{} needs a string", kind));
  if (kind == "regex") return CompileRegex(spec.text, options, std::move(vocabulary));
  if (kind == "ebnf") return CompileEbnf(spec.text, options, std::move(vocabulary));
  return bad(
      fmt::format("unknown kind {}; one of json_schema, regex, ebnf, choice, structural_tag, dsml", JsonQuote(kind)));
}

}  // namespace galley::grammar
