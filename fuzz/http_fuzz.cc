// SPDX-License-Identifier: Apache-2.0
// Any bytes as what a client sends, whole and in pieces (the first byte says how long they are): both ways must come to
// the same requests and the same end.
#include <string>
#include <vector>

#include "galley/net/http_parser.h"
#include "input.h"

namespace {

using galley::fuzz::Require;
using galley::net::HttpRequest;
using galley::net::ParserLimits;
using galley::net::ParserState;
using galley::net::RequestParser;

constexpr ParserLimits kLimits = {
    .target_bytes_max = 64, .head_bytes_max = 512, .header_fields_max = 8, .body_bytes_max = 256};

struct Outcome {
  std::vector<HttpRequest> requests;
  bool failed = false;
};

Outcome Parse(std::string_view text, std::size_t step) {
  RequestParser parser(kLimits);
  Outcome outcome;
  std::string buffer;
  for (std::size_t at = 0; at < text.size(); at += step) {
    buffer.append(text.substr(at, step));
    for (std::size_t taken = 1; taken > 0 && !buffer.empty();) {
      taken = parser.Feed(buffer);
      Require(taken <= buffer.size());
      buffer.erase(0, taken);
      if (parser.state() == ParserState::kFailed) {
        const int status = parser.failure().status;
        Require(status >= 400 && status < 600 && !parser.failure().message.empty());
        outcome.failed = true;
        return outcome;
      }
      if (parser.state() == ParserState::kDone) {
        HttpRequest request = parser.Take();
        Require(request.body.size() <= kLimits.body_bytes_max);
        Require(request.path == "*" || request.path.starts_with('/'));
        Require(request.headers.fields().size() <= 8);
        outcome.requests.push_back(std::move(request));
        taken = 1;
      }
    }
    // A head is taken line by line, a chunk's header and trailer as a whole: what waits is bounded.
    Require(buffer.size() <= 2 * kLimits.head_bytes_max + step);
  }
  return outcome;
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view text = galley::fuzz::Text(data, size);
  if (text.empty()) return 0;
  const std::size_t step = static_cast<unsigned char>(text.front()) % 16 + 1;
  text.remove_prefix(1);
  const Outcome whole = Parse(text, text.size() + 1);
  const Outcome pieces = Parse(text, step);
  // In pieces a fault may show later (once the line is complete) or, where a limit is met by what waits, earlier; but
  // never do the requests in front of it differ.
  if (pieces.failed) Require(pieces.requests.size() <= whole.requests.size());
  if (!pieces.failed) Require(pieces.requests.size() == whole.requests.size());
  for (std::size_t i = 0; i < pieces.requests.size(); ++i) {
    Require(whole.requests[i].method == pieces.requests[i].method);
    Require(whole.requests[i].path == pieces.requests[i].path);
    Require(whole.requests[i].headers.fields() == pieces.requests[i].headers.fields());
    Require(whole.requests[i].body == pieces.requests[i].body);
  }
  return 0;
}
