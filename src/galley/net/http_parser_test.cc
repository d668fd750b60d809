// SPDX-License-Identifier: Apache-2.0
#include "galley/net/http_parser.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace galley::net {
namespace {

using ::testing::HasSubstr;

const ParserLimits kSmall = {
    .target_bytes_max = 40, .head_bytes_max = 300, .header_fields_max = 6, .body_bytes_max = 20};

// As a connection does: what was not taken is offered again.
void FeedAll(RequestParser& parser, std::string& left) {
  for (std::size_t taken = 1; taken > 0 && !left.empty();) {
    taken = parser.Feed(left);
    left.erase(0, taken);
  }
}

// Feeds `text` in pieces of `step` bytes.
RequestParser ParseInPieces(std::string_view text, std::size_t step, const ParserLimits& limits, std::string* left) {
  RequestParser parser(limits);
  left->clear();
  for (std::size_t at = 0; at < text.size(); at += step) {
    left->append(text.substr(at, step));
    FeedAll(parser, *left);
  }
  return parser;
}

std::string Describe(const RequestParser& parser, std::string_view left) {
  std::string text = std::to_string(static_cast<int>(parser.state()));
  if (parser.state() == ParserState::kFailed) {
    return text + " " + std::to_string(parser.failure().status) + " " + parser.failure().message;
  }
  const HttpRequest& request = parser.request();
  text += " " + request.method + " " + request.path + " ?" + request.query + " ";
  for (const auto& [name, value] : request.headers.fields()) text.append(name).append("=").append(value).append(";");
  return text + " " + request.body + " keep=" + std::to_string(parser.keep_alive()) + " left=" + std::string(left);
}

struct Case {
  std::string_view name;
  std::string text;
  int status;  // of the failure; 0: the request is good
};

std::string Fields(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += "F" + std::to_string(i) + ": v\r\n";
  return text;
}

// A head with a Host field; `fields` end with their line breaks.
std::string Head(const std::string& line, const std::string& fields = "") {
  return line + "\r\nHost: h\r\n" + fields + "\r\n";
}
std::string Get(const std::string& fields) {
  return Head("GET / HTTP/1.1", fields);
}
// What follows the Host field of a POST, and of one whose body comes in chunks.
std::string Post(const std::string& rest) {
  return "POST / HTTP/1.1\r\nHost: h\r\n" + rest;
}
std::string Chunked(const std::string& body) {
  return Post("Transfer-Encoding: chunked\r\n\r\n" + body);
}

std::vector<Case> Cases() {
  return {
      {"plain", Get(""), 0},
      {"1.0 without host", "GET / HTTP/1.0\r\n\r\n", 0},
      {"empty lines first", Head("\r\n\r\nGET / HTTP/1.1"), 0},
      {"body", Post("Content-Length: 3\r\n\r\nabc"), 0},
      {"empty body", Post("Content-Length: 0\r\n\r\n"), 0},
      {"same length twice", Post("Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc"), 400},
      {"chunks", Chunked("3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n"), 0},
      {"chunks in capitals", Post("TRANSFER-ENCODING: Chunked\r\n\r\nA\r\n0123456789\r\n0\r\n\r\n"), 0},
      {"trailer", Chunked("0\r\nHost: other\r\n\r\n"), 0},
      {"URL as target", Head("GET http://h/x?y HTTP/1.1"), 0},
      {"URL without path", Head("GET http://h?y HTTP/1.1"), 0},
      {"asterisk", Head("OPTIONS * HTTP/1.1"), 0},
      {"unknown method", Head("BREW /pot HTTP/1.1"), 0},
      {"six fields", Get(Fields(5)), 0},
      {"upgrade is not followed", Get("Connection: Upgrade\r\nUpgrade: h2c\r\n"), 0},

      {"no host", "GET / HTTP/1.1\r\n\r\n", 400},
      {"two hosts", Get("Host: h\r\n"), 400},
      {"seven fields", Get(Fields(6)), 431},
      {"long field", Get("X: " + std::string(300, 'x') + "\r\n"), 431},
      {"long fields together", Get("X: " + std::string(150, 'x') + "\r\nY: " + std::string(150, 'y') + "\r\n"), 431},
      {"endless field", "GET / HTTP/1.1\r\nX: " + std::string(1000, 'x'), 431},
      {"endless target", "GET /" + std::string(1000, 'x'), 431},
      {"long target", Head("GET /" + std::string(40, 'x') + " HTTP/1.1"), 414},
      {"long body", Post("Content-Length: 21\r\n\r\n"), 413},
      {"huge length", Post("Content-Length: 18446744073709551615\r\n\r\n"), 413},
      {"long chunks", Chunked("15\r\n" + std::string(21, 'x') + "\r\n0\r\n\r\n"), 413},
      {"overflowing length", Post("Content-Length: 18446744073709551616\r\n\r\n"), 400},
      {"signed length", Post("Content-Length: +3\r\n\r\nabc"), 400},
      {"negative length", Post("Content-Length: -3\r\n\r\nabc"), 400},
      {"one length twice, joined", Post("Content-Length: 4, 4\r\n\r\nabcd"), 400},
      {"folded", Get("X: a\r\n b\r\n"), 400},
      {"folded coding", Post("Transfer-Encoding:\r\n\tchunked\r\n\r\n0\r\n\r\n"), 400},
      {"two lengths", Post("Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd"), 400},
      {"length and chunks", Post("Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), 400},
      {"chunks and length", Post("Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n"), 400},
      {"gzip body", Post("Transfer-Encoding: gzip\r\n\r\n"), 501},
      {"gzip, chunked", Post("Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"), 501},
      {"chunked, identity", Post("Transfer-Encoding: chunked, identity\r\n\r\n"), 501},
      {"vertical tab before chunked",
       Post("Transfer-Encoding: \x0b"
            "chunked\r\n\r\n"),
       400},
      {"chunked twice", Post("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n"), 400},
      {"chunks in 1.0", "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
      {"chunk without hex", Chunked("x\r\nabc"), 400},
      {"chunk longer than said", Chunked("2\r\nabc\r\n0\r\n\r\n"), 400},
      {"endless chunk header", Chunked("3;" + std::string(1000, 'x')), 400},
      {"version 2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505},
      {"version 1.2", Head("GET / HTTP/1.2"), 505},
      {"version 0.9", "GET /\r\n\r\n", 400},
      {"lower case version", Head("GET / http/1.1"), 505},
      {"space in the name", Get("X : y\r\n"), 400},
      {"no colon", Get("X\r\n"), 400},
      {"zero byte in a value", std::string("GET / HTTP/1.1\r\nHost: h\0h\r\n\r\n", 29), 400},
      {"bare line feeds", "GET / HTTP/1.1\nHost: h\n\n", 400},
      {"line feed in a value", Get("X: a\nY: b\r\n"), 400},
      {"target without slash", Head("GET x HTTP/1.1"), 400},
      {"target of CONNECT", Head("CONNECT h:80 HTTP/1.1"), 400},
      {"fragment", Head("GET /x#y HTTP/1.1"), 400},
      {"control byte in the target", Head("GET /\x01 HTTP/1.1"), 400},
      {"no method", Head(" / HTTP/1.1"), 400},
      {"expectation", Post("Expect: miracles\r\n\r\n"), 417},
      {"TLS greeting", std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11), 400},
      {"binary", "\xff\xfe\xfd\xfc\r\n\r\n", 400},
  };
}

TEST(RequestParser, Table) {
  for (const Case& test : Cases()) {
    std::string left;
    const RequestParser parser = ParseInPieces(test.text, test.text.size(), kSmall, &left);
    if (test.status == 0) {
      EXPECT_EQ(parser.state(), ParserState::kDone) << test.name << ": " << Describe(parser, left);
      EXPECT_EQ(left, "") << test.name;
    } else {
      ASSERT_EQ(parser.state(), ParserState::kFailed) << test.name << ": " << Describe(parser, left);
      EXPECT_EQ(parser.failure().status, test.status) << test.name << ": " << parser.failure().message;
      EXPECT_NE(parser.failure().message, "") << test.name;
      // What is too long is told with its limit.
      if (test.status == 413 || test.status == 414 || test.status == 431) {
        EXPECT_NE(parser.failure().message.find_first_of("123456789"), std::string::npos) << parser.failure().message;
      }
    }
  }
}

// Whatever the pieces in which it arrives, a message means the same.
TEST(RequestParser, EverySplitGivesTheSame) {
  for (const Case& test : Cases()) {
    std::string left;
    const RequestParser whole = ParseInPieces(test.text, test.text.size(), kSmall, &left);
    const std::string expected = Describe(whole, left);
    for (const std::size_t step : std::initializer_list<std::size_t>{1, 2, 3, 5, 7, 16, 100}) {
      const RequestParser parser = ParseInPieces(test.text, step, kSmall, &left);
      EXPECT_EQ(parser.state(), whole.state()) << test.name << " in pieces of " << step;
      // Which of two faults is met first may depend on the pieces, but both are faults.
      if (whole.state() == ParserState::kDone) {
        EXPECT_EQ(Describe(parser, left), expected) << test.name << " " << step;
      }
    }
    for (std::size_t split = 1; split < test.text.size(); ++split) {
      RequestParser parser(kSmall);
      std::string buffer = test.text.substr(0, split);
      buffer.erase(0, parser.Feed(buffer));
      buffer += test.text.substr(split);
      FeedAll(parser, buffer);
      EXPECT_EQ(parser.state(), whole.state()) << test.name << " split at " << split;
      if (whole.state() == ParserState::kDone) {
        EXPECT_EQ(Describe(parser, buffer), expected) << test.name << " " << split;
      }
    }
  }
}

TEST(RequestParser, ABodyMayLookLikeAFold) {
  RequestParser parser{ParserLimits()};
  std::string text = Post("Content-Length: 4\r\n\r\n \n b");
  FeedAll(parser, text);
  ASSERT_EQ(parser.state(), ParserState::kDone);
  EXPECT_EQ(parser.request().body, " \n b");
}

TEST(RequestParser, PartsOfTheRequest) {
  std::string left;
  RequestParser parser = ParseInPieces(
      "POST http://h/v1/x?a=1&b=?2 HTTP/1.1\r\nhost: h\r\nX-A: 1\r\nTransfer-Encoding: chunked\r\n\r\n"
      "3\r\nabc\r\n0\r\nX-A: 2\r\n\r\nGET",
      1000, ParserLimits{}, &left);
  ASSERT_EQ(parser.state(), ParserState::kDone);
  EXPECT_TRUE(parser.keep_alive());
  EXPECT_EQ(parser.Feed(left), 0u);
  const HttpRequest request = parser.Take();
  EXPECT_EQ(request.method, "POST");
  EXPECT_EQ(request.path, "/v1/x");
  EXPECT_EQ(request.query, "a=1&b=?2");
  EXPECT_EQ(request.headers.Get("HOST"), "h");
  EXPECT_EQ(request.headers.Count("X-A"), 1) << "a trailer adds nothing to the head";
  EXPECT_EQ(request.body, "abc");
  EXPECT_EQ(left, "GET");  // of the next request
  EXPECT_EQ(parser.state(), ParserState::kHead);
  left += " / HTTP/1.0\r\n\r\n";
  EXPECT_EQ(parser.Feed(left), left.size());
  EXPECT_EQ(parser.state(), ParserState::kDone);
  EXPECT_EQ(parser.http_version(), 10);
  EXPECT_FALSE(parser.keep_alive()) << "HTTP/1.0 closes unless asked";
}

TEST(RequestParser, ExpectationIsKnownBeforeTheBody) {
  RequestParser parser(ParserLimits{});
  const std::string head = Post("Expect: 100-Continue\r\nContent-Length: 2\r\n\r\n");
  EXPECT_EQ(parser.Feed(head), head.size());
  EXPECT_EQ(parser.state(), ParserState::kBody);
  EXPECT_TRUE(parser.expects_continue());
  EXPECT_EQ(parser.Feed("ab"), 2u);
  EXPECT_EQ(parser.Take().body, "ab");
}

}  // namespace
}  // namespace galley::net
