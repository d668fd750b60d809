// SPDX-License-Identifier: Apache-2.0
// Why a grammar was refused, in the words of the line protocol and of HTTP 400 bodies. Plain data.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>

#include "galley/base/error.h"
#include "galley/grammar/limits.h"

namespace galley::grammar {

enum class CompileCode {
  kBadJson,             // the specification is not JSON
  kBadSchema,           // a keyword's value has the wrong form, or a $ref leads nowhere
  kBadRegex,            // syntax error, or a construct that is not regular
  kBadGrammar,          // EBNF, structural tag or tool set is malformed
  kUnsupportedKeyword,  // understood, but not enforced exactly, so refused
  kUnsatisfiable,       // no text can satisfy it
  kTooComplex,          // a limit of Limits was reached
};

[[nodiscard]] std::string_view Label(CompileCode code);

struct CompileError {
  CompileCode code = CompileCode::kBadSchema;
  std::string message;
  std::string pointer;                    // JSON Pointer of the schema that is meant; empty at the root
  std::string keyword;                    // schema keyword, when one is to blame
  std::optional<std::uint64_t> position;  // byte offset into a regex or grammar text

  // For callers that speak the engine's vocabulary: every compile error is the client's fault.
  [[nodiscard]] Error ToError() const;
};

template <typename T>
using Compiled = tl::expected<T, CompileError>;

[[nodiscard]] inline tl::unexpected<CompileError> Refuse(CompileError error) {
  return tl::unexpected<CompileError>(std::move(error));
}

}  // namespace galley::grammar
