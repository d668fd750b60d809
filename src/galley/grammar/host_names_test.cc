// SPDX-License-Identifier: Apache-2.0
#include "galley/grammar/host_names.h"

#include "galley/base/rng.h"
#include "galley/grammar/host_labels.h"
#include "galley/grammar/test_support.h"

namespace galley::grammar {
namespace {

constexpr std::string_view kHost = R"({"type":"string","format":"hostname"})";

bool IsHost(const std::string& name) {
  return testing::Takes("json_schema", kHost, JsonQuote(name));
}

TEST(HostLabels, PunycodeGoesBothWays) {
  // RFC 3492's own way to write "bücher" is "bcher-kva"; a label of ASCII alone is no international one.
  EXPECT_EQ(Punycode({'b', 0xFC, 'c', 'h', 'e', 'r'}), "bcher-kva");
  EXPECT_TRUE(ReadHostLabel("bcher-kva").has_value());
  EXPECT_FALSE(ReadHostLabel("bcher-").has_value());
  EXPECT_FALSE(ReadHostLabel("bcher-kva-").has_value());
  EXPECT_FALSE(ReadHostLabel("").has_value());
  EXPECT_TRUE(ReadHostLabel(Punycode({0x5E9, 0x5DC, 0x5D5, 0x5DD}))->right_to_left);
  EXPECT_FALSE(ReadHostLabel(Punycode({'a', 0x5E9, 0x5DC})).has_value()) << "from left to right and back";
  EXPECT_FALSE(ReadHostLabel(Punycode({0x301, 'a'})).has_value()) << "begins with a mark";
  EXPECT_FALSE(ReadHostLabel(Punycode({0xC4})).has_value()) << "a capital letter";
  EXPECT_FALSE(ReadHostLabel(Punycode({'a', 0x2603})).has_value()) << "a snowman";
}

TEST(HostNames, LabelsAndTheirLengths) {
  const std::string long_label(63, 'a');
  for (const std::string name : {"a", "a.b", "A-1.example", "0.1", "xn", "xn-a", "x.xn--bcher-kva.y", "a-b-c"}) {
    EXPECT_TRUE(IsHost(name)) << name;
  }
  for (const std::string name : {"", ".", "a.", ".a", "-a", "a-", "a_b", "ab--c", "xn--", "xn--a", "XN--bcher-kva",
                                 "xn--bcher-kva-", "a..b", "a b", "xn--bcher-kv"}) {
    EXPECT_FALSE(IsHost(name)) << name;
  }
  EXPECT_TRUE(IsHost(long_label + "." + long_label + "." + long_label + "." + std::string(61, 'b')));
  EXPECT_FALSE(IsHost(long_label + "." + long_label + "." + long_label + "." + std::string(62, 'b')));
  EXPECT_FALSE(IsHost(long_label + "a"));
}

// Every state that is handed out leads to a name: followed at random, then finished by any way that the automaton
// shows.
TEST(HostNames, EveryStateCanBeFinished) {
  const int given = ::testing::UnitTest::GetInstance()->random_seed();
  std::uint64_t draw = given == 0 ? 20261129 : static_cast<std::uint64_t>(given);
  SCOPED_TRACE("seed " + std::to_string(draw));
  HostNames names{Limits{}};
  const auto step = [&](CharDfa::State state, char c) {
    return names.Step(state, names.classes().ClassOf(static_cast<unsigned char>(c)));
  };
  constexpr std::string_view kLetters = "ax-0z9n-q-";
  for (int round = 0; round < 60; ++round) {
    CharDfa::State state = names.start();
    std::string text;
    for (const char c : std::string_view("xn--")) state = step(state, c);
    for (int i = 0; i < 80; ++i) {
      draw = MixBits(draw);
      const char c = kLetters[draw % kLetters.size()];
      const CharDfa::State next = step(state, c);
      if (next == CharDfa::kDead) continue;
      state = next;
      text.push_back(c);
    }
    // Near its longest every label has few ways on; one of them must end.
    std::vector<CharDfa::State> todo = {state};
    bool ended = false;
    for (std::size_t i = 0; i < todo.size() && i < 100'000 && !ended; ++i) {
      ended = names.Label(todo[i]) != CharDfa::kNoLabel;
      for (const char c : std::string_view("abcdefghijklmnopqrstuvwxyz0123456789-")) {
        if (const CharDfa::State next = step(todo[i], c); next != CharDfa::kDead) todo.push_back(next);
      }
    }
    EXPECT_TRUE(ended) << "xn--" << text;
  }
}

TEST(HostNames, LettersAheadStayInside) {
  HostNames names{Limits{}};
  CharDfa::State state = names.start();
  for (const char c : std::string_view("xn--ab-")) state = names.Step(state, names.classes().ClassOf(c));
  const std::uint32_t letters = names.letters_ahead(state);
  EXPECT_EQ(letters, 63u - 7 - 5);
  for (std::uint32_t i = 0; i < letters; ++i) {
    state = names.Step(state, names.classes().ClassOf('a' + i % 26));
    ASSERT_NE(state, CharDfa::kDead) << i;
  }
}

// Masks inside a label, whose states are texts, agree with accept.
TEST(HostNames, MasksInsideAnInternationalLabelAreExact) {
  const auto grammar = testing::CompileText("json_schema", kHost);
  ASSERT_TRUE(grammar.has_value()) << grammar.error().message;
  Matcher matcher(*grammar);
  const auto tokens = grammar->vocabulary->Greedy("\"xn--ll-0");
  ASSERT_EQ(matcher.Accept(tokens), tokens.size());
  std::vector<MaskWord> mask(grammar->vocabulary->mask_words());
  matcher.FillMask(mask);
  EXPECT_GT(CountTokens(mask), 30u);
  for (std::uint32_t id = 0; id < grammar->vocabulary->size(); ++id) {
    const bool accepted = matcher.Accept(id);
    if (accepted) matcher.Rollback(1);
    EXPECT_EQ(accepted, (mask[id / 64] >> (id % 64) & 1) != 0) << JsonQuote(grammar->vocabulary->bytes(id));
  }
}

}  // namespace
}  // namespace galley::grammar
