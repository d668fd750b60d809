// SPDX-License-Identifier: Apache-2.0
#include "galley/protocol/call_block.h"

#include <algorithm>
#include <optional>

namespace galley::protocol::internal {
namespace {

constexpr std::size_t kNone = std::string::npos;
constexpr std::size_t kTagNameMax = 64;

bool IsBlank(char c) {
  return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}
bool IsNameByte(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}
bool IsQuote(char c) {
  return c == '"' || c == '\'';
}

std::size_t SkipBlanks(std::string_view text, std::size_t at) {
  while (at < text.size() && IsBlank(text[at])) ++at;
  return at;
}

bool SameWord(std::string_view text, std::string_view lower) {
  return std::equal(text.begin(), text.end(), lower.begin(), lower.end(),
                    [](char a, char b) { return (a >= 'A' && a <= 'Z' ? static_cast<char>(a + 32) : a) == b; });
}

struct Tag {
  std::size_t begin = 0;  // of `<`
  std::size_t name = 0;
  std::size_t name_end = 0;
  bool closing = false;

  [[nodiscard]] std::string_view Word(std::string_view text) const { return text.substr(name, name_end - name); }
};

// The tag around a marker: `<｜DSML｜ name` or `</｜DSML｜ name`. nullopt: no tag. A tag whose name touches the end of
// the text may go on.
std::optional<Tag> TagAt(std::string_view text, std::size_t marker) {
  Tag tag;
  if (marker >= 1 && text[marker - 1] == '<') {
    tag.begin = marker - 1;
  } else if (marker >= 2 && text[marker - 1] == '/' && text[marker - 2] == '<') {
    tag.begin = marker - 2;
    tag.closing = true;
  } else {
    return std::nullopt;
  }
  tag.name = SkipBlanks(text, marker + kMarkerBytes);
  tag.name_end = tag.name;
  while (tag.name_end < text.size() && tag.name_end - tag.name < kTagNameMax && IsNameByte(text[tag.name_end]))
    ++tag.name_end;
  return tag;
}

// The end of `>` after blanks at `at`; kNone when something else stands there or nothing yet.
std::size_t CloseBracket(std::string_view text, std::size_t at) {
  at = SkipBlanks(text, at);
  return at < text.size() && text[at] == '>' ? at + 1 : kNone;
}

// Reads `word` and blanks around an equals sign, then a quote; returns the offset after the quote, or kNone.
std::size_t Attribute(std::string_view text, std::size_t at, std::string_view word) {
  at = SkipBlanks(text, at);
  if (text.substr(at, word.size()) != word) return kNone;
  at = SkipBlanks(text, at + word.size());
  if (at >= text.size() || text[at] != '=') return kNone;
  at = SkipBlanks(text, at + 1);
  return at < text.size() && IsQuote(text[at]) ? at + 1 : kNone;
}

}  // namespace

std::size_t HeldOutput::MarkerFrom(std::size_t from) const {
  const auto found = std::lower_bound(markers.begin(), markers.end(), from);
  return found == markers.end() ? kNone : *found;
}

BlockItem BlockReader::Next(const HeldOutput& held, bool at_end) {
  const std::string_view text = held.bytes;
  while (stage_ != Stage::kBetween) {
    const Step step = stage_ == Stage::kCallHeader ? CallHeader(held)
                      : stage_ == Stage::kValue    ? Value(held, at_end)
                                                   : CallBody(held, at_end);
    if (step == Step::kContinue) continue;
    if (step == Step::kNeedMore) return BlockItem::kNeedMore;
    stage_ = Stage::kBetween;
    if (step == Step::kDone) return BlockItem::kCall;
    cursor_ = at_;  // as far as it was certainly read; what follows may be markup again
    return BlockItem::kText;
  }
  if (cursor_ >= text.size()) return BlockItem::kNeedMore;
  const std::size_t marker = held.MarkerFrom(cursor_);
  const std::optional<Tag> tag = marker == kNone ? std::nullopt : TagAt(text, marker);
  const std::size_t begin = tag && tag->begin >= cursor_ ? tag->begin : kNone;
  if (begin == cursor_) return NextTag(held, marker, tag->closing, at_end);
  if (marker != kNone || at_end) {
    // Text up to the tag, through a marker that begins none, or to the end.
    const std::size_t end = begin != kNone ? begin : marker != kNone ? marker + kMarkerBytes : text.size();
    const bool blank = SkipBlanks(text, cursor_) >= end;
    cursor_ = end;
    return blank ? BlockItem::kBlank : BlockItem::kText;
  }
  return BlockItem::kNeedMore;
}

BlockItem BlockReader::NextTag(const HeldOutput& held, std::size_t marker, bool closing, bool at_end) {
  const std::string_view text = held.bytes;
  const Tag tag = *TagAt(text, marker);
  const bool open_ended = tag.name_end == text.size();
  if (open_ended && !at_end) return BlockItem::kNeedMore;
  const auto as_text = [&](std::size_t end) {
    cursor_ = end;
    return BlockItem::kText;
  };
  const std::string_view word = tag.Word(text);
  if (!closing && SameWord(word, "invoke")) {
    call_ = {};
    at_ = tag.name_end;
    stage_ = Stage::kCallHeader;
    return Next(held, at_end);
  }
  const std::size_t end = word.empty() && !closing ? kNone : CloseBracket(text, tag.name_end);
  if (word.empty() && end == kNone) return BareTag(held, marker, at_end);
  if (end == kNone) {
    if (SkipBlanks(text, tag.name_end) == text.size()) return BlockItem::kNeedMore;
    return as_text(tag.name_end);
  }
  // A parameter outside a call, or the end of a call that was none.
  if (SameWord(word, "parameter") || SameWord(word, "invoke")) return as_text(end);
  cursor_ = end;
  return closing ? BlockItem::kClose : BlockItem::kOpen;
}

// `<｜DSML｜` or `</｜DSML｜` with no name behind it is text. Markers right behind it go along, so that leaving out the
// first one does not make a tag of the next.
BlockItem BlockReader::BareTag(const HeldOutput& held, std::size_t marker, bool at_end) {
  constexpr std::string_view kMarker = "｜DSML｜";
  const std::string_view text = held.bytes;
  std::size_t end = marker + kMarkerBytes;
  while (held.MarkerFrom(end) == end) end += kMarkerBytes;
  const std::string_view rest = text.substr(end);
  if (!at_end && rest.size() < kMarkerBytes && kMarker.starts_with(rest)) return BlockItem::kNeedMore;
  cursor_ = end;
  return BlockItem::kText;
}

// `name="…">` behind the word invoke; other attributes are passed over.
BlockReader::Step BlockReader::CallHeader(const HeldOutput& held) {
  const std::string_view text = held.bytes;
  const std::size_t limit = std::min(held.MarkerFrom(at_), text.size());
  const bool bounded = limit < text.size();
  const Step incomplete = bounded ? Step::kBroken : Step::kNeedMore;
  const std::size_t bracket = text.substr(0, limit).find('>', at_);
  if (bracket == kNone) return incomplete;
  const std::size_t name = Attribute(text, at_, "name");
  if (name == kNone || name > limit) return Step::kBroken;
  const char quote = text[name - 1];
  for (std::size_t at = name; at < limit; ++at) {
    if (text[at] != quote) continue;
    if (at + 1 >= text.size()) return Step::kNeedMore;
    if (text[at + 1] != '>' && !IsBlank(text[at + 1])) continue;
    const std::size_t end = text.substr(0, limit).find('>', at);
    if (end == kNone) return incomplete;
    call_.name = {name, at};
    call_.name_end = at;
    at_ = end + 1;
    stage_ = Stage::kCallBody;
    return Step::kContinue;
  }
  return incomplete;
}

// Between parameters: blanks, then another parameter or the end of the call.
BlockReader::Step BlockReader::CallBody(const HeldOutput& held, bool at_end) {
  const std::string_view text = held.bytes;
  const std::size_t at = SkipBlanks(text, at_);
  const std::size_t marker = held.MarkerFrom(at);
  if (marker == kNone) {
    // Only the beginning of a tag may stand here; anything else can be said to be wrong already.
    const std::string_view rest = text.substr(at);
    const bool may_be_tag =
        std::string_view("</｜DSML｜").starts_with(rest) || std::string_view("<｜DSML｜").starts_with(rest);
    return may_be_tag ? Step::kNeedMore : Step::kBroken;
  }
  const std::optional<Tag> tag = TagAt(text, marker);
  if (!tag || tag->begin != at) return Step::kBroken;
  if (tag->name_end == text.size() && !at_end) return Step::kNeedMore;
  if (tag->closing && SameWord(tag->Word(text), "invoke")) {
    const std::size_t end = CloseBracket(text, tag->name_end);
    if (end == kNone) return SkipBlanks(text, tag->name_end) == text.size() ? Step::kNeedMore : Step::kBroken;
    call_.closer = tag->begin;
    cursor_ = end;
    return Step::kDone;
  }
  if (tag->closing || !SameWord(tag->Word(text), "parameter")) return Step::kBroken;
  call_.parameters.push_back({.open = tag->name});
  return ParameterHeader(held, tag->name_end);
}

// `name="KEY" string="true">`. The key goes up to the last quote before the attribute `string`, whatever it holds.
BlockReader::Step BlockReader::ParameterHeader(const HeldOutput& held, std::size_t at) {
  const std::string_view all = held.bytes;
  CallParameter& parameter = call_.parameters.back();
  const std::size_t limit = held.MarkerFrom(at);
  const std::string_view text = all.substr(0, limit);
  const auto incomplete = [&] {
    call_.parameters.pop_back();
    return limit == kNone ? Step::kNeedMore : Step::kBroken;
  };
  const std::size_t key = Attribute(text, at, "name");
  if (key == kNone) return incomplete();
  const char quote = text[key - 1];
  for (std::size_t end = text.find(quote, key); end != kNone; end = text.find(quote, end + 1)) {
    const std::size_t value = Attribute(text, end + 1, "string");
    if (value == kNone) continue;
    const bool is_string = text.substr(value, 4) == "true";
    const std::size_t word_end = value + (is_string ? 4 : 5);
    if (!is_string && text.substr(value, 5) != "false") continue;
    if (word_end >= text.size() || text[word_end] != text[value - 1]) continue;
    const std::size_t start = CloseBracket(text, word_end + 1);
    if (start == kNone) continue;
    parameter.key = {key, end};
    parameter.value = {start, start};
    parameter.is_string = is_string;
    const std::string_view written = text.substr(end, start - end);
    parameter.exact = text.substr(at, key - at) == " name=\"" &&
                      (written == "\" string=\"true\">" || written == "\" string=\"false\">");
    at_ = next_closer_ = start;
    stage_ = Stage::kValue;
    return Step::kContinue;
  }
  // Without the attribute, where nothing but a plain key stands before the bracket: a string.
  const std::size_t end = text.find(quote, key);
  if (limit != kNone && end != kNone) {
    if (const std::size_t start = CloseBracket(text, end + 1); start != kNone) {
      parameter.key = {key, end};
      parameter.value = {start, start};
      parameter.exact = false;
      at_ = next_closer_ = start;
      stage_ = Stage::kValue;
      return Step::kContinue;
    }
  }
  return incomplete();
}

// A value ends at `</｜DSML｜ parameter>` only where another parameter or the end of the call follows.
BlockReader::Step BlockReader::Value(const HeldOutput& held, bool at_end) {
  const std::string_view text = held.bytes;
  for (;;) {
    const std::size_t marker = held.MarkerFrom(next_closer_);
    if (marker == kNone) return Step::kNeedMore;
    const std::optional<Tag> tag = TagAt(text, marker);
    const auto skip = [&] { next_closer_ = marker + kMarkerBytes; };
    if (!tag || !tag->closing || tag->begin < at_) {
      skip();
      continue;
    }
    if (tag->name_end == text.size() && !at_end) return Step::kNeedMore;
    const std::size_t end = CloseBracket(text, tag->name_end);
    if (end == kNone && SkipBlanks(text, tag->name_end) == text.size()) return Step::kNeedMore;
    if (!SameWord(tag->Word(text), "parameter") || end == kNone) {
      skip();
      continue;
    }
    const std::size_t next = SkipBlanks(text, end);
    const std::size_t next_marker = held.MarkerFrom(end);
    if (next_marker == kNone) {
      const std::string_view rest = text.substr(next);
      const bool may_be_tag =
          std::string_view("</｜DSML｜").starts_with(rest) || std::string_view("<｜DSML｜").starts_with(rest);
      if (may_be_tag) return Step::kNeedMore;
      skip();
      continue;
    }
    const std::optional<Tag> after = TagAt(text, next_marker);
    if (after && after->begin == next && after->name_end == text.size() && !at_end) return Step::kNeedMore;
    const std::string_view expected = after && after->closing ? "invoke" : "parameter";
    if (!after || after->begin != next || !SameWord(after->Word(text), expected)) {
      skip();
      continue;
    }
    call_.parameters.back().value.end = tag->begin;
    at_ = end;
    stage_ = Stage::kCallBody;
    return Step::kContinue;
  }
}

}  // namespace galley::protocol::internal
