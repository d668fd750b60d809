// SPDX-License-Identifier: Apache-2.0
#include "galley/grammar/string_machine.h"

#include <algorithm>
#include <array>

#include "galley/base/rng.h"

namespace galley::grammar {
namespace {

constexpr bool IsHigh(std::uint32_t unit) {
  return unit >= 0xD800 && unit < 0xDC00;
}
constexpr bool IsLow(std::uint32_t unit) {
  return unit >= 0xDC00 && unit < 0xE000;
}

int HexValue(std::uint8_t byte) {
  if (byte >= '0' && byte <= '9') return byte - '0';
  if (byte >= 'a' && byte <= 'f') return byte - 'a' + 10;
  if (byte >= 'A' && byte <= 'F') return byte - 'A' + 10;
  return -1;
}

}  // namespace

StringMachine::StringMachine(TextSpec spec, Form form, const Limits& limits)
    : Machine(limits), text_(std::move(spec), limits), form_(form), states_max_(limits.dfa_states_max) {
  places_.push_back({Mode::kClosed, 0, 0, 0});  // kDead
}

void StringMachine::Reset() {
  Machine::Reset();
  text_.Reset();
  chains_ = {};
  places_.assign(1, {Mode::kClosed, 0, 0, 0});
  ids_.clear();
}

Machine::State StringMachine::Intern(Mode mode, std::uint32_t text, std::uint8_t left, std::uint32_t value) {
  const std::uint64_t high = (static_cast<std::uint64_t>(mode) << 40) | (static_cast<std::uint64_t>(left) << 32) | text;
  std::vector<State>& bucket = ids_[MixBits(high) ^ value];
  for (const State s : bucket) {
    const Place& p = places_[s];
    if (p.mode == mode && p.left == left && p.text == text && p.value == value) return s;
  }
  if (places_.size() >= states_max_) {
    meter_->Trip(Meter::Limit::kStates);
    return kDead;
  }
  int label = kNoLabel;
  if (mode == Mode::kClosed) label = static_cast<int>(value);
  if (mode == Mode::kBody && form_ == Form::kRaw) label = text_.Label(text);
  places_.push_back({mode, left, text, value});
  Grow(sizeof(Place) + 48);
  bucket.push_back(AddState(label, mode == Mode::kClosed));
  return bucket.back();
}

Machine::State StringMachine::Start(std::uint32_t context) {
  const TextAutomaton::State start = text_.Start(context);
  if (start == TextAutomaton::kDead) return kDead;
  return form_ == Form::kRaw ? Body(start) : Intern(Mode::kOpen, start);
}

Machine::State StringMachine::Body(std::uint32_t text_state) {
  return text_state == TextAutomaton::kDead ? kDead : Intern(Mode::kBody, text_state);
}

Machine::State StringMachine::AfterChar(std::uint32_t text_state, std::uint32_t code_point) {
  return Body(text_.Step(text_state, text_.classes().ClassOf(code_point)));
}

std::optional<TextAutomaton::State> StringMachine::text_state(State state) const {
  switch (places_[state].mode) {
    case Mode::kOpen:
    case Mode::kBody:
    case Mode::kUtfSame:
    case Mode::kHexSame:
      return places_[state].text;
    default:
      return std::nullopt;
  }
}

std::optional<Machine::PlainBody> StringMachine::plain_body(State state) const {
  if (form_ != Form::kJson || places_[state].mode != Mode::kBody) return std::nullopt;
  const int label = text_.plain_label(places_[state].text);
  if (label == TextAutomaton::kNoLabel) return std::nullopt;
  const TextSpec& spec = text_.spec();
  const std::uint32_t count = text_.count(places_[state].text);
  return PlainBody{count >= spec.length_min ? 0 : spec.length_min - count,
                   spec.length_max == kUnbounded ? kUnbounded : spec.length_max - count, label};
}

std::uint32_t StringMachine::Chain(TextAutomaton::State text, Alphabet alphabet, std::uint32_t enough) {
  struct Range {
    std::uint32_t first;
    std::uint32_t last;
  };
  static constexpr std::array kRanges = {Range{'a', 'z'}, Range{'A', 'Z'}, Range{' ', ' '}, Range{0x80, kCodePointMax}};
  // Where all characters lead to one state, and from there again: a chain, or a loop when a state comes twice.
  const auto next = [&](TextAutomaton::State from) {
    TextAutomaton::State target = TextAutomaton::kDead, other = TextAutomaton::kDead;
    for (std::size_t i = 0; i <= static_cast<std::size_t>(alphabet); ++i) {
      if (!text_.Uniform(from, kRanges[i].first, kRanges[i].last, i == 0 ? target : other)) return TextAutomaton::kDead;
      if (i > 0 && other != target) return TextAutomaton::kDead;
    }
    return target;
  };
  if (alphabet == Alphabet::kLower) {
    if (const std::uint32_t letters = text_.letters_ahead(text); letters > 0) return std::min(letters, enough);
  }
  std::vector<std::uint32_t>& known = chains_[static_cast<std::size_t>(alphabet)];
  const auto length_of = [&](TextAutomaton::State state) { return state < known.size() ? known[state] : 0; };
  std::vector<TextAutomaton::State> path;
  std::uint32_t length = 0;  // behind the last of the path
  for (TextAutomaton::State at = text; path.size() < enough; at = path.back()) {
    if (length_of(at) != 0) {
      length = length_of(at) - 1;
      break;
    }
    const TextAutomaton::State to = next(at);
    if (to == TextAutomaton::kDead) break;
    if (to == at) {
      length = enough;
      break;
    }
    path.push_back(to);
  }
  const std::uint32_t total = std::min<std::uint32_t>(length + static_cast<std::uint32_t>(path.size()), enough);
  if (known.size() <= text) known.resize(text + 64u, 0);
  known[text] = total + 1;
  return total;
}

std::optional<Machine::Alphabet> StringMachine::stays(State state,
                                                      const std::array<std::uint32_t, kAlphabets>& lengths) {
  if (form_ == Form::kRaw || places_[state].mode != Mode::kBody) return std::nullopt;
  // Each alphabet holds the one before, so the first that fails is the last to ask.
  std::optional<Alphabet> out;
  for (std::size_t i = 0; i < kAlphabets; ++i) {
    const auto alphabet = static_cast<Alphabet>(i);
    if (Chain(places_[state].text, alphabet, lengths[i]) < lengths[i]) break;
    out = alphabet;
  }
  return out;
}

// `first` is the lowest code point that the sequence may still become; `left` continuation bytes follow, of which the
// first may be narrowed by the lead (E0, ED, F0, F4).
Machine::State StringMachine::Utf(std::uint32_t text_state, std::uint32_t first, std::uint8_t left) {
  const std::uint32_t last = first | ((1u << (6 * left)) - 1);
  const auto skip = [](std::uint32_t a, std::uint32_t b) { return a < b ? b : a; };
  std::uint32_t low = first, high = last < kCodePointMax ? last : kCodePointMax;
  if (left == 2 && first == 0) low = 0x800;
  if (left == 3 && first == 0) low = 0x10000;
  if (left == 2 && first == 0xD000) high = 0xD7FF;
  low = skip(low, first);
  TextAutomaton::State target = TextAutomaton::kDead;
  if (text_.Uniform(text_state, low, high, target)) {
    if (target == TextAutomaton::kDead) return kDead;
    if (low == first && high == last) return Intern(Mode::kUtfSame, target, left);
  } else if (!text_.AnyLive(text_state, low, high)) {
    return kDead;
  }
  return Intern(Mode::kUtf, text_state, left, first);
}

Machine::State StringMachine::Lead(std::uint32_t text_state, std::uint8_t byte) {
  if (byte >= 0xC2 && byte <= 0xDF) return Utf(text_state, (byte & 0x1Fu) << 6, 1);
  if (byte >= 0xE0 && byte <= 0xEF) return Utf(text_state, (byte & 0x0Fu) << 12, 2);
  if (byte >= 0xF0 && byte <= 0xF4) return Utf(text_state, (byte & 0x07u) << 18, 3);
  return kDead;
}

Machine::State StringMachine::LowHex(std::uint32_t text_state, std::uint32_t value, std::uint8_t left) {
  const std::uint32_t high = value >> 16, digits = value & 0xFFFF;
  const std::uint32_t span = 1u << (4 * left);
  std::uint32_t first = digits * span, last = first + span - 1;
  if (last < 0xDC00 || first > 0xDFFF) return kDead;
  first = first < 0xDC00 ? 0xDC00 : first;
  last = last > 0xDFFF ? 0xDFFF : last;
  const std::uint32_t base = 0x10000 + ((high - 0xD800) << 10);
  if (left == 0) return AfterChar(text_state, base + (first - 0xDC00));
  if (!text_.AnyLive(text_state, base + (first - 0xDC00), base + (last - 0xDC00))) return kDead;
  return Intern(Mode::kLowHex, text_state, left, value);
}

// `value` holds the digits read, `left` more follow.
Machine::State StringMachine::Hex(std::uint32_t text_state, std::uint32_t value, std::uint8_t left) {
  const std::uint32_t span = 1u << (4 * left);
  const std::uint32_t first = value * span, last = first + span - 1;
  if (left == 0 && !IsHigh(first)) return IsLow(first) ? kDead : AfterChar(text_state, first);
  if (left == 0) {
    const std::uint32_t base = 0x10000 + ((first - 0xD800) << 10);
    if (!text_.AnyLive(text_state, base, base + 0x3FF)) return kDead;
    return Intern(Mode::kLowSlash, text_state, 0, first);
  }
  const bool surrogates = last >= 0xD800 && first < 0xE000;
  TextAutomaton::State target = TextAutomaton::kDead;
  if (!surrogates) {
    if (text_.Uniform(text_state, first, last, target)) {
      return target == TextAutomaton::kDead ? kDead : Intern(Mode::kHexSame, target, left);
    }
    if (!text_.AnyLive(text_state, first, last)) return kDead;
    return Intern(Mode::kHex, text_state, left, value);
  }
  bool live = (first < 0xD800 && text_.AnyLive(text_state, first, 0xD7FF)) ||
              (last > 0xDFFF && text_.AnyLive(text_state, 0xE000, last));
  if (!live) {
    const std::uint32_t a = first < 0xD800 ? 0xD800 : first;
    const std::uint32_t b = last > 0xDBFF ? 0xDBFF : last;
    live = a <= b && text_.AnyLive(text_state, 0x10000 + ((a - 0xD800) << 10), 0x10000 + ((b - 0xD800) << 10) + 0x3FF);
  }
  return live ? Intern(Mode::kHex, text_state, left, value) : kDead;
}

Machine::State StringMachine::HexStep(const Place& place, std::uint8_t byte) {
  const int digit = HexValue(byte);
  if (digit < 0) return kDead;
  const auto left = static_cast<std::uint8_t>(place.left - 1);
  if (place.mode == Mode::kHexSame) {
    return left == 0 ? Body(place.text) : Intern(Mode::kHexSame, place.text, left);
  }
  if (place.mode == Mode::kLowHex) {
    const std::uint32_t digits = ((place.value & 0xFFFF) << 4) | static_cast<std::uint32_t>(digit);
    return LowHex(place.text, (place.value & 0xFFFF0000) | digits, left);
  }
  return Hex(place.text, (place.value << 4) | static_cast<std::uint32_t>(digit), left);
}

Machine::State StringMachine::EscapeStep(const Place& place, std::uint8_t byte) {
  struct Pair {
    std::uint8_t letter;
    std::uint8_t code_point;
  };
  static constexpr std::array kPairs = {Pair{'"', '"'},  Pair{'\\', '\\'}, Pair{'/', '/'},  Pair{'b', '\b'},
                                        Pair{'f', '\f'}, Pair{'n', '\n'},  Pair{'r', '\r'}, Pair{'t', '\t'}};
  for (const Pair& pair : kPairs) {
    if (pair.letter == byte) return AfterChar(place.text, pair.code_point);
  }
  return byte == 'u' ? Hex(place.text, 0, 4) : kDead;
}

Machine::State StringMachine::ComputeStep(State state, std::uint8_t byte) {
  const Place place = places_[state];
  switch (place.mode) {
    case Mode::kOpen:
      return byte == '"' ? Body(place.text) : kDead;
    case Mode::kBody:
      if (form_ != Form::kRaw) {
        if (byte < 0x20) return kDead;
        if (byte == '"') {
          const int label = text_.Label(place.text);
          return label == TextAutomaton::kNoLabel ? kDead
                                                  : Intern(Mode::kClosed, 0, 0, static_cast<std::uint32_t>(label));
        }
        if (byte == '\\' && form_ == Form::kJson) {
          return text_.AnyLive(place.text, 0, kCodePointMax) ? Intern(Mode::kEscape, place.text) : kDead;
        }
      }
      return byte < 0x80 ? AfterChar(place.text, byte) : Lead(place.text, byte);
    case Mode::kUtf: {
      if ((byte & 0xC0) != 0x80) return kDead;
      const auto left = static_cast<std::uint8_t>(place.left - 1);
      const std::uint32_t first = place.value | (static_cast<std::uint32_t>(byte & 0x3F) << (6 * left));
      const bool overlong = (place.left == 2 && place.value == 0 && first < 0x800) ||
                            (place.left == 3 && place.value == 0 && first < 0x10000);
      if (overlong || first > kCodePointMax || (first >= 0xD800 && first < 0xE000)) return kDead;
      return left == 0 ? AfterChar(place.text, first) : Utf(place.text, first, left);
    }
    case Mode::kUtfSame:
      if ((byte & 0xC0) != 0x80) return kDead;
      return place.left == 1 ? Body(place.text)
                             : Intern(Mode::kUtfSame, place.text, static_cast<std::uint8_t>(place.left - 1));
    case Mode::kEscape:
      return EscapeStep(place, byte);
    case Mode::kHex:
    case Mode::kHexSame:
    case Mode::kLowHex:
      return HexStep(place, byte);
    case Mode::kLowSlash:
      return byte == '\\' ? Intern(Mode::kLowU, place.text, 0, place.value) : kDead;
    case Mode::kLowU:
      return byte == 'u' ? LowHex(place.text, place.value << 16, 4) : kDead;
    case Mode::kClosed:
      return kDead;
  }
  return kDead;
}

}  // namespace galley::grammar
