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

// Feeds `text` in pieces of `step` bytes, as a connection does: what was not taken is offered again.
RequestParser ParseInPieces(std::string_view text, std::size_t step, const ParserLimits& limits, std::string* left) {
  RequestParser parser(limits);
  left->clear();
  for (std::size_t at = 0; at < text.size(); at += step) {
    left->append(text.substr(at, step));
    for (std::size_t taken = 1; taken > 0 && !left->empty();) {
      taken = parser.Feed(*left);
      left->erase(0, taken);
    }
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

std::vector<Case> Cases() {
  const std::string host = "Host: h\r\n";
  return {
      {"plain", "GET / HTTP/1.1\r\n" + host + "\r\n", 0},
      {"1.0 without host", "GET / HTTP/1.0\r\n\r\n", 0},
      {"empty lines first", "\r\n\r\nGET / HTTP/1.1\r\n" + host + "\r\n", 0},
      {"body", "POST /p HTTP/1.1\r\n" + host + "Content-Length: 3\r\n\r\nabc", 0},
      {"empty body", "POST /p HTTP/1.1\r\n" + host + "Content-Length: 0\r\n\r\n", 0},
      {"same length twice", "POST / HTTP/1.1\r\n" + host + "Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc", 400},
      {"chunks",
       "POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n", 0},
      {"chunks in capitals",
       "POST / HTTP/1.1\r\n" + host + "TRANSFER-ENCODING: Chunked\r\n\r\nA\r\n0123456789\r\n0\r\n\r\n", 0},
      {"trailer", "POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n0\r\nHost: other\r\n\r\n", 0},
      {"URL as target", "GET http://h/x?y HTTP/1.1\r\n" + host + "\r\n", 0},
      {"URL without path", "GET http://h?y HTTP/1.1\r\n" + host + "\r\n", 0},
      {"asterisk", "OPTIONS * HTTP/1.1\r\n" + host + "\r\n", 0},
      {"unknown method", "BREW /pot HTTP/1.1\r\n" + host + "\r\n", 0},
      {"six fields", "GET / HTTP/1.1\r\n" + host + Fields(5) + "\r\n", 0},
      {"upgrade is not followed", "GET / HTTP/1.1\r\n" + host + "Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n", 0},

      {"no host", "GET / HTTP/1.1\r\n\r\n", 400},
      {"two hosts", "GET / HTTP/1.1\r\n" + host + host + "\r\n", 400},
      {"seven fields", "GET / HTTP/1.1\r\n" + host + Fields(6) + "\r\n", 431},
      {"long field", "GET / HTTP/1.1\r\n" + host + "X: " + std::string(300, 'x') + "\r\n\r\n", 431},
      {"long fields together",
       "GET / HTTP/1.1\r\n" + host + "X: " + std::string(150, 'x') + "\r\nY: " + std::string(150, 'y') + "\r\n\r\n",
       431},
      {"endless field", "GET / HTTP/1.1\r\nX: " + std::string(1000, 'x'), 431},
      {"endless target", "GET /" + std::string(1000, 'x'), 431},
      {"long target", "GET /" + std::string(40, 'x') + " HTTP/1.1\r\n" + host + "\r\n", 414},
      {"long body", "POST / HTTP/1.1\r\n" + host + "Content-Length: 21\r\n\r\n", 413},
      {"huge length", "POST / HTTP/1.1\r\n" + host + "Content-Length: 18446744073709551615\r\n\r\n", 413},
      {"long chunks",
       "POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n15\r\n" + std::string(21, 'x') +
           "\r\n0\r\n\r\n",
       413},
      {"overflowing length", "POST / HTTP/1.1\r\n" + host + "Content-Length: 18446744073709551616\r\n\r\n", 400},
      {"signed length", "POST / HTTP/1.1\r\n" + host + "Content-Length: +3\r\n\r\nabc", 400},
      {"negative length", "POST / HTTP/1.1\r\n" + host + "Content-Length: -3\r\n\r\nabc", 400},
      {"one length twice, joined", "POST / HTTP/1.1\r\n" + host + "Content-Length: 4, 4\r\n\r\nabcd", 400},
      {"folded", "GET / HTTP/1.1\r\n" + host + "X: a\r\n b\r\n\r\n", 400},
      {"folded coding", "POST / HTTP/1.1\r\n" + host + "Transfer-Encoding:\r\n\tchunked\r\n\r\n0\r\n\r\n", 400},
      {"two lengths", "POST / HTTP/1.1\r\n" + host + "Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", 400},
      {"length and chunks",
       "POST / HTTP/1.1\r\n" + host + "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
      {"chunks and length",
       "POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n", 400},
      {"gzip body", "POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: gzip\r\n\r\n", 501},
      {"gzip, chunked", "POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501},
      {"chunked, identity", "POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked, identity\r\n\r\n", 501},
      {"vertical tab before chunked",
       "POST / HTTP/1.1\r\n" + host +
           "Transfer-Encoding: \x0b"
           "chunked\r\n\r\n",
       400},
      {"chunked twice",
       "POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
      {"chunks in 1.0", "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
      {"chunk without hex", "POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\nx\r\nabc", 400},
      {"chunk longer than said",
       "POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n0\r\n\r\n", 400},
      {"endless chunk header",
       "POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n3;" + std::string(1000, 'x'), 400},
      {"version 2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505},
      {"version 1.2", "GET / HTTP/1.2\r\n" + host + "\r\n", 505},
      {"version 0.9", "GET /\r\n\r\n", 400},
      {"lower case version", "GET / http/1.1\r\n" + host + "\r\n", 505},
      {"space in the name", "GET / HTTP/1.1\r\n" + host + "X : y\r\n\r\n", 400},
      {"no colon", "GET / HTTP/1.1\r\n" + host + "X\r\n\r\n", 400},
      {"zero byte in a value", std::string("GET / HTTP/1.1\r\nHost: h\0h\r\n\r\n", 29), 400},
      {"bare line feeds", "GET / HTTP/1.1\nHost: h\n\n", 400},
      {"line feed in a value", "GET / HTTP/1.1\r\n" + host + "X: a\nY: b\r\n\r\n", 400},
      {"target without slash", "GET x HTTP/1.1\r\n" + host + "\r\n", 400},
      {"target of CONNECT", "CONNECT h:80 HTTP/1.1\r\n" + host + "\r\n", 400},
      {"fragment", "GET /x#y HTTP/1.1\r\n" + host + "\r\n", 400},
      {"control byte in the target", "GET /\x01 HTTP/1.1\r\n" + host + "\r\n", 400},
      {"no method", " / HTTP/1.1\r\n" + host + "\r\n", 400},
      {"expectation", "POST / HTTP/1.1\r\n" + host + "Expect: miracles\r\n\r\n", 417},
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
      for (std::size_t taken = 1; taken > 0 && !buffer.empty();) {
        taken = parser.Feed(buffer);
        buffer.erase(0, taken);
      }
      EXPECT_EQ(parser.state(), whole.state()) << test.name << " split at " << split;
      if (whole.state() == ParserState::kDone) {
        EXPECT_EQ(Describe(parser, buffer), expected) << test.name << " " << split;
      }
    }
  }
}

TEST(RequestParser, ABodyMayLookLikeAFold) {
  RequestParser parser{ParserLimits()};
  const std::string text = "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\n \n b";
  for (std::size_t at = 0; at < text.size() && parser.state() != ParserState::kFailed;)
    at += parser.Feed(std::string_view(text).substr(at));
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
  const std::string head = "POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-Continue\r\nContent-Length: 2\r\n\r\n";
  EXPECT_EQ(parser.Feed(head), head.size());
  EXPECT_EQ(parser.state(), ParserState::kBody);
  EXPECT_TRUE(parser.expects_continue());
  EXPECT_EQ(parser.Feed("ab"), 2u);
  EXPECT_EQ(parser.Take().body, "ab");
}

TEST(ResponseParser, BodiesWithLengthChunksAndEnd) {
  const ParserLimits limits;
  ResponseParser sized(limits, false);
  const std::string with_length = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nabNEXT";
  EXPECT_EQ(sized.Feed(with_length), with_length.size() - 4);
  EXPECT_EQ(sized.state(), ParserState::kDone);
  EXPECT_EQ(sized.response().status, 200);
  EXPECT_EQ(sized.TakeBody(), "ab");
  EXPECT_TRUE(sized.keep_alive());

  ResponseParser head(limits, true);
  head.Feed("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n");
  EXPECT_EQ(head.state(), ParserState::kDone);

  ResponseParser until_end(limits, false);
  const std::string open = "HTTP/1.0 200 OK\r\n\r\nab";
  std::string left = open;
  for (std::size_t taken = 1; taken > 0 && !left.empty();) {
    taken = until_end.Feed(left);
    left.erase(0, taken);
  }
  EXPECT_EQ(until_end.state(), ParserState::kBody);
  until_end.FeedEnd();
  EXPECT_EQ(until_end.state(), ParserState::kDone);
  EXPECT_EQ(until_end.TakeBody(), "ab");
  EXPECT_FALSE(until_end.keep_alive());

  ResponseParser broken(limits, false);
  broken.Feed("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\na");
  broken.FeedEnd();
  EXPECT_EQ(broken.state(), ParserState::kFailed);
  EXPECT_THAT(broken.failure().message, HasSubstr("ended early"));
}

}  // namespace
}  // namespace galley::net
