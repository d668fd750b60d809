// SPDX-License-Identifier: Apache-2.0
#include "galley/grammar/number_machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <string_view>

#include "galley/base/rng.h"

namespace galley::grammar {
namespace {

constexpr std::uint8_t kLifeUnknown = 0, kLifeLive = 1, kLifeDead = 2, kLifeVisited = 3;
constexpr std::int32_t kMagnitudeMax = 4'000;
constexpr std::size_t kBoundDigitsMax = 2'000;
constexpr std::string_view kAlphabet = "0123456789.eE+-";

std::uint64_t MulMod(std::uint64_t a, std::uint64_t b, std::uint64_t m) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<std::uint64_t>(static_cast<Wide>(a) * b % m);
}

std::uint64_t PowMod(std::uint64_t base, std::uint32_t exponent, std::uint64_t m) {
  std::uint64_t out = 1 % m;
  base %= m;
  for (; exponent > 0; exponent >>= 1) {
    if (exponent & 1) out = MulMod(out, base, m);
    base = MulMod(base, base, m);
  }
  return out;
}

// 10^exponent, or the largest number there is.
std::uint64_t PowerOfTen(std::uint32_t exponent) {
  if (exponent > 18) return ~std::uint64_t{0};
  std::uint64_t out = 1;
  for (; exponent > 0; --exponent) out *= 10;
  return out;
}

CompileError TooComplex(std::string message, std::string keyword) {
  return {CompileCode::kTooComplex, std::move(message), "", std::move(keyword), std::nullopt};
}

}  // namespace

std::size_t NumberMachine::TextHash::operator()(const Text& text) const {
  const auto bits = [](const Track& t) { return t.index * 4u + static_cast<unsigned>(t.order); };
  std::uint64_t hash = MixBits((static_cast<std::uint64_t>(text.phase) << 8) | (text.negative ? 1u : 0u) |
                               (text.nonzero ? 2u : 0u) | (text.exponent_negative ? 4u : 0u) | (text.beyond * 8u));
  hash = MixBits(hash ^ (static_cast<std::uint64_t>(text.int_digits) << 48) ^
                 (static_cast<std::uint64_t>(text.zeros) << 32) ^ (static_cast<std::uint64_t>(text.fraction) << 16) ^
                 text.exponent);
  hash = MixBits(hash ^ bits(text.low));
  hash = MixBits(hash ^ bits(text.high));
  for (const std::uint64_t r : text.remainders) hash = MixBits(hash ^ r);
  return hash;
}

Compiled<std::unique_ptr<NumberMachine>> NumberMachine::Create(const NumberSpec& spec, const Limits& limits) {
  std::unique_ptr<NumberMachine> out(new NumberMachine(limits));
  out->spec_ = spec;
  out->states_max_ = limits.dfa_states_max;
  std::int32_t magnitude = 1;
  for (const auto& [bound, keyword] : {std::pair{spec.low, "minimum"}, std::pair{spec.high, "maximum"}}) {
    if (!bound) continue;
    magnitude = std::max(magnitude, std::abs(bound->value.magnitude));
    if (magnitude > kMagnitudeMax || bound->value.digits.size() > kBoundDigitsMax) {
      return Refuse(TooComplex(
          fmt::format("bound is beyond 1e{0} or 1e-{0}, or has more than {1} digits", kMagnitudeMax, kBoundDigitsMax),
          keyword));
    }
  }
  const auto add = [&](const Decimal& value, bool forbidden) {
    const std::int32_t scale = static_cast<std::int32_t>(value.digits.size()) - value.magnitude;
    std::string digits = value.digits;
    if (scale < 0 && scale > -18) digits += std::string(static_cast<std::size_t>(-scale), '0');
    if (digits.size() > 18 || scale <= -18 || scale > kMagnitudeMax) return false;
    const Multiple multiple = {std::strtoull(digits.c_str(), nullptr, 10),
                               static_cast<std::uint16_t>(std::max(scale, 0)), forbidden};
    if (std::find(out->multiples_.begin(), out->multiples_.end(), multiple) != out->multiples_.end()) return true;
    out->multiples_.push_back(multiple);
    out->fraction_cap_ = std::max(out->fraction_cap_, out->multiples_.back().scale);
    return true;
  };
  for (const Decimal& value : spec.multiples) {
    if (!add(value, false)) return Refuse(TooComplex("multipleOf has more than 18 digits", "multipleOf"));
  }
  for (const Decimal& value : spec.not_multiples) {
    if (!add(value, true)) return Refuse(TooComplex("multipleOf has more than 18 digits", "multipleOf"));
  }
  out->JoinMultiples();
  if (out->multiples_.size() > NumberSpec::kMultiplesMax) {
    return Refuse(TooComplex(fmt::format("{} multiples, wanted or not, for one number, of which {} can be followed; "
                                         "join some of them",
                                         out->multiples_.size(), NumberSpec::kMultiplesMax),
                             "multipleOf"));
  }
  out->digits_cap_ = static_cast<std::uint16_t>(magnitude + 8);
  out->exponent_cap_ = static_cast<std::uint16_t>(2 * magnitude + 20);
  out->texts_.emplace_back();  // kDead
  out->life_.push_back(kLifeDead);
  return out;
}

