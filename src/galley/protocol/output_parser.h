// SPDX-License-Identifier: Apache-2.0
// Reads what the model writes and says what it means: reasoning, content and tool calls. A state machine over bytes:
// its results do not depend on how the output was cut into pieces. Owned by the stream of one sequence; no threads, no
// clock. The rules are behaviour 1.4, with the better results of its part 3:
//  * a call is reported only when its invoke is closed, its name is declared and its arguments are an object; what is
//    not a call comes back as content without DSML markers, or is dropped when the output was cut off;
//  * in JSON mode exactly the first JSON value is content;
//  * a control token that the model should not write ends the output (end of sentence) or is dropped.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "galley/protocol/request.h"

namespace galley::protocol {

struct AlternativeLogprob {
  std::string bytes;  // of the token
  double logprob = 0;
};
struct Logprob {
  std::string bytes;
  double logprob = 0;
  std::vector<AlternativeLogprob> top{};  // most likely first
};

// Where the bytes of a piece come from, which decides what they may match: a marker such as ｜DSML｜ or </think> is
// never spelled by ordinary tokens, and a tag name or stop string never lies inside a control token.
enum class PieceSource {
  kText,      // text whose tokens are unknown: may be anything
  kOrdinary,  // tokens of the ordinary vocabulary
  kAdded,     // one added token
};

// A part of the output that is counted and cut as one.
struct OutputPiece {
  std::string text;
  PieceSource source = PieceSource::kText;
  bool control = false;  // an added token that has no place in an answer: its text is not shown
  std::int64_t tokens = 0;
  std::vector<Logprob> logprobs{};
};

enum class Finish { kStop, kLength, kContentFilter };

enum class OutputKind { kReasoning, kContent, kCallStart, kCallArguments };
struct OutputEvent {
  OutputKind kind = OutputKind::kContent;
  std::string text{};  // the delta, or the name for kCallStart
  std::vector<Logprob> logprobs{};
};

struct OutputResult {
  Finish finish = Finish::kStop;
  std::optional<std::string> stop_sequence;  // the one that ended the output
  int calls = 0;
};

struct OutputParserOptions {
  ParsingOptions parsing;
  std::vector<std::string> tool_names{};  // declared: a call of another name is not a call
  bool custom_apply_patch = false;        // apply_patch takes exactly one string, `input`
};
[[nodiscard]] OutputParserOptions ParserOptionsFor(const ParsedRequest& request);

class OutputParser {
 public:
  explicit OutputParser(OutputParserOptions options);
  OutputParser(OutputParser&&) noexcept;
  OutputParser& operator=(OutputParser&&) noexcept;
  ~OutputParser();

  // Takes the next piece; ignored once done(). Events that became certain are appended to `events`.
  void Push(OutputPiece piece, std::vector<OutputEvent>& events);
  // End of the output: nothing stays undecided. nullopt: the input ended without saying why, which counts as kStop.
  void End(std::optional<Finish> finish, std::vector<OutputEvent>& events);

  // Whether the output has ended: by End or by a stop sequence. Nothing is read after that.
  [[nodiscard]] bool done() const;
  // Meaningful when done().
  [[nodiscard]] const OutputResult& result() const;
  // Tokens of the pieces that are completely decided; all pieces once done().
  [[nodiscard]] std::int64_t tokens() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace galley::protocol
