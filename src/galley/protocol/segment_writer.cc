// SPDX-License-Identifier: Apache-2.0
#include "galley/protocol/segment_writer.h"

#include <algorithm>
#include <optional>

#include "galley/base/check.h"

namespace galley::protocol::internal {
namespace {

std::optional<OutputKind> KindOf(Effect effect) {
  switch (effect) {
    case Effect::kDrop:
      return std::nullopt;
    case Effect::kReasoning:
      return OutputKind::kReasoning;
    case Effect::kContent:
    case Effect::kJsonOpen:
      return OutputKind::kContent;
    case Effect::kCallStart:
      return OutputKind::kCallStart;
    case Effect::kArguments:
    case Effect::kPunctuation:
      return OutputKind::kCallArguments;
  }
  return std::nullopt;
}

bool ShowsText(Effect effect) {
  return effect == Effect::kContent || effect == Effect::kJsonOpen || effect == Effect::kReasoning;
}

}  // namespace

void SegmentWriter::AddPiece(const OutputPiece& piece) {
  pieces_.push_back({piece.text.size(), piece.tokens, piece.control, piece.logprobs});
  ClosePieces();
}

void SegmentWriter::Decide(std::string_view bytes, Effect effect, TextForm form, std::string_view literal) {
  while (!bytes.empty()) {
    CHECK(!pieces_.empty()) << bytes.size() << " bytes decided that were never given";
    Piece& piece = pieces_.front();
    const std::size_t count = std::min(piece.left, bytes.size());
    const std::string_view part = bytes.substr(0, count);
    const Effect shown = piece.control && ShowsText(effect) ? Effect::kDrop : effect;
    const bool last = count == bytes.size();
    std::string text;
    if (form == TextForm::kAsIs) text = part;
    if (form == TextForm::kEscaped) AppendEscaped(text, part);
    if (form == TextForm::kLiteral && last) text = literal;
    // A literal belongs to the part that completes it; earlier parts only carry the meaning on.
    Open(form == TextForm::kLiteral && !last ? Effect::kDrop : shown, text,
         shown == Effect::kContent || shown == Effect::kReasoning || shown == Effect::kArguments);
    piece.left -= count;
    bytes.remove_prefix(count);
    ClosePieces();
  }
}

void SegmentWriter::Insert(Effect effect, std::string_view literal) {
  Flush();
  Send(effect, std::string(literal));
}

void SegmentWriter::Open(Effect effect, std::string_view text, bool joinable) {
  if (effect == Effect::kContent || effect == Effect::kJsonOpen) {
    content_tail_ += text.substr(text.size() - std::min<std::size_t>(text.size(), 2));
    if (content_tail_.size() > 2) content_tail_.erase(0, content_tail_.size() - 2);
  }
  if (!any_) {
    any_ = true;
    for (; leading_empty_ > 0; --leading_empty_) EmptyEvent(effect);
  }
  if (open_ && joinable && open_effect_ == effect) {
    open_text_ += text;
    return;
  }
  Flush();
  open_ = true;
  open_effect_ = last_effect_ = effect;
  open_text_ = text;
}

void SegmentWriter::Flush() {
  if (!open_) return;
  open_ = false;
  Send(open_effect_, std::exchange(open_text_, {}));
}

void SegmentWriter::Send(Effect effect, std::string text) {
  const std::optional<OutputKind> kind = KindOf(effect);
  if (!kind) return;
  OutputEvent event{*kind, std::move(text)};
  if (ShowsText(effect) && !pieces_.empty()) event.logprobs = std::exchange(pieces_.front().logprobs, {});
  events_->push_back(std::move(event));
}

void SegmentWriter::EmptyEvent(Effect effect) {
  if (effect == Effect::kPunctuation) effect = Effect::kArguments;
  if (ShowsText(effect) || effect == Effect::kArguments) events_->push_back({*KindOf(effect)});
}

void SegmentWriter::ClosePieces() {
  while (!pieces_.empty() && pieces_.front().left == 0) {
    const bool had_segment = open_;
    Flush();
    // A piece that gave bytes has just closed its last segment; one that gave none repeats what stands before it.
    if (!had_segment && any_)
      EmptyEvent(last_effect_);
    else if (!had_segment)
      ++leading_empty_;
    tokens_ += pieces_.front().tokens;
    pieces_.pop_front();
  }
}

}  // namespace galley::protocol::internal