void NumberMachine::Reset() {
  Machine::Reset();
  texts_.assign(1, {});
  life_.assign(1, kLifeDead);
  ids_.clear();
}

Machine::State NumberMachine::Start(std::uint32_t) {
  const State start = Intern(Text{});
  return IsLive(start) ? start : kDead;
}

Machine::State NumberMachine::Intern(const Text& text) {
  const auto found = ids_.find(text);
  if (found != ids_.end()) return found->second;
  if (texts_.size() >= states_max_) {
    meter_->Trip(Meter::Limit::kStates);
    return kDead;
  }
  const bool accepts = Accepts(text);
  const State id = AddState(accepts ? 0 : kNoLabel, false);
  ids_.emplace(text, id);
  texts_.push_back(text);
  const bool behind_point = text.phase == Phase::kPoint || text.phase == Phase::kFraction;
  life_.push_back(accepts ? kLifeLive : behind_point ? ForeseeFraction(text) : Foresee(text));
  Grow(2 * sizeof(Text) + 32);
  return id;
}

void NumberMachine::Follow(Track& track, const Decimal& bound, std::uint8_t digit) const {
  if (track.order != Order::kEqual) return;
  if (track.index < bound.digits.size()) {
    const auto want = static_cast<std::uint8_t>(bound.digits[track.index] - '0');
    if (digit != want) {
      track.order = digit < want ? Order::kLess : Order::kGreater;
      track.index = 0;
    } else {
      ++track.index;
    }
  } else if (digit > 0) {
    track = {0, Order::kGreater};
  }
}

// Rules out at once what the search for a live state would need many steps to find: a non-zero value on the wrong side
// of zero, and whole digits beyond the bound where no exponent can take them back.
bool NumberMachine::WithinReach(const Text& text) const {
  const auto& far = text.negative ? spec_.low : spec_.high;
  if (!far) return true;
  if (far->value.is_zero() || far->value.negative != text.negative) return false;
  return text.int_digits < 2 || static_cast<std::int32_t>(text.int_digits) <= far->value.magnitude;
}

// k more digits make every number from v·10^k to v·10^k + 10^k - 1 out of the v read so far. A large multiple
// would otherwise be searched for among as many states as it is large.
std::uint8_t NumberMachine::Foresee(const Text& text) const {
  if (text.phase != Phase::kInt || !spec_.not_multiples.empty() || multiples_.size() > 1) return kLifeUnknown;
  std::uint64_t unit = 1, rest = 0;
  std::uint64_t span = 1;  // 10^k, no larger than matters
  if (!multiples_.empty() && !spec_.integer) {
    // Digits behind the point count in units of the multiple's last place.
    unit = multiples_[0].unit;
    rest = MulMod(text.remainders[0], PowMod(10, multiples_[0].scale, unit), unit);
    span = PowerOfTen(multiples_[0].scale);
  } else if (!multiples_.empty()) {
    // A whole number is a multiple of unit / 10^scale if it is one of unit without what it shares with 10^scale.
    unit = multiples_[0].unit;
    for (int i = 0; i < multiples_[0].scale; ++i) {
      const std::uint64_t shared = std::gcd(unit, std::uint64_t{10});
      unit /= shared;
    }
    rest = text.remainders[0] % unit;
  }
  const auto& far = text.negative ? spec_.low : spec_.high;
  const auto& near = text.negative ? spec_.high : spec_.low;
  const Track &far_track = text.negative ? text.low : text.high, &near_track = text.negative ? text.high : text.low;
  const bool near_counts = near && !near->value.is_zero() && near->value.negative == text.negative;
  bool multiple_ahead = false;
  for (std::int32_t digits = text.int_digits; !far || digits <= far->value.magnitude; ++digits) {
    const bool before_far = !far || digits < far->value.magnitude || far_track.order == Order::kLess;
    const bool beyond_near = !near_counts || digits > near->value.magnitude ||
                             (digits == near->value.magnitude && near_track.order == Order::kGreater);
    if ((unit - rest) % unit < span) {
      if (before_far && beyond_near) return kLifeLive;
      multiple_ahead = true;
    }
    rest = MulMod(rest, 10, unit);
    span = span >= unit ? span : span * 10;
  }
  // A fraction of zeros changes nothing, and an exponent stands behind one digit only.
  return !multiple_ahead && text.int_digits >= 2 ? kLifeDead : kLifeUnknown;
}

