// SPDX-License-Identifier: Apache-2.0
#include "galley/grammar/number_machine.h"

#include <fmt/format.h>

#include <array>
#include <initializer_list>
#include <set>
#include <string>
#include <string_view>

#include "galley/grammar/test_support.h"

namespace galley::grammar {
namespace {

Machine::State StateAfter(Machine& machine, std::string_view text) {
  Machine::State state = machine.Start(0);
  for (const char c : text) {
    if (state == Machine::kDead) break;
    state = machine.Step(state, static_cast<std::uint8_t>(c));
  }
  return state;
}

bool Takes(Machine& machine, std::string_view text) {
  const Machine::State state = StateAfter(machine, text);
  return state != Machine::kDead && machine.label(state) != Machine::kNoLabel;
}

NumberSpec Range(const char* low, const char* high, bool integer) {
  NumberSpec spec;
  spec.integer = integer;
  if (low != nullptr) spec.low = NumberSpec::Bound{*ParseDecimal(low), false};
  if (high != nullptr) spec.high = NumberSpec::Bound{*ParseDecimal(high), false};
  return spec;
}

TEST(Decimal, KeepsWhatDoublesLose) {
  EXPECT_EQ(Compare(*ParseDecimal("18446744073709551617"), *ParseDecimal("18446744073709551616")), 1);
  EXPECT_EQ(Compare(*ParseDecimal("1e400"), *ParseDecimal("10e399")), 0);
  EXPECT_EQ(Compare(*ParseDecimal("-0.5"), *ParseDecimal("-0.50")), 0);
  EXPECT_EQ(ParseDecimal("-0.0")->is_zero(), true);
  EXPECT_EQ(ParseDecimal("1200")->digits, "12");
  EXPECT_EQ(ParseDecimal("1200")->magnitude, 4);  // 0.12 × 10⁴
}

TEST(NumberMachine, IntegerRangesAgreeWithArithmetic) {
  for (const auto& [low, high] : {std::pair{-15, 7}, {8, 123}, {95, 1005}, {-105, -7}, {0, 0}}) {
    auto machine = *NumberMachine::Create(Range(std::to_string(low).c_str(), std::to_string(high).c_str(), true), {});
    for (int v = -1200; v <= 1200; ++v) {
      EXPECT_EQ(Takes(*machine, std::to_string(v)), v >= low && v <= high) << v << " in " << low << ".." << high;
    }
  }
}

TEST(NumberMachine, EveryPrefixThatLivesCanBeFinished) {
  // 12…125: after "12" any digit up to 5 goes on; after "13" nothing but the end, a zero fraction or an exponent of
  // zero.
  auto machine = *NumberMachine::Create(Range("12", "125", true), {});
  EXPECT_NE(StateAfter(*machine, "125"), Machine::kDead);
  EXPECT_EQ(StateAfter(*machine, "126"), Machine::kDead);
  EXPECT_EQ(StateAfter(*machine, "-"), Machine::kDead);
  EXPECT_EQ(StateAfter(*machine, "130"), Machine::kDead);
  EXPECT_TRUE(Takes(*machine, "13.0"));
  EXPECT_FALSE(Takes(*machine, "13.5"));
  EXPECT_TRUE(Takes(*machine, "1e2"));
  EXPECT_FALSE(Takes(*machine, "1e3"));
}

TEST(NumberMachine, ExponentsCompareWithBounds) {
  auto machine = *NumberMachine::Create(Range("0.001", "25", false), {});
  EXPECT_TRUE(Takes(*machine, "1e-3"));
  EXPECT_FALSE(Takes(*machine, "9e-4"));
  EXPECT_TRUE(Takes(*machine, "2.5e1"));
  EXPECT_FALSE(Takes(*machine, "2.51e1"));
  EXPECT_TRUE(Takes(*machine, "0.25E+2"));
}

TEST(NumberMachine, MultiplesOfDecimals) {
  NumberSpec spec;
  spec.multiples = {*ParseDecimal("0.25")};
  auto machine = *NumberMachine::Create(spec, {});
  for (int cents = 0; cents <= 300; ++cents) {
    const std::string text = fmt::format("{}.{:02}", cents / 100, cents % 100);
    EXPECT_EQ(Takes(*machine, text), cents % 25 == 0) << text;
  }
  EXPECT_FALSE(Takes(*machine, "0.255"));
}

TEST(NumberMachine, LargeMultiplesNeedNoSearch) {
  for (const char* multiple : {"9999991", "1000000007", "0.0001234567", "123456789012345677"}) {
    NumberSpec spec;
    spec.integer = true;
    spec.multiples = {*ParseDecimal(multiple)};
    auto machine = *NumberMachine::Create(spec, {});
    ASSERT_NE(StateAfter(*machine, "-73906"), Machine::kDead) << multiple;
    EXPECT_LT(machine->states(), 1000u) << multiple;
  }
  NumberSpec spec = Range("0", "1000000000", true);
  spec.multiples = {*ParseDecimal("999983")};
  auto machine = *NumberMachine::Create(spec, {});
  const auto state = StateAfter(*machine, "99998");
  int live = 0;
  for (std::uint8_t c = '0'; c <= '9'; ++c) live += machine->Step(state, c) != Machine::kDead;
  EXPECT_EQ(live, 1);  // 999983 itself; nine digits make no multiple that begins with another
  EXPECT_LT(machine->states(), 20'000u);
}

TEST(NumberMachine, LivePrefixesOfBoundedMultiplesAreExact) {
  // Every prefix of every number is live exactly if some multiple within the bounds begins with it.
  for (const auto& [low, high, multiple] : std::initializer_list<std::array<int, 3>>{
           {0, 999, 37}, {120, 1500, 97}, {-860, 45, 61}, {-2000, -1300, 113}, {5, 30000, 7919}, {100, 120, 50}}) {
    NumberSpec spec = Range(std::to_string(low).c_str(), std::to_string(high).c_str(), true);
    spec.plain = true;
    spec.multiples = {*ParseDecimal(std::to_string(multiple).c_str())};
    auto machine = *NumberMachine::Create(spec, {});
    std::set<std::string> prefixes;
    for (int v = low; v <= high; ++v) {
      const std::string text = std::to_string(v);
      for (std::size_t n = 1; v % multiple == 0 && n <= text.size(); ++n) prefixes.insert(text.substr(0, n));
    }
    for (int v = -3000; v <= 30000; v += v < 3000 ? 1 : 7) {
      auto state = machine->Start(0);
      std::string read;
      for (const char c : std::to_string(v)) {
        read += c;
        state = state == Machine::kDead ? state : machine->Step(state, static_cast<std::uint8_t>(c));
        // "-" and "-0" may stand for zero.
        if (read == "-" || read[0] == '0') continue;
        ASSERT_EQ(state != Machine::kDead, prefixes.count(read) == 1)
            << low << " " << high << " " << multiple << " " << read;
      }
    }
  }
}

// The same behind the point, where the numbers between the bounds are counted in hundredths.
TEST(NumberMachine, LivePrefixesOfMultiplesOfFractionsAreExact) {
  for (const auto& [low, high, multiple] : std::initializer_list<std::array<int, 3>>{
           {1000, 3000, 37}, {1050, 1980, 125}, {-4512, -1007, 97}, {9900, 20000, 771}, {1000, 1200, 7}}) {
    const auto decimal = [](int hundredths) {
      return fmt::format("{}{}.{:02}", hundredths < 0 ? "-" : "", std::abs(hundredths) / 100,
                         std::abs(hundredths) % 100);
    };
    NumberSpec spec = Range(decimal(low).c_str(), decimal(high).c_str(), false);
    spec.multiples = {*ParseDecimal(decimal(multiple).c_str())};
    auto machine = *NumberMachine::Create(spec, {});
    std::set<std::string> prefixes;
    for (int v = low; v <= high; ++v) {
      const std::string text = decimal(v);
      for (std::size_t n = 1; v % multiple == 0 && n <= text.size(); ++n) prefixes.insert(text.substr(0, n));
    }
    for (int v = low - 500; v <= high + 500; ++v) {
      auto state = machine->Start(0);
      std::string read;
      for (const char c : decimal(v)) {
        read += c;
        state = state == Machine::kDead ? state : machine->Step(state, static_cast<std::uint8_t>(c));
        // One digit may get an exponent, and one in front of the point more digits.
        if (read.find('.') == std::string::npos || read.find('.') < (low < 0 ? 3u : 2u)) continue;
        ASSERT_EQ(state != Machine::kDead, prefixes.count(read) == 1)
            << low << " " << high << " " << multiple << " " << read;
      }
    }
  }
}

TEST(NumberMachine, LargeMultiplesOfFractionsNeedNoSearch) {
  for (const char* multiple :
       {"0.0001234567", "0.123456789012345677", "12345.6789012345", "0.00000000000000000999999"}) {
    for (const bool bounded : {false, true}) {
      NumberSpec spec = bounded ? Range("-999999999.5", "999999999.25", false) : NumberSpec{};
      spec.multiples = {*ParseDecimal(multiple)};
      auto machine = *NumberMachine::Create(spec, {});
      auto state = StateAfter(*machine, "-73906");
      ASSERT_NE(state, Machine::kDead) << multiple;
      state = machine->Step(state, '.');
      for (int i = 0; i < 25 && state != Machine::kDead; ++i) {
        Machine::State next = Machine::kDead;
        for (char c = '9'; c >= '0' && next == Machine::kDead; --c) {
          next = machine->Step(state, static_cast<std::uint8_t>(c));
        }
        ASSERT_TRUE(next != Machine::kDead || machine->label(state) != Machine::kNoLabel) << multiple;
        state = next;
      }
      EXPECT_FALSE(machine->overflowed());
      EXPECT_LT(machine->states(), 3000u) << multiple;
    }
  }
}

TEST(NumberMachine, SeveralMultiplesAreOne) {
  NumberSpec spec;
  spec.multiples = {*ParseDecimal("0.06"), *ParseDecimal("0.4"), *ParseDecimal("99991")};
  auto machine = *NumberMachine::Create(spec, {});
  // lcm(6, 40, 9999100) hundredths: 9999100 is 2²·5²·99991, so 3 · 2 · 9999100 = 59994600 hundredths.
  EXPECT_TRUE(Takes(*machine, "599946"));
  EXPECT_TRUE(Takes(*machine, "1199892.0"));
  EXPECT_FALSE(Takes(*machine, "99991"));
  EXPECT_FALSE(Takes(*machine, "299973"));
  EXPECT_LT(machine->states(), 3000u);
}

// Divisors of different places, wanted and forbidden ones together; values and divisors in thousandths.
TEST(NumberMachine, DivisorsTogetherAgreeWithArithmetic) {
  const std::vector<std::pair<const char*, int>> divisors = {{"1", 1000},   {"0.1", 100}, {"0.25", 250},
                                                             {"1.5", 1500}, {"0.02", 20}, {"7", 7000}};
  for (std::size_t sets = 0; sets < 216; ++sets) {  // 6³: one divisor wanted, two forbidden
    const auto &wanted = divisors[sets % 6], &first = divisors[sets / 6 % 6], &second = divisors[sets / 36];
    NumberSpec spec;
    if (&wanted != &first) spec.multiples = {*ParseDecimal(wanted.first)};
    spec.not_multiples = {*ParseDecimal(first.first), *ParseDecimal(second.first)};
    auto machine = *NumberMachine::Create(spec, {});
    for (int v = -4000; v <= 12000; v += v % 50 == 0 ? 5 : 15) {  // 0.005 steps and 0.015 ones
      const std::string text = fmt::format("{}{}.{:03}", v < 0 ? "-" : "", std::abs(v) / 1000, std::abs(v) % 1000);
      const bool fits =
          (spec.multiples.empty() || v % wanted.second == 0) && v % first.second != 0 && v % second.second != 0;
      ASSERT_EQ(Takes(*machine, text), fits)
          << text << " multiple of " << wanted.first << " and not of " << first.first << ", " << second.first;
    }
  }
}

TEST(NumberMachine, AnImpossibleMultipleIsDeadFromTheStart) {
  NumberSpec spec = Range("1", "6", true);
  spec.multiples = {*ParseDecimal("7")};
  EXPECT_EQ((*NumberMachine::Create(spec, {}))->Start(0), Machine::kDead);
}

}  // namespace
}  // namespace galley::grammar
