// SPDX-License-Identifier: Apache-2.0
#include "galley/grammar/compile_error.h"

#include <array>

#include "galley/base/check.h"

namespace galley::grammar {
namespace {

struct Row {
  CompileCode code;
  std::string_view label;
};

constexpr std::array kRows = {
    Row{CompileCode::kBadJson, "bad_json"},
    Row{CompileCode::kBadSchema, "bad_schema"},
    Row{CompileCode::kBadRegex, "bad_regex"},
    Row{CompileCode::kBadGrammar, "bad_grammar"},
    Row{CompileCode::kUnsupportedKeyword, "unsupported_keyword"},
    Row{CompileCode::kUnsatisfiable, "unsatisfiable"},
    Row{CompileCode::kTooComplex, "grammar_too_complex"},
};

}  // namespace

std::string_view Label(CompileCode code) {
  const auto index = static_cast<std::size_t>(code);
  CHECK(index < kRows.size() && kRows[index].code == code) << "compile code " << index << " has no table row";
  return kRows[index].label;
}

Error CompileError::ToError() const {
  std::string where = pointer;
  if (!keyword.empty()) where += (where.empty() ? "keyword " : " keyword ") + keyword;
  if (position) where += (where.empty() ? "byte " : " byte ") + std::to_string(*position);
  const bool unsupported = code == CompileCode::kUnsupportedKeyword;
  return Error{unsupported ? ErrorCode::kUnsupported : ErrorCode::kInvalidArgument, message, std::move(where)};
}

}  // namespace galley::grammar