std::optional<bool> NumberMachine::Settled(const Text& text, bool low) const {
  const auto& bound = low ? spec_.low : spec_.high;
  if (!bound) return true;
  if (!text.nonzero) return std::nullopt;
  const Track& track = low ? text.low : text.high;
  const std::int32_t magnitude = text.int_digits > 0 ? text.int_digits : -static_cast<std::int32_t>(text.zeros);
  const bool one_sign = !bound->value.is_zero() && bound->value.negative == text.negative;
  if (one_sign && magnitude == bound->value.magnitude && track.order == Order::kEqual) return std::nullopt;
  const int order = CompareWith(text, track, bound->value);
  return low ? order > 0 : order < 0;
}

// k digits behind the v read so far make everything from v·10^k to v·10^k + 10^k - 1, in units of the last place that
// the multiple has. An exponent behind them adds factors of two and five at will, and nothing else.
std::uint8_t NumberMachine::ForeseeFraction(const Text& text) const {
  if (spec_.integer || multiples_.size() != 1 || multiples_[0].forbidden) return kLifeUnknown;
  const Multiple& m = multiples_[0];
  const std::uint32_t places = static_cast<std::uint32_t>(m.scale) - std::min(text.fraction, m.scale);
  const std::uint64_t reach = PowerOfTen(places);
  const auto fits = [&](std::uint64_t unit) {
    const std::uint64_t rest = MulMod(text.remainders[0] % unit, PowMod(10, places, unit), unit);
    return (unit - rest) % unit < reach;
  };
  const std::optional<bool> low = Settled(text, true), high = Settled(text, false);
  const bool multiple_ahead = fits(m.unit);
  if (multiple_ahead && low.value_or(false) && high.value_or(false)) return kLifeLive;
  if (AllowsExponent(text)) {
    std::uint64_t core = m.unit;
    for (const std::uint64_t prime : {2u, 5u}) {
      while (core % prime == 0) core /= prime;
    }
    if (!fits(core)) return kLifeDead;
    return spec_.low || spec_.high ? kLifeUnknown : kLifeLive;
  }
  return multiple_ahead && low.value_or(true) && high.value_or(true) ? kLifeUnknown : kLifeDead;
}

void NumberMachine::JoinMultiples() {
  while (multiples_.size() > 1) {
    const Multiple &a = multiples_[0], &b = multiples_[1];
    if (a.forbidden || b.forbidden) return;
    const std::uint16_t scale = std::max(a.scale, b.scale);
    __extension__ using Wide = unsigned __int128;
    const auto scaled = [&](const Multiple& m) -> Wide {
      const auto shift = static_cast<std::uint32_t>(scale - m.scale);
      return shift > 18 ? 0 : Wide{m.unit} * PowerOfTen(shift);
    };
    const Wide limit = PowerOfTen(18), x = scaled(a), y = scaled(b);
    if (x == 0 || y == 0 || x > limit || y > limit) return;
    const auto u = static_cast<std::uint64_t>(x), v = static_cast<std::uint64_t>(y);
    const Wide joined = Wide{u / std::gcd(u, v)} * v;
    if (joined > limit) return;
    multiples_[0] = {static_cast<std::uint64_t>(joined), scale, false};
    multiples_.erase(multiples_.begin() + 1);
  }
}

