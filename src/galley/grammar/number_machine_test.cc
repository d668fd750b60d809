// SPDX-License-Identifier: Apache-2.0
#include "galley/grammar/number_machine.h"

#include <fmt/format.h>

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

TEST(NumberMachine, AnImpossibleMultipleIsDeadFromTheStart) {
  NumberSpec spec = Range("1", "6", true);
  spec.multiples = {*ParseDecimal("7")};
  EXPECT_EQ((*NumberMachine::Create(spec, {}))->Start(0), Machine::kDead);
}

}  // namespace
}  // namespace galley::grammar
