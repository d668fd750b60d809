// SPDX-License-Identifier: Apache-2.0
#include "terminal.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <csignal>

namespace galley::app {
namespace {

using ::testing::ElementsAre;

// Lines that a pipe with these bytes gives.
std::vector<std::string> Lines(std::string_view input) {
  std::array<int, 2> ends{};
  EXPECT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  EXPECT_EQ(::write(ends[1], input.data(), input.size()), static_cast<ssize_t>(input.size()));
  ::close(ends[1]);
  Terminal terminal({.in = ends[0], .out = -1, .err = -1});
  std::vector<std::string> lines;
  const Interrupt interrupt;
  std::string line;
  while (terminal.ReadLine(interrupt, line) == ReadEnd::kLine) lines.push_back(line);
  EXPECT_EQ(terminal.ReadLine(interrupt, line), ReadEnd::kEndOfInput);
  ::close(ends[0]);
  return lines;
}

TEST(Terminal, ReadsLines) {
  EXPECT_THAT(Lines(""), ElementsAre());
  EXPECT_THAT(Lines("a"), ElementsAre("a"));
  EXPECT_THAT(Lines("a\n"), ElementsAre("a"));
  EXPECT_THAT(Lines("a\r\n\nb"), ElementsAre("a", "", "b"));
  EXPECT_THAT(Lines("\n"), ElementsAre(""));
  const std::string longer(10'000, 'x');  // longer than one read
  EXPECT_THAT(Lines(longer + "\n" + longer), ElementsAre(longer, longer));
}

TEST(Terminal, AnInterruptEndsTheWaitForALine) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  Terminal terminal({.in = ends[0], .out = -1, .err = -1});
  Interrupt interrupt;
  std::string line;
  std::raise(SIGINT);  // before the read, which is when a plain blocking read would miss it
  EXPECT_EQ(terminal.ReadLine(interrupt, line), ReadEnd::kInterrupted);
  EXPECT_TRUE(interrupt.requested());
  interrupt.Reset();
  EXPECT_FALSE(interrupt.requested());
  ASSERT_EQ(::write(ends[1], "a\n", 2), 2);
  EXPECT_EQ(terminal.ReadLine(interrupt, line), ReadEnd::kLine);
  for (const int end : ends) ::close(end);
}

TEST(InterruptDeathTest, TheSecondOneEndsTheProcess) {
  EXPECT_EXIT(
      {
        const Interrupt interrupt;
        std::raise(SIGINT);
        std::raise(SIGINT);
      },
      testing::ExitedWithCode(130), "");
}

TEST(Terminal, AClosedReaderIsNoError) {
  std::signal(SIGPIPE, SIG_IGN);
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  ::close(ends[0]);
  Terminal terminal({.in = -1, .out = ends[1], .err = -1});
  EXPECT_FALSE(terminal.output_closed());
  terminal.Write("text");
  EXPECT_TRUE(terminal.output_closed());
  EXPECT_TRUE(terminal.write_status().has_value());
  ::close(ends[1]);
}

TEST(Terminal, AFullDiskIsAnError) {
  const int full = ::open("/dev/full", O_WRONLY | O_CLOEXEC);
  if (full < 0) GTEST_SKIP() << "this system has no /dev/full";
  Terminal terminal({.in = -1, .out = full, .err = -1});
  terminal.Write("text");
  EXPECT_FALSE(terminal.output_closed());
  ASSERT_FALSE(terminal.write_status().has_value());
  EXPECT_EQ(terminal.write_status().error().code, ErrorCode::kIo);
  ::close(full);
}

TEST(Terminal, ReadAllHasALimit) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  ASSERT_EQ(::write(ends[1], "12345", 5), 5);
  ::close(ends[1]);
  Terminal terminal({.in = ends[0], .out = -1, .err = -1});
  const Result<std::string> text = terminal.ReadAll(4);
  ASSERT_FALSE(text.has_value());
  EXPECT_EQ(text.error().ToString(), "standard input: more than 4 bytes; give a shorter text");
  ::close(ends[0]);
}

TEST(WithoutControls, KeepsTextAndReplacesWhatDrivesATerminal) {
  EXPECT_EQ(WithoutControls("a\tb\nc"), "a\tb\nc");
  EXPECT_EQ(WithoutControls("é日🙂\xC2\xA0"), "é日🙂\xC2\xA0");  // U+00A0 is no control character
  EXPECT_EQ(WithoutControls("\033[31mred"), "\xEF\xBF\xBD[31mred");
  EXPECT_EQ(WithoutControls("\xC2\x9B"
                            "31m"),
            "\xEF\xBF\xBD"
            "31m");  // U+009B begins a sequence too
  EXPECT_EQ(WithoutControls("a\rb\x7F"),
            "a\xEF\xBF\xBD"
            "b\xEF\xBF\xBD");
}

}  // namespace
}  // namespace galley::app
