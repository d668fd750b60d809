// SPDX-License-Identifier: Apache-2.0
#include "galley/net/sse.h"

#include <gtest/gtest.h>

#include <vector>

namespace galley::net {
namespace {

std::vector<SseEvent> ReadIn(std::string_view text, std::size_t step) {
  SseParser parser;
  std::vector<SseEvent> events;
  for (std::size_t at = 0; at < text.size(); at += step) {
    parser.Feed(text.substr(at, step));
    while (auto event = parser.Next()) events.push_back(*event);
  }
  return events;
}

TEST(Sse, ReadsAsTheStandardSays) {
  // The three line ends, a comment, fields without colon or space, joined data, an id that stays, an event without
  // data, an unknown field, and an event that is never completed.
  const std::string text =
      "\xef\xbb\xbf"
      "data: one\n\n: comment\r\nevent: add\r\ndata:two\rdata\rid: 7\r\r\nevent: none\n\ndata:  three\nfoo: bar\n\n"
      "data: lost";
  const std::vector<SseEvent> expected = {{"", "one", ""}, {"add", "two\n", "7"}, {"", " three", "7"}};
  for (std::size_t step = 1; step <= text.size(); ++step) EXPECT_EQ(ReadIn(text, step), expected) << step;
}

TEST(Sse, WritesWhatItReads) {
  EXPECT_EQ(FormatSse("", "[DONE]"), "data: [DONE]\n\n");
  EXPECT_EQ(FormatSse("x", "a\nb\r\nc\rd"), "event: x\ndata: a\ndata: b\ndata: c\ndata: d\n\n");
  for (const std::string data : {"", "plain", " space first", "two\nlines", "ends\n"}) {
    const std::vector<SseEvent> expected = {{"kind", data, ""}};
    EXPECT_EQ(ReadIn(FormatSse("kind", data), 3), expected) << data;
  }
}

TEST(Sse, AnEndlessEventFails) {
  SseParser parser(100);
  for (int i = 0; i < 30; ++i) parser.Feed("data: 123\n");  // 3 bytes and a line feed each: over 100 after 26
  EXPECT_TRUE(parser.failed());
  SseParser line(100);
  line.Feed(std::string(101, 'x'));
  EXPECT_TRUE(line.failed());
}

}  // namespace
}  // namespace galley::net
