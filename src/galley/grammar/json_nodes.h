// SPDX-License-Identifier: Apache-2.0
// The fixed lexemes of JSON texts, with the blanks that an option allows: brackets, separators, literals. Builds each
// once per program.
#pragma once

#include <map>
#include <string>

#include "galley/grammar/compile.h"
#include "galley/grammar/program.h"

namespace galley::grammar {

class JsonNodes {
 public:
  JsonNodes(Program& program, Whitespace whitespace) : program_(program), whitespace_(whitespace) {}

  // A lexeme node for one of `words`, with blanks before and behind as asked. Several words lead to `outs` in order.
  [[nodiscard]] NodeId Words(const std::vector<std::string>& words, Regex before, Regex behind,
                             std::vector<NodeId> outs);
  // Blanks that may stand anywhere between tokens.
  [[nodiscard]] Regex Blanks() const;
  // Blanks behind "," and ":".
  [[nodiscard]] Regex AfterSeparator() const;
  // Nodes behind a value, ",": `more`, closing bracket: `end`.
  [[nodiscard]] SeparatorNodes Separators(char close, NodeId more, NodeId end);
  [[nodiscard]] NodeId Open(char bracket, NodeId next);
  [[nodiscard]] NodeId Colon(NodeId next);
  // Blanks alone, possibly none.
  [[nodiscard]] NodeId BlanksOnly(NodeId next);

 private:
  // What is written in words from outside can be too long; the program's meter has tripped then.
  [[nodiscard]] std::uint32_t AddLexeme(std::vector<Regex> options);

  Program& program_;
  Whitespace whitespace_;
  std::map<std::string, std::uint32_t> machines_;
};

}  // namespace galley::grammar