// The same for exponents, which only grow in size while they are read.
bool NumberMachine::ExponentWithinReach(const Text& text) const {
  if (!text.nonzero) return true;
  const auto& bound = text.exponent_negative == text.negative ? spec_.high : spec_.low;  // the one it moves towards
  if (!bound || bound->value.is_zero() || bound->value.negative != text.negative) return true;
  const std::int32_t whole = text.int_digits > 0 ? text.int_digits : -static_cast<std::int32_t>(text.zeros);
  return text.exponent_negative ? whole - text.exponent >= bound->value.magnitude
                                : whole + text.exponent <= bound->value.magnitude;
}

bool NumberMachine::MantissaDigit(Text& text, std::uint8_t digit) const {
  const bool in_fraction = text.phase == Phase::kFraction;
  if (in_fraction && spec_.integer && digit != 0) return false;
  const bool tracked = !in_fraction || text.fraction < fraction_cap_;
  for (std::size_t i = 0; i < multiples_.size(); ++i) {
    const Multiple& m = multiples_[i];
    if (!in_fraction || text.fraction < m.scale) {
      text.remainders[i] = (MulMod(text.remainders[i], 10, m.unit) + digit) % m.unit;
    } else if (digit != 0) {
      if (!m.forbidden) return false;
      text.beyond = static_cast<std::uint8_t>(text.beyond | 1u << i);
    }
  }
  if (in_fraction && tracked) ++text.fraction;
  if (digit != 0 || text.nonzero) {
    if (!text.nonzero && in_fraction) text.nonzero = true;
    text.nonzero = true;
    if (spec_.low && spec_.low->value.negative == text.negative) Follow(text.low, spec_.low->value, digit);
    if (spec_.high && spec_.high->value.negative == text.negative) Follow(text.high, spec_.high->value, digit);
    if (!in_fraction)
      text.int_digits = std::min<std::uint16_t>(static_cast<std::uint16_t>(text.int_digits + 1),
                                                std::max<std::uint16_t>(digits_cap_, 2));
    if (!WithinReach(text)) return false;
  } else if (in_fraction) {
    text.zeros = std::min<std::uint16_t>(static_cast<std::uint16_t>(text.zeros + 1), digits_cap_);
  }
  return true;
}

bool NumberMachine::Digit(Text& text, std::uint8_t digit) const {
  switch (text.phase) {
    case Phase::kStart:
    case Phase::kMinus:
      text.phase = digit == 0 ? Phase::kZero : Phase::kInt;
      return MantissaDigit(text, digit);
    case Phase::kInt:
      return MantissaDigit(text, digit);
    case Phase::kPoint:
      text.phase = Phase::kFraction;
      return MantissaDigit(text, digit);
    case Phase::kFraction:
      return MantissaDigit(text, digit);
    case Phase::kE:
    case Phase::kESign:
    case Phase::kExponent: {
      text.phase = Phase::kExponent;
      const unsigned value = text.exponent * 10u + digit;
      if (!spec_.multiples.empty() && text.nonzero && value > 400) return false;
      text.exponent = static_cast<std::uint16_t>(spec_.multiples.empty() ? std::min<unsigned>(value, exponent_cap_)
                                                                         : std::min(value, 400u));
      if (!text.nonzero) {  // zero whatever the exponent says: one state for all of them
        text.exponent = text.zeros = text.fraction = 0;
        text.exponent_negative = false;
      }
      return ExponentWithinReach(text);
    }
    case Phase::kZero:
      return false;
  }
  return false;
}

bool NumberMachine::AllowsExponent(const Text& text) const {
  if (!spec_.not_multiples.empty()) return false;
  const bool plain = !spec_.integer && !spec_.low && !spec_.high && spec_.multiples.empty();
  if (plain || !text.nonzero) return true;
  return text.int_digits == 0 ? text.zeros < digits_cap_ : text.int_digits == 1;
}

int NumberMachine::CompareWith(const Text& text, const Track& track, const Decimal& bound) const {
  const bool negative = text.negative && text.nonzero;
  if (!text.nonzero) return bound.is_zero() ? 0 : (bound.negative ? 1 : -1);
  if (bound.is_zero() || bound.negative != negative) return negative ? -1 : 1;
  std::int32_t magnitude = text.int_digits > 0 ? text.int_digits : -static_cast<std::int32_t>(text.zeros);
  magnitude += text.exponent_negative ? -static_cast<std::int32_t>(text.exponent) : text.exponent;
  int order = 0;
  if (magnitude != bound.magnitude) {
    order = magnitude < bound.magnitude ? -1 : 1;
  } else if (track.order != Order::kEqual) {
    order = track.order == Order::kLess ? -1 : 1;
  } else {
    order = track.index < bound.digits.size() ? -1 : 0;
  }
  return negative ? -order : order;
}

