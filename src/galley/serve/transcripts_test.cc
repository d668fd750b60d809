// SPDX-License-Identifier: Apache-2.0
// Recorded conversations (tests/transcripts): what stands in a file as a request is sent over a socket, and the whole
// response must come back byte for byte, but for times. An engine without a model says what the file tells it to.
// scripts/record_transcripts.sh writes the responses anew.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <regex>

#include "galley/net/http_server.h"
#include "galley/net/test_raw_client.h"
#include "galley/serve/service_fixture.h"

namespace galley::serve {
namespace {

constexpr std::string_view kSays = "#says ";           // a JSON string: what the model writes
constexpr std::string_view kRequest = "#request\n";    // method and path, header lines, an empty line, the body
constexpr std::string_view kResponse = "#response\n";  // up to the next request or the end

struct Part {
  std::string says;
  std::string request;
  std::string response;
};

std::vector<Part> PartsOf(std::string_view file) {
  std::vector<Part> parts;
  while (!file.empty()) {
    Part part;
    const std::size_t request = file.find(kRequest);
    const std::size_t response = file.find(kResponse, request);
    const std::size_t next = std::min(file.find(std::string("\n") + std::string(kSays), response), file.size() - 1) + 1;
    EXPECT_TRUE(file.starts_with(kSays) && response != std::string_view::npos) << file.substr(0, 200);
    if (response == std::string_view::npos) break;
    const auto says = protocol::ParseJson(file.substr(kSays.size(), request - kSays.size()));
    EXPECT_TRUE(says && says->is_string()) << file.substr(0, 200);
    part.says = says ? *says->if_string() : "";
    part.request = file.substr(request + kRequest.size(), response - request - kRequest.size());
    part.response = file.substr(response + kResponse.size(), next - response - kResponse.size());
    parts.push_back(std::move(part));
    file.remove_prefix(next);
  }
  return parts;
}

// The request's lines with the ends that HTTP wants, and the length of its body.
std::string OnTheWire(const std::string& request) {
  const std::size_t head_end = request.find("\n\n");
  const std::string body = request.substr(head_end + 2, request.size() - head_end - 3);  // without the last line end
  std::string wire;
  std::string_view head = std::string_view(request).substr(0, head_end);
  wire.append(head.substr(0, head.find('\n'))).append(" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n");
  for (std::size_t at = head.find('\n'); at != std::string_view::npos; at = head.find('\n', at + 1))
    wire.append(head.substr(at + 1, head.find('\n', at + 1) - at - 1)).append("\r\n");
  return wire + "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

// Chunks put together, since where they are cut depends on timing; times become fixed ones.
std::string Comparable(const std::string& wire) {
  const std::size_t head_end = wire.find("\r\n\r\n") + 4;
  std::string head = wire.substr(0, head_end), body;
  std::string_view rest = std::string_view(wire).substr(head_end);
  if (head.find("Transfer-Encoding: chunked") == std::string::npos) {
    body = rest;
  } else {
    while (!rest.empty()) {
      const std::size_t size = std::stoul(std::string(rest.substr(0, rest.find('\r'))), nullptr, 16);
      rest.remove_prefix(rest.find('\n') + 1);
      body += rest.substr(0, size);
      rest.remove_prefix(std::min(size + 2, rest.size()));
      if (size == 0) break;
    }
    EXPECT_TRUE(rest.empty()) << "behind the last chunk: " << rest;
  }
  std::erase(head, '\r');
  static const std::regex date("\nDate: [^\n]*"), times("\"(created|created_at|completed_at)\":[0-9]+");
  head = std::regex_replace(head, date, "\nDate: (a date)");
  body = std::regex_replace(body, times, "\"$1\":1700000000");
  return head + body + (body.ends_with('\n') ? "" : "\n");
}

std::string Ask(const Part& part) {
  Served served(Says(part.says), {.version = "0"});
  auto server =
      net::HttpServer::Create({.listen = {"127.0.0.1:0"}}, std::bind_front(&Service::Handle, served.service.get()));
  EXPECT_TRUE(server) << server.error().ToString();
  net::RawClient client((*server)->port());
  EXPECT_TRUE(client.Send(OnTheWire(part.request)));
  return Comparable(client.UntilEnd());
}

std::vector<std::filesystem::path> Files() {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(std::string(GALLEY_SOURCE_DIR) + "/tests/transcripts"))
    if (entry.path().extension() == ".txt") files.push_back(entry.path());
  return files;
}

std::vector<Part> ReadParts(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return PartsOf(std::string{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()});
}

TEST(Transcripts, AreWhatTheServerSays) {
  int count = 0;
  for (const auto& path : Files()) {
    for (const Part& part : ReadParts(path)) {
      EXPECT_EQ(Ask(part), part.response) << path.filename() << "\n" << part.request;
      ++count;
    }
  }
  EXPECT_GT(count, 20);
}

// Not a test: what scripts/record_transcripts.sh runs.
TEST(Transcripts, DISABLED_AreRecorded) {
  for (const auto& path : Files()) {
    std::string recorded;
    for (const Part& part : ReadParts(path)) {
      recorded.append(kSays).append(protocol::DumpJson(protocol::Json(part.says))).append("\n");
      recorded.append(kRequest).append(part.request).append(kResponse).append(Ask(part));
    }
    std::ofstream(path, std::ios::binary) << recorded;
  }
}

}  // namespace
}  // namespace galley::serve
