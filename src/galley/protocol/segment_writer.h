// SPDX-License-Identifier: Apache-2.0
// Turns decided bytes into events. It knows the pieces that the output came in: bytes of one piece that mean the same
// are one event, a piece counts when all its bytes are decided, and a piece without bytes shows as an empty event of
// whatever stands before it. Internal to the output parser.
#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "galley/protocol/output_parser.h"

namespace galley::protocol::internal {

enum class Effect {
  kDrop,
  kReasoning,
  kContent,
  kJsonOpen,     // content that is an event of its own
  kCallStart,    // literal: the name
  kArguments,    // parts of a key or value
  kPunctuation,  // arguments that are an event of their own
};

// How a segment's text comes from its bytes.
enum class TextForm { kAsIs, kEscaped, kLiteral };

class SegmentWriter {
 public:
  // Events go to `events` from now on.
  void SetSink(std::vector<OutputEvent>* events) { events_ = events; }

  void AddPiece(const OutputPiece& piece);
  // The next `bytes` of the output mean `effect`. With kLiteral the text is `literal`, once, whatever the bytes.
  void Decide(std::string_view bytes, Effect effect, TextForm form = TextForm::kAsIs, std::string_view literal = {});
  // An event that no byte stands for.
  void Insert(Effect effect, std::string_view literal);

  [[nodiscard]] std::int64_t tokens() const { return tokens_; }
  // The last two bytes of content so far, fewer when there are not so many.
  [[nodiscard]] std::string_view content_tail() const { return content_tail_; }

 private:
  struct Piece {
    std::size_t left = 0;  // undecided bytes
    std::int64_t tokens = 0;
    bool control = false;
    std::vector<Logprob> logprobs;
  };

  void Open(Effect effect, std::string_view text, bool joinable);
  void Flush();
  void ClosePieces();
  void EmptyEvent(Effect effect);
  void Send(Effect effect, std::string text);

  std::vector<OutputEvent>* events_ = nullptr;
  std::deque<Piece> pieces_;
  std::int64_t tokens_ = 0;
  bool open_ = false;
  Effect open_effect_ = Effect::kDrop;
  std::string open_text_;
  std::string content_tail_;
  bool any_ = false;  // some byte was decided
  Effect last_effect_ = Effect::kDrop;
  int leading_empty_ = 0;  // pieces without bytes before the first decided byte
};

}  // namespace galley::protocol::internal