bool NumberMachine::MultiplesFit(const Text& text) const {
  for (std::size_t i = 0; i < multiples_.size(); ++i) {
    const Multiple& m = multiples_[i];
    const std::uint32_t digits = std::min(text.fraction, m.scale);
    const std::uint32_t shift = static_cast<std::uint32_t>(m.scale) - digits + text.exponent;
    const bool multiple = MulMod(text.remainders[i], PowMod(10, shift, m.unit), m.unit) == 0;
    if (m.forbidden ? (multiple && (text.beyond >> i & 1) == 0) : !multiple) return false;
  }
  return true;
}

bool NumberMachine::Accepts(const Text& text) const {
  switch (text.phase) {
    case Phase::kZero:
    case Phase::kInt:
    case Phase::kFraction:
    case Phase::kExponent:
      break;
    default:
      return false;
  }
  if (spec_.low) {
    const int order = CompareWith(text, text.low, spec_.low->value);
    if (order < 0 || (order == 0 && spec_.low->exclusive)) return false;
  }
  if (spec_.high) {
    const int order = CompareWith(text, text.high, spec_.high->value);
    if (order > 0 || (order == 0 && spec_.high->exclusive)) return false;
  }
  return MultiplesFit(text);
}

Machine::State NumberMachine::RawStep(State state, std::uint8_t byte) {
  Text text = texts_[state];
  if (byte >= '0' && byte <= '9') {
    if (!Digit(text, static_cast<std::uint8_t>(byte - '0'))) return kDead;
    return Intern(text);
  }
  const bool mantissa = text.phase == Phase::kZero || text.phase == Phase::kInt || text.phase == Phase::kFraction;
  switch (byte) {
    case '-':
      if (text.phase == Phase::kStart) {
        text.phase = Phase::kMinus;
        text.negative = true;
        return Intern(text);
      }
      if (text.phase != Phase::kE || (text.nonzero && (spec_.integer || !multiples_.empty()))) return kDead;
      text.phase = Phase::kESign;
      text.exponent_negative = true;
      return Intern(text);
    case '+':
      if (text.phase != Phase::kE) return kDead;
      text.phase = Phase::kESign;
      return Intern(text);
    case '.':
      if (spec_.plain || (text.phase != Phase::kZero && text.phase != Phase::kInt)) return kDead;
      text.phase = Phase::kPoint;
      return Intern(text);
    case 'e':
    case 'E':
      if (spec_.plain || !mantissa || !AllowsExponent(text)) return kDead;
      text.phase = Phase::kE;
      return Intern(text);
    default:
      return kDead;
  }
}

bool NumberMachine::IsLive(State state) {
  if (life_[state] != kLifeUnknown) return life_[state] == kLifeLive;
  struct Frame {
    State state;
    std::size_t next;
  };
  std::vector<Frame> path = {{state, 0}};
  std::vector<State> visited = {state};
  life_[state] = kLifeVisited;
  while (!path.empty()) {
    Frame& top = path.back();
    if (top.next >= kAlphabet.size()) {
      path.pop_back();
      continue;
    }
    const State next = RawStep(top.state, static_cast<std::uint8_t>(kAlphabet[top.next++]));
    if (life_[next] == kLifeLive) {
      for (const State s : visited) life_[s] = kLifeUnknown;  // visited and left: not certain yet
      for (const Frame& frame : path) life_[frame.state] = kLifeLive;
      return true;
    }
    if (life_[next] != kLifeUnknown) continue;
    life_[next] = kLifeVisited;
    visited.push_back(next);
    path.push_back({next, 0});
  }
  for (const State s : visited) life_[s] = kLifeDead;
  return false;
}

Machine::State NumberMachine::ComputeStep(State state, std::uint8_t byte) {
  const State next = RawStep(state, byte);
  return next != kDead && IsLive(next) ? next : kDead;
}

}  // namespace galley::grammar
