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

// Caps on what one grammar may cost. A reached cap is named in the error.
struct Limits {
  int nesting_max = 256;                        // of JSON values, groups in a regex and rules in a grammar
  std::uint32_t nfa_states_max = 200'000;       // after repeats are unrolled, per lexeme
  std::uint32_t dfa_states_max = 400'000;       // lazily built, per lexeme
  std::uint32_t goals_max = 20'000;             // distinct conjunctions of subschemas
  std::uint32_t branches_max = 4'096;           // alternatives of one conjunction
  std::uint64_t steps_max = 60'000'000;         // elementary steps of the compiler, the deterministic stand-in for time
  std::uint64_t spec_bytes_max = 8u << 20;      // one regex or pattern
  std::uint32_t state_items_max = 30'000;       // places in the grammar that one text may be at
  std::uint64_t mask_steps_max = 40'000'000;    // trie nodes walked for one mask
  std::uint64_t matcher_bytes_max = 16u << 20;  // states kept by one request before old ones are dropped
};

}  // namespace galley::grammar
