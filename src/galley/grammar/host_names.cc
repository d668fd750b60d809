// SPDX-License-Identifier: Apache-2.0
#include "galley/grammar/host_names.h"

#include <algorithm>
#include <array>

#include "galley/base/rng.h"
#include "galley/grammar/host_labels.h"

namespace galley::grammar {
namespace {

constexpr std::uint8_t kLabelMax = 63, kNameMax = 253;
// "x-" and three digits insert one letter.
constexpr std::uint32_t kInsertion = 5;
constexpr std::uint32_t kLetter = 0xE9;
constexpr std::string_view kChars = "abcdefghijklmnopqrstuvwxyz0123456789-.ABCDEFGHIJKLMNOPQRSTUVWXYZ";

bool IsDigit(char c) {
  return c >= '0' && c <= '9';
}

std::uint32_t RoomOf(std::size_t length, std::size_t total) {
  return static_cast<std::uint32_t>(std::min<std::size_t>(kLabelMax - length, kNameMax - total));
}

// Whether `base` with a letter inserted somewhere is a valid label that begins with `text` and has at most `room` more.
bool InsertionFits(std::string_view base, std::string_view text, std::size_t room) {
  for (const std::size_t at : std::array<std::size_t, 4>{0, 1, 2, base.size()}) {
    if (at > base.size()) continue;
    std::vector<std::uint32_t> label;
    for (std::size_t i = 0; i < base.size(); ++i) {
      if (i == at) label.push_back(kLetter);
      label.push_back(static_cast<unsigned char>(base[i]));
    }
    if (at == base.size()) label.push_back(kLetter);
    const std::string whole = Punycode(label);
    const bool longer = whole.size() > text.size() && whole.size() - text.size() <= room;
    if (longer && whole.starts_with(text) && ReadHostLabel(whole)) return true;
  }
  return false;
}

}  // namespace

HostNames::HostNames(const Limits& limits) : CharDfa(limits.MeterOrNew()) {
  std::vector<CodePointSet> sets;
  for (const char c : kChars) sets.push_back(CodePointSet::Single(static_cast<unsigned char>(c)));
  classes_ = CharClasses::OfSets(sets);
  char_of_.assign(classes_.count(), 0);
  for (const char c : kChars) char_of_[classes_.ClassOf(static_cast<unsigned char>(c))] = c;
  Reset();
}

void HostNames::Reset() {
  labels_.assign(1, kNoLabel);
  places_.assign(1, {});
  ids_.clear();
  bytes_ = 0;
  start_ = Intern({});
}

std::size_t HostNames::PlaceHash::operator()(const Place& place) const {
  std::uint64_t hash = MixBits(static_cast<std::uint64_t>(place.head) | std::uint64_t{place.length} << 8 |
                               std::uint64_t{place.total} << 16 | std::uint64_t{place.hyphen} << 24 |
                               std::uint64_t{place.digit_first} << 25 | std::uint64_t{place.right_to_left} << 26);
  for (const char c : place.text) hash = MixBits(hash ^ static_cast<unsigned char>(c));
  return hash;
}

CharDfa::State HostNames::Intern(const Place& place) {
  const auto found = ids_.find(place);
  if (found != ids_.end()) return found->second;
  const auto id = static_cast<State>(places_.size());
  ids_.emplace(place, id);
  places_.push_back(place);
  labels_.push_back(Complete(place) ? 0 : kNoLabel);
  Grow(2 * (sizeof(Place) + place.text.size()) + 48);
  return id;
}

bool HostNames::Complete(Place place) {
  return EndLabel(place);
}

// A name with a label from right to left has no label that begins with a digit (RFC 5893); of others, who knows.
bool HostNames::EndLabel(Place& place) {
  if (place.length == 0) return false;
  if (place.head == Head::kInternational) {
    const auto label = ReadHostLabel(place.text);
    if (!label) return false;
    (label->right_to_left ? place.right_to_left : place.digit_first) = true;
  } else if (place.hyphen) {
    return false;
  }
  return !(place.right_to_left && place.digit_first);
}

bool HostNames::Lives(const Place& place) {
  const std::uint32_t room = RoomOf(place.length, place.total);
  if (place.head != Head::kInternational) return place.length > 0 && !place.hyphen ? true : room > 0;
  // In a name with a label from right to left only another one may follow, and that one is not looked for.
  const std::string& text = place.text;
  Place ended = place;
  if (EndLabel(ended)) return true;
  if (place.right_to_left) return false;
  if (text.starts_with("---")) return false;
  if (room >= kInsertion) return true;
  const std::size_t hyphen = text.rfind('-');
  return InsertionFits(text, text, room) || InsertionFits(text + "x", text, room) ||
         (hyphen != std::string::npos && InsertionFits(std::string_view(text).substr(0, hyphen), text, room));
}

bool HostNames::Extend(Place& place, char c) const {
  if (place.length >= kLabelMax) return false;
  const bool hyphen = c == '-';
  if (place.length == 0 && hyphen) return false;
  ++place.length;
  place.hyphen = hyphen;
  switch (place.head) {
    case Head::kStart:
      place.head = c == 'x' ? Head::kX : Head::kOther;
      if (IsDigit(c)) place.digit_first = true;
      return !(place.right_to_left && place.digit_first);
    case Head::kX:
      place.head = c == 'n' ? Head::kXn : Head::kOther;
      return true;
    case Head::kXn:
      place.head = hyphen ? Head::kXnHyphen : Head::kOther;
      return true;
    case Head::kXnHyphen:
      place.head = hyphen ? Head::kInternational : Head::kOther;
      return true;
    case Head::kOther:
      // Two hyphens in the third and fourth place stand for a form that is not known.
      if (place.length == 3 && hyphen) place.head = Head::kHyphenThird;
      return true;
    case Head::kHyphenThird:
      place.head = Head::kOther;
      return !hyphen;
    case Head::kInternational:
      if (c >= 'A' && c <= 'Z') return false;
      place.text.push_back(c);
      return true;
  }
  return false;
}

bool HostNames::Move(Place& place, char c) const {
  if (c == 0 || place.total >= kNameMax) return false;
  if (c != '.') {
    ++place.total;
    return Extend(place, c) && Lives(place);
  }
  // One character at least must follow.
  if (!EndLabel(place) || place.total + 2 > kNameMax) return false;
  Place next;
  next.total = static_cast<std::uint8_t>(place.total + 1);
  next.digit_first = place.digit_first;
  next.right_to_left = place.right_to_left;
  place = std::move(next);
  return true;
}

CharDfa::State HostNames::Step(State state, std::uint32_t char_class) {
  meter_->Step(20);
  if (state == kDead || meter_->tripped()) return kDead;
  Place place = places_[state];
  return Move(place, char_of_[char_class]) ? Intern(place) : kDead;
}

std::uint32_t HostNames::letters_ahead(State state) const {
  const Place& place = places_[state];
  if (place.head != Head::kInternational || place.right_to_left || place.text.starts_with("---")) return 0;
  // Letters behind "--" could make it three hyphens no more.
  const std::uint32_t room = RoomOf(place.length, place.total);
  return room > kInsertion ? room - kInsertion : 0;
}

}  // namespace galley::grammar
