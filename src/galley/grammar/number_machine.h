// SPDX-License-Identifier: Apache-2.0
// Lexeme of a JSON number within bounds and multiples, compared exactly in decimal. Spellings: plain decimals of any
// length; an exponent after one non-zero digit (and its fraction) or after a zero mantissa. Integers may have a zero
// fraction and an exponent that is not negative. Used by the grammar's thread.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "galley/grammar/compile_error.h"
#include "galley/grammar/decimal.h"
#include "galley/grammar/machine.h"

namespace galley::grammar {

struct NumberSpec {
  struct Bound {
    Decimal value;
    bool exclusive = false;
    friend bool operator==(const Bound&, const Bound&) = default;
  };
  bool integer = false;  // only whole numbers
  bool plain = false;    // without fraction and exponent; only with `integer`
  std::optional<Bound> low;
  std::optional<Bound> high;
  std::vector<Decimal> multiples;      // each positive; at most kMultiplesMax with not_multiples
  std::vector<Decimal> not_multiples;  // values that are multiples of one of these are refused

  static constexpr std::size_t kMultiplesMax = 4;
};

class NumberMachine final : public Machine {
 public:
  // Errors: kTooComplex for more multiples or digits than can be tracked.
  [[nodiscard]] static Compiled<std::unique_ptr<NumberMachine>> Create(const NumberSpec& spec, const Limits& limits);

  [[nodiscard]] State Start(std::uint32_t context) override;
  void Reset() override;

 private:
  enum class Phase : std::uint8_t { kStart, kMinus, kZero, kInt, kPoint, kFraction, kE, kESign, kExponent };
  enum class Order : std::uint8_t { kEqual, kLess, kGreater };
  // Comparison of the significant digits read so far with those of a bound.
  struct Track {
    std::uint16_t index = 0;  // digits that were equal
    Order order = Order::kEqual;
    bool operator==(const Track&) const = default;
  };
  struct Text {
    Phase phase = Phase::kStart;
    bool negative = false;
    bool nonzero = false;  // some significant digit was read
    bool exponent_negative = false;
    std::uint8_t beyond = 0;       // bit i: a digit that multiple i cannot divide was read
    std::uint16_t int_digits = 0;  // significant ones, saturating
    std::uint16_t zeros = 0;       // after the point, before the first significant digit, saturating
    std::uint16_t fraction = 0;    // digits after the point, as far as the multiples care
    std::uint16_t exponent = 0;    // saturating
    Track low;
    Track high;
    std::array<std::uint64_t, NumberSpec::kMultiplesMax> remainders{};
    bool operator==(const Text&) const = default;
  };
  struct TextHash {
    std::size_t operator()(const Text& text) const;
  };
  struct Multiple {
    std::uint64_t unit;   // value × 10^scale
    std::uint16_t scale;  // digits after the point that matter
    bool forbidden;
    friend bool operator==(const Multiple&, const Multiple&) = default;
  };

  explicit NumberMachine(const Limits& limits) : Machine(limits) {}
  State ComputeStep(State state, std::uint8_t byte) override;
  State Intern(const Text& text);
  bool IsLive(State state);
  State RawStep(State state, std::uint8_t byte);
  [[nodiscard]] bool Digit(Text& text, std::uint8_t digit) const;
  [[nodiscard]] bool WithinReach(const Text& text) const;
  // What arithmetic alone shows of the whole numbers that more digits lead to; kLifeUnknown: it takes a search.
  [[nodiscard]] std::uint8_t Foresee(const Text& text) const;
  // The same behind the point.
  [[nodiscard]] std::uint8_t ForeseeFraction(const Text& text) const;
  // Whether the number is on the right side of a bound whatever digits follow; nothing where they decide.
  [[nodiscard]] std::optional<bool> Settled(const Text& text, bool low) const;
  // One multiple that stands for all, where its digits can be tracked.
  void JoinMultiples();
  [[nodiscard]] bool ExponentWithinReach(const Text& text) const;
  [[nodiscard]] bool MantissaDigit(Text& text, std::uint8_t digit) const;
  void Follow(Track& track, const Decimal& bound, std::uint8_t digit) const;
  [[nodiscard]] bool AllowsExponent(const Text& text) const;
  [[nodiscard]] bool Accepts(const Text& text) const;
  // Sign of value − bound.
  [[nodiscard]] int CompareWith(const Text& text, const Track& track, const Decimal& bound) const;
  [[nodiscard]] bool MultiplesFit(const Text& text) const;

  NumberSpec spec_;
  std::vector<Multiple> multiples_;
  std::uint16_t fraction_cap_ = 0;
  std::uint16_t digits_cap_ = 1;
  std::uint16_t exponent_cap_ = 1;
  std::uint32_t states_max_ = 0;
  std::vector<Text> texts_;
  std::vector<std::uint8_t> life_;
  std::unordered_map<Text, State, TextHash> ids_;
};

}  // namespace galley::grammar
