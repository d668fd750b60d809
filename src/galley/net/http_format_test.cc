// SPDX-License-Identifier: Apache-2.0
#include "galley/net/http_format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "galley/net/cors.h"

namespace galley::net {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const std::chrono::system_clock::time_point kDate{std::chrono::seconds(784111777)};  // the example of RFC 9110

TEST(HttpFormat, Date) {
  EXPECT_EQ(FormatDate(kDate), "Sun, 06 Nov 1994 08:49:37 GMT");
  EXPECT_EQ(FormatDate(std::chrono::system_clock::time_point{}), "Thu, 01 Jan 1970 00:00:00 GMT");
}

TEST(HttpFormat, HeadsCannotBeBrokenOutOf) {
  const std::string head = FormatHead(200,
                                      {{"X-Id", "a\r\nSet-Cookie: b"},
                                       {"Bad Name", "x"},
                                       {"", "x"},
                                       {"content-length", "999"},
                                       {"Connection", "upgrade"}},
                                      {.keep_alive = false, .chunked = false, .content_length = 2, .date = kDate});
  EXPECT_EQ(head,
            "HTTP/1.1 200 OK\r\nX-Id: a  Set-Cookie: b\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\nContent-Length: 2\r\n"
            "Connection: close\r\n\r\n");
}

TEST(HttpFormat, Chunks) {
  std::string out;
  AppendChunk(&out, std::string(26, 'x'));
  AppendChunk(&out, "ab");
  EXPECT_EQ(out, "1a\r\n" + std::string(26, 'x') + "\r\n2\r\nab\r\n");
}

TEST(HttpMessage, HeadersAndErrors) {
  Headers headers = {{"A", "1"}, {"b", "2"}, {"a", "3"}};
  EXPECT_EQ(headers.Get("a"), "1");
  EXPECT_EQ(headers.Count("A"), 2);
  headers.Set("a", "4");
  EXPECT_EQ(headers.Count("A"), 1);
  EXPECT_EQ(headers.Get("A"), "4");
  EXPECT_FALSE(headers.Find("c"));
  EXPECT_TRUE(headers.Get("c").empty());

  const HttpResponse error = ErrorResponse(404, "no \"x\"\n\xff");
  EXPECT_EQ(error.body,
            R"({"type":"error","error":{"message":"no \"x\"\u000a\u00ff","type":"not_found_error","param":null,)"
            R"("code":"not_found"}})")
      << "both OpenAI's and Anthropic's form";
  EXPECT_EQ(ReasonPhrase(299), "Unknown");
}

HttpRequest FromPage(std::string origin, std::string host, std::string method = "POST") {
  HttpRequest request;
  request.method = std::move(method);
  request.headers = {{"Host", std::move(host)}, {"Origin", std::move(origin)}};
  return request;
}

TEST(Cors, OffByDefault) {
  const CorsPolicy policy({});
  HttpRequest without;
  without.headers = {{"Host", "127.0.0.1:8000"}};
  EXPECT_FALSE(policy.Decide(without).answer);
  EXPECT_FALSE(policy.Decide(FromPage("http://localhost:8000", "LOCALHOST:8000")).answer) << "the server's own page";
  EXPECT_TRUE(policy.Decide(FromPage("http://localhost:8000", "localhost:8000")).headers.fields().empty());
  for (const std::string origin : {"http://evil.example", "http://localhost:8001", "null", "localhost:8000"}) {
    const auto decision = policy.Decide(FromPage(origin, "localhost:8000"));
    ASSERT_TRUE(decision.answer) << origin;
    EXPECT_EQ(decision.answer->status, 403);
    EXPECT_TRUE(decision.headers.fields().empty());
  }
}

TEST(Cors, ListedOrigins) {
  const CorsPolicy policy({"https://chat.example.org"});
  const auto plain = policy.Decide(FromPage("https://chat.example.org", "h"));
  EXPECT_FALSE(plain.answer);
  EXPECT_EQ(plain.headers.Get("Access-Control-Allow-Origin"), "https://chat.example.org");
  EXPECT_EQ(plain.headers.Get("Vary"), "Origin");
  EXPECT_TRUE(policy.Decide(FromPage("https://chat.example.org.evil.example", "h")).answer);

  HttpRequest ask = FromPage("https://chat.example.org", "h", "OPTIONS");
  ask.headers.Add("Access-Control-Request-Method", "POST");
  ask.headers.Add("Access-Control-Request-Headers", "authorization,content-type");
  const auto preflight = policy.Decide(ask);
  ASSERT_TRUE(preflight.answer);
  EXPECT_EQ(preflight.answer->status, 204);
  EXPECT_EQ(preflight.answer->headers.Get("Access-Control-Allow-Headers"), "authorization,content-type");
  EXPECT_THAT(std::string(preflight.answer->headers.Get("Access-Control-Allow-Methods")), HasSubstr("POST"));

  EXPECT_FALSE(CorsPolicy({"*"}).Decide(FromPage("http://anyone.example", "h")).answer);
}

}  // namespace
}  // namespace galley::net
