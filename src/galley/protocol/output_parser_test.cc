// SPDX-License-Identifier: Apache-2.0
#include "galley/protocol/output_parser.h"

#include <gtest/gtest.h>

#include <array>
#include <random>

#include "galley/protocol/codec_serve.h"
#include "galley/protocol/split_for_test.h"
#include "galley/protocol/vectors_for_test.h"

namespace galley::protocol {
namespace {

// What a client gets to see in the end.
struct Seen {
  std::string reasoning;
  std::string content;
  std::vector<std::pair<std::string, std::string>> calls;  // name, arguments
  OutputResult result;

  bool operator==(const Seen& other) const {
    return reasoning == other.reasoning && content == other.content && calls == other.calls &&
           result.finish == other.result.finish && result.stop_sequence == other.result.stop_sequence;
  }
};

Seen Collect(const std::vector<OutputEvent>& events) {
  Seen seen;
  for (const OutputEvent& event : events) {
    if (event.kind == OutputKind::kReasoning) seen.reasoning += event.text;
    if (event.kind == OutputKind::kContent) seen.content += event.text;
    if (event.kind == OutputKind::kCallStart) seen.calls.emplace_back(event.text, "");
    if (event.kind == OutputKind::kCallArguments) seen.calls.back().second += event.text;
  }
  return seen;
}

Seen Read(const OutputParserOptions& options, const std::vector<std::string>& chunks,
          std::optional<Finish> finish = Finish::kStop) {
  OutputParser parser(options);
  std::vector<OutputEvent> events;
  for (const std::string& chunk : chunks) parser.Push({chunk}, events);
  parser.End(finish, events);
  Seen seen = Collect(events);
  seen.result = parser.result();
  return seen;
}

OutputParserOptions WithTools() {
  OutputParserOptions options;
  options.parsing.parse_tool_calls = true;
  options.tool_names = {"f", "g"};
  return options;
}

std::string Invoke(const std::string& body, const std::string& name = "f") {
  return "<｜DSML｜ invoke name=\"" + name + "\">\n" + body + "</｜DSML｜ invoke>\n";
}
std::string Parameter(const std::string& key, const std::string& is_string, const std::string& value) {
  return "<｜DSML｜ parameter name=\"" + key + "\" string=\"" + is_string + "\">" + value + "</｜DSML｜ parameter>\n";
}
std::string Block(const std::string& invokes) {
  return "<｜DSML｜ calls>\n" + invokes + "</｜DSML｜ calls>";
}

using Calls = std::vector<std::pair<std::string, std::string>>;

TEST(OutputParser, ReportsACallOnlyWhenItsInvokeIsClosed) {
  OutputParser parser(WithTools());
  std::vector<OutputEvent> events;
  parser.Push({"<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n" + Parameter("a", "true", "x")}, events);
  EXPECT_TRUE(events.empty());
  parser.Push({"</｜DSML｜ invoke>"}, events);
  EXPECT_EQ(Collect(events).calls, (Calls{{"f", "{\"a\": \"x\"}"}}));
}

// Where there are no calls, markup is text without its markers, however it is cut.
TEST(OutputParser, MarkersAreHiddenWhereThereAreNoCalls) {
  OutputParserOptions options;
  options.parsing.hide_markup = true;
  const std::string text = "See:\n\n" + Block(Invoke(Parameter("a", "true", "x < y")));
  const std::string shown =
      "See:\n\n<calls>\n<invoke name=\"f\">\n<parameter name=\"a\" string=\"true\">x < "
      "y</parameter>\n</invoke>\n</calls>";
  for (std::size_t cut = 0; cut <= text.size(); ++cut)
    EXPECT_EQ(Read(options, {text.substr(0, cut), text.substr(cut)}).content, shown) << "cut at " << cut;
  options.parsing.stage = ThinkingStage::kReasoningStart;
  const Seen thought = Read(options, {"a <｜DSML｜ b</think>c ｜DSML｜"});
  EXPECT_EQ(thought.reasoning, "a <b");
  EXPECT_EQ(thought.content, "c ");
  // Spelled by ordinary tokens it is no marker.
  OutputParser parser(options);
  std::vector<OutputEvent> events;
  parser.Push({"</think>", PieceSource::kAdded}, events);
  parser.Push({"｜DSML｜", PieceSource::kOrdinary}, events);
  parser.End(Finish::kStop, events);
  EXPECT_EQ(Collect(events).content, "｜DSML｜");
  options.parsing.stage = ThinkingStage::kNone;
  options.parsing.parse_json_output = true;
  EXPECT_EQ(Read(options, {"{\"a\":\"<｜DSML｜ b\"}"}).content, "{\"a\":\"<b\"}");
}

TEST(OutputParser, AStopSequenceIsShownWhenItIsToBeKept) {
  for (const bool keep : {false, true}) {
    OutputParserOptions options;
    options.parsing.keep_stop = keep;
    options.parsing.stop_sequences = {"END"};
    const std::string text = "some ENDING";
    for (std::size_t cut = 0; cut <= text.size(); ++cut) {
      const Seen seen = Read(options, {text.substr(0, cut), text.substr(cut)});
      EXPECT_EQ(seen.content, keep ? "some END" : "some ") << "cut at " << cut;
      EXPECT_EQ(seen.result.stop_sequence, "END");
    }
  }
}

TEST(OutputParser, AnUnclosedCallIsContentWithoutMarkersOrDroppedWhenCutOff) {
  const std::string text =
      "hi\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter name=\"a\" string=\"true\">ab";
  const Seen stopped = Read(WithTools(), {text});
  EXPECT_EQ(stopped.content, "hi\n\n<calls>\n<invoke name=\"f\">\n<parameter name=\"a\" string=\"true\">ab");
  EXPECT_TRUE(stopped.calls.empty());
  const Seen cut = Read(WithTools(), {text}, Finish::kLength);
  EXPECT_EQ(cut.content, "hi\n\n");
  EXPECT_TRUE(cut.calls.empty());
}

TEST(OutputParser, AnUndeclaredOrEmptyNameIsText) {
  EXPECT_EQ(Read(WithTools(), {Block(Invoke("", "h") + Invoke(""))}).calls, (Calls{{"f", "{}"}}));
  EXPECT_TRUE(Read(WithTools(), {Block(Invoke("", ""))}).calls.empty());
  EXPECT_NE(Read(WithTools(), {Block(Invoke("", "h"))}).content.find("name=\"h\""), std::string::npos);
}

TEST(OutputParser, EscapesKeysMendsValuesAndKeepsTheLastOfTwo) {
  const auto arguments = [](const std::string& parameters) {
    const Seen seen = Read(WithTools(), {Block(Invoke(parameters))});
    return seen.calls.size() == 1 ? seen.calls[0].second : "no call";
  };
  EXPECT_EQ(arguments(Parameter("two words", "true", "x")), R"({"two words": "x"})");
  EXPECT_EQ(arguments(Parameter("k\"q", "true", "x")), R"({"k\"q": "x"})");
  EXPECT_EQ(arguments(Parameter("a", "false", "not json")), R"({"a": "not json"})");
  EXPECT_EQ(arguments(Parameter("a", "false", "1e999")), R"({"a": "1e999"})");
  EXPECT_EQ(arguments(Parameter("a", "true", "1") + Parameter("b", "false", "2") + Parameter("a", "false", "3")),
            R"({"a": 3, "b": 2})");
}

TEST(OutputParser, AValueEndsOnlyWhereAParameterOrTheCallFollows) {
  const std::string value = "x </｜DSML｜ parameter> y </｜DSML｜ invoke> z";
  const Seen seen = Read(WithTools(), {Block(Invoke(Parameter("a", "true", value)))});
  ASSERT_EQ(seen.calls.size(), 1u);
  EXPECT_EQ(seen.calls[0].second, "{\"a\": \"" + value + "\"}");
}

TEST(OutputParser, TextAroundAndAfterABlockIsContentAndAnotherBlockIsRead) {
  const Seen seen =
      Read(WithTools(), {"one\n\n" + Block(Invoke("")) + "\n\ntwo\n\n" + Block(Invoke("", "g")) + "\nthree"});
  EXPECT_EQ(seen.content, "onetwothree");
  EXPECT_EQ(seen.calls, (Calls{{"f", "{}"}, {"g", "{}"}}));
}

TEST(OutputParser, JsonModeGivesExactlyTheFirstValue) {
  OutputParserOptions options;
  options.parsing.parse_json_output = true;
  const auto content = [&](const std::string& text) { return Read(options, {text}).content; };
  EXPECT_EQ(content("Sure: {\"a\": \"}\"} done {\"b\": 1}"), "{\"a\": \"}\"}");
  EXPECT_EQ(content("```json\n[1, 2]\n```\nmore"), "[1, 2]");
  EXPECT_EQ(content(" 42 "), "42");
  EXPECT_EQ(content("\"x\""), "\"x\"");
  EXPECT_EQ(content("no value here"), "");
  EXPECT_EQ(content("{\"a\": [1,"), "{\"a\": [1,");
}

TEST(OutputParser, MarkersSpelledByOrdinaryTokensAreText) {
  OutputParser parser(WithTools());
  std::vector<OutputEvent> events;
  parser.Push({Block(Invoke("")), PieceSource::kOrdinary}, events);
  parser.End(Finish::kStop, events);
  EXPECT_TRUE(Collect(events).calls.empty());
  EXPECT_EQ(Collect(events).content, Block(Invoke("")));
}

TEST(OutputParser, DroppedControlTokensShowNothingAndStillCount) {
  OutputParser parser(WithTools());
  std::vector<OutputEvent> events;
  parser.Push({"a", PieceSource::kOrdinary, false, 1}, events);
  parser.Push({"<｜User｜>", PieceSource::kAdded, true, 1}, events);
  parser.Push({"b", PieceSource::kOrdinary, false, 1}, events);
  parser.End(Finish::kStop, events);
  EXPECT_EQ(Collect(events).content, "ab");
  EXPECT_EQ(parser.tokens(), 3);
}

TEST(OutputParser, NothingIsReadAfterAStopSequence) {
  OutputParserOptions options;
  options.parsing.stop_sequences = {"END"};
  OutputParser parser(options);
  std::vector<OutputEvent> events;
  parser.Push({"a EN", PieceSource::kText, false, 2}, events);
  parser.Push({"D b", PieceSource::kText, false, 3}, events);
  ASSERT_TRUE(parser.done());
  parser.Push({"c", PieceSource::kText, false, 1}, events);
  EXPECT_EQ(Collect(events).content, "a ");
  EXPECT_EQ(parser.result().stop_sequence, "END");
  EXPECT_EQ(parser.tokens(), 5);  // the piece with the end of the stop sequence counts in full
}

TEST(OutputParser, SampledCutsOfWholeCasesGiveTheSameResponse) {
  const std::uint32_t seed = 41;
  std::mt19937 random(seed);
  for (const Json& row : WholeCases()) {
    const std::vector<std::size_t> boundaries = Boundaries(row);
    if (boundaries.empty()) continue;
    const Json want = At(RunCodecCase(row, {}), {"expect", "response"});
    for (int k = 0; k < 3; ++k) {
      const std::size_t at = boundaries[random() % boundaries.size()];
      ASSERT_TRUE(SameJson(At(RunCodecCase(CutAt(row, at), {}), {"expect", "response"}), want))
          << "seed " << seed << " " << TextAt(row, {"id"}) << " cut at byte " << at;
    }
  }
}

// Fragments of markup, whole and damaged, in random order and cut at random.
TEST(OutputParser, RandomMarkupIsReadTheSameHoweverItIsCut) {
  const std::array<std::string, 34> fragments = {"<｜DSML｜ calls>",
                                                 "</｜DSML｜ calls>",
                                                 "<｜DSML｜ invoke name=\"f\">",
                                                 "<｜DSML｜ invoke name=\"zz\">",
                                                 "</｜DSML｜ invoke>",
                                                 "<｜DSML｜ parameter name=\"a\" string=\"true\">",
                                                 "<｜DSML｜ parameter name=\"b c\" string=\"false\">",
                                                 "</｜DSML｜ parameter>",
                                                 "</｜DSML｜",
                                                 "<｜DSML｜",
                                                 "｜DSML｜",
                                                 "\n",
                                                 "\n\n",
                                                 "text",
                                                 "é😀",
                                                 "12",
                                                 "{\"x\": [1]}",
                                                 "[",
                                                 "}",
                                                 "\"",
                                                 "</think>",
                                                 "<think>",
                                                 "```json\n",
                                                 "\n```",
                                                 "STOP",
                                                 "ST",
                                                 "<",
                                                 "</",
                                                 "｜",
                                                 ">",
                                                 " ",
                                                 "<｜DSML｜tool_calls>",
                                                 "<｜DSML｜invoke name='g' >",
                                                 "<｜DSML｜ parameter name=\"d\">"};
  const std::uint32_t seed = 20261129;
  std::mt19937 random(seed);
  for (int round = 0; round < 6000; ++round) {
    OutputParserOptions options = WithTools();
    options.parsing.parse_tool_calls = random() % 8 != 0;
    options.parsing.parse_json_output = random() % 4 == 0;
    options.parsing.starts_in_tool_calls = options.parsing.parse_tool_calls && random() % 6 == 0;
    if (random() % 3 == 0) options.parsing.stage = ThinkingStage::kReasoningStart;
    if (random() % 3 == 0) options.parsing.stop_sequences = {"STOP", "TT", "\n\n"};
    std::string text;
    for (auto n = random() % 24; n > 0; --n) text += fragments[random() % fragments.size()];
    const std::array<std::optional<Finish>, 4> finishes = {Finish::kStop, Finish::kLength, Finish::kContentFilter,
                                                           std::nullopt};
    const auto finish = finishes[random() % 4];
    const Seen whole = Read(options, {text}, finish);
    std::vector<std::string> chunks;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t length = 1 + random() % (round % 2 == 0 ? 3 : 40);
      chunks.push_back(text.substr(at, length));
      at += length;
    }
    const std::string context = "seed " + std::to_string(seed) + " round " + std::to_string(round) + "\n" + text;
    ASSERT_EQ(Read(options, chunks, finish), whole) << context;
    for (const auto& [name, arguments] : whole.calls) {
      ASSERT_TRUE(name == "f" || name == "g") << context;
      const Result<Json> parsed = ParseJson(arguments, {.refuse_duplicates = true});
      ASSERT_TRUE(parsed && parsed->is_object()) << context << "\n" << arguments;
    }
    if (!options.parsing.parse_tool_calls || options.parsing.parse_json_output) continue;
    for (const std::string& shown : {whole.content, whole.reasoning})
      ASSERT_EQ(shown.find("<｜DSML｜"), std::string::npos) << context << "\n" << shown;
    ASSERT_EQ(whole.content.find("</｜DSML｜"), std::string::npos) << context << "\n" << whole.content;
  }
}

TEST(OutputParser, LongOutputTakesLinearTime) {
  // A value of 1 MB that holds 100,000 closers which close nothing, fed byte run by byte run: quadratic work would take
  // minutes.
  std::string value;
  for (int i = 0; i < 100000; ++i) value += "</｜DSML｜ x";
  const std::string text = Block(Invoke(Parameter("a", "true", value)));
  std::vector<std::string> chunks;
  for (std::size_t at = 0; at < text.size(); at += 16) chunks.push_back(text.substr(at, 16));
  const Seen seen = Read(WithTools(), chunks);
  ASSERT_EQ(seen.calls.size(), 1u);
  EXPECT_EQ(seen.calls[0].second.size(), value.size() + 9);  // {"a": "…"}
}

}  // namespace
}  // namespace galley::protocol
