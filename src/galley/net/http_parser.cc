// SPDX-License-Identifier: Apache-2.0
#include "galley/net/http_parser.h"

#include <fmt/core.h>

#include <algorithm>
#include <boost/beast/http/basic_parser.hpp>
#include <cstdint>
#include <optional>
#include <utility>

#include "galley/base/check.h"

namespace galley::net {
namespace {

namespace http = boost::beast::http;
using boost::beast::error_code;
using BeastText = boost::beast::string_view;

std::string_view View(BeastText text) {
  return {text.data(), text.size()};
}

// How a message of Beast's is answered. Errors without a row are 400.
struct ErrorRow {
  http::error error;
  int status;
  std::string_view message;
};

constexpr ErrorRow kErrors[] = {
    {http::error::bad_version, 505, "the request line does not end in HTTP/1.0 or HTTP/1.1"},
    {http::error::bad_method, 400, "the request does not begin with a method"},
    {http::error::bad_target, 400, "the request target has bytes that are not allowed there"},
    {http::error::bad_field, 400, "a header field's name is malformed"},
    {http::error::bad_value, 400, "a header field's value is malformed"},
    {http::error::bad_content_length, 400, "Content-Length is malformed, repeated with another value or contradicted"},
    {http::error::bad_transfer_encoding, 400, "Transfer-Encoding is repeated or contradicts Content-Length"},
    {http::error::bad_chunk, 400, "the chunked body is malformed"},
    {http::error::bad_chunk_extension, 400, "a chunk extension is malformed"},
    {http::error::partial_message, 400, "the message ended early"},
};

std::string HeadTooLong(const ParserLimits& limits) {
  return fmt::format("the request's head is longer than {} bytes; send fewer and shorter header fields",
                     limits.head_bytes_max);
}
std::string BodyTooLong(const ParserLimits& limits) {
  return fmt::format("the request's body is longer than {} bytes; send less, or raise --max-body",
                     limits.body_bytes_max);
}

ParseFailure FailureOf(const error_code& ec, const ParserLimits& limits) {
  if (ec == http::error::header_limit) return {431, HeadTooLong(limits)};
  if (ec == http::error::body_limit) return {413, BodyTooLong(limits)};
  for (const ErrorRow& row : kErrors) {
    if (ec == row.error) return {row.status, std::string(row.message)};
  }
  return {400, "the message is not valid HTTP/1.1"};
}

// Takes what Beast reports, and keeps limits on the head that Beast does not.
class RequestCollector final : public http::basic_parser<true> {
 public:
  explicit RequestCollector(const ParserLimits& limits) : limits_(limits) {
    eager(true);
    header_limit(static_cast<std::uint32_t>(limits.head_bytes_max));
    body_limit(limits.body_bytes_max);
  }

  // A chunk's header or the trailer comes next.
  [[nodiscard]] bool at_chunk_header() const { return is_header_done() && chunked() && !is_done() && chunk_left_ == 0; }

  std::optional<ParseFailure> own_failure;
  HttpRequest request;
  int http_version = 11;

 private:
  // Makes Beast stop; FeedOne then reports `own_failure` instead of Beast's code.
  void Fail(int status, std::string message, error_code& ec) {
    own_failure = ParseFailure{status, std::move(message)};
    ec = http::error::bad_value;
  }

  void CountHead(std::size_t bytes, error_code& ec) {
    head_bytes_ += bytes;
    if (head_bytes_ > limits_.head_bytes_max) Fail(431, HeadTooLong(limits_), ec);
  }

  std::size_t AddBody(BeastText piece, error_code& ec) {
    if (own_failure) return 0;
    body_bytes_ += piece.size();
    if (body_bytes_ > limits_.body_bytes_max) {
      Fail(413, BodyTooLong(limits_), ec);
      return 0;
    }
    request.body.append(piece.data(), piece.size());
    return piece.size();
  }

  void on_request_impl(http::verb, BeastText method, BeastText target, int version, error_code& ec) override {
    http_version = version;
    if (target.size() > limits_.target_bytes_max) {
      return Fail(414, fmt::format("the request target is longer than {} bytes", limits_.target_bytes_max), ec);
    }
    CountHead(method.size() + target.size() + 12, ec);
    if (ec) return;
    request.method = View(method);
    if (!SplitTarget(View(target))) Fail(400, "the request target is neither a path nor a URL", ec);
  }

  // origin-form "/path?query", absolute-form "http://host/path?query", asterisk-form "*" with OPTIONS.
  bool SplitTarget(std::string_view target) {
    if (target.find('#') != std::string_view::npos) return false;
    if (target == "*" && request.method == "OPTIONS") {
      request.path = target;
      return true;
    }
    for (const std::string_view scheme : {"http://", "https://"}) {
      if (!EqualsIgnoreCase(target.substr(0, scheme.size()), scheme)) continue;
      target.remove_prefix(scheme.size());
      if (target.empty() || target.front() == '/' || target.front() == '?') return false;
      target.remove_prefix(std::min(target.find_first_of("/?"), target.size()));
      if (target.empty() || target.front() == '?') {
        request.path = "/";
        request.query = target.empty() ? "" : target.substr(1);
        return true;
      }
      break;
    }
    if (target.empty() || target.front() != '/') return false;
    const std::size_t mark = target.find('?');
    request.path = target.substr(0, mark);
    if (mark != std::string_view::npos) request.query = target.substr(mark + 1);
    return true;
  }

  void on_response_impl(int, BeastText, int, error_code&) override {}

  // Trailers count too, but are dropped: nothing that comes after the body may change what the head said.
  void on_field_impl(http::field, BeastText name, BeastText value, error_code& ec) override {
    CountHead(name.size() + value.size() + 4, ec);
    if (ec) return;
    if (++fields_ > limits_.header_fields_max) {
      return Fail(431, fmt::format("there are more than {} header fields", limits_.header_fields_max), ec);
    }
    if (!is_header_done()) request.headers.Add(std::string(View(name)), std::string(View(value)));
  }

  // What decides where the body ends, and for whom the request is, has to be beyond doubt.
  void on_header_impl(error_code& ec) override {
    const Headers& headers = request.headers;
    if (const auto coding = headers.Find("Transfer-Encoding")) {
      if (http_version < 11) return Fail(400, "Transfer-Encoding does not exist in HTTP/1.0", ec);
      if (headers.Count("Transfer-Encoding") != 1 || !EqualsIgnoreCase(*coding, "chunked")) {
        return Fail(501, "the only transfer coding supported is \"chunked\"", ec);
      }
    }
    // Equal lengths too: whoever reads them in front of us may join or drop one.
    const int lengths = headers.Count("Content-Length");
    if (lengths > 1 || headers.Get("Content-Length").find(',') != std::string_view::npos) {
      return Fail(400, "a request has one Content-Length with one number", ec);
    }
    const int hosts = headers.Count("Host");
    if (hosts > 1 || (hosts == 0 && http_version >= 11)) {
      return Fail(400, fmt::format("an HTTP/1.1 request has one Host field, this one has {}", hosts), ec);
    }
    if (const auto expect = headers.Find("Expect"); expect && !EqualsIgnoreCase(*expect, "100-continue")) {
      return Fail(417, "the only expectation supported is 100-continue", ec);
    }
  }

  void on_body_init_impl(boost::optional<std::uint64_t> const&, error_code&) override {}
  std::size_t on_body_impl(BeastText piece, error_code& ec) override { return AddBody(piece, ec); }
  // Extensions mean nothing to us and count as a part of the head, so that they cannot go on for ever.
  void on_chunk_header_impl(std::uint64_t size, BeastText extension, error_code& ec) override {
    chunk_left_ = size;
    CountHead(extension.size(), ec);
  }
  std::size_t on_chunk_body_impl(std::uint64_t, BeastText piece, error_code& ec) override {
    const std::size_t taken = AddBody(piece, ec);
    chunk_left_ -= taken;
    return taken;
  }
  void on_finish_impl(error_code&) override {}

  const ParserLimits limits_;
  std::uint64_t chunk_left_ = 0;
  std::size_t head_bytes_ = 0;
  std::size_t body_bytes_ = 0;
  int fields_ = 0;
};

// Offers `input` to the parser once; a failure goes to `failure`. Returns the bytes taken.
std::size_t FeedOnce(RequestCollector& parser, std::string_view input, const ParserLimits& limits,
                     std::optional<ParseFailure>* failure) {
  // The shortest end of a chunked body has five bytes, and Beast (1.74) asserts that it never sees fewer there.
  if (parser.at_chunk_header() && input.size() < 5) return 0;
  error_code ec;
  const std::size_t taken = parser.put(boost::asio::const_buffer(input.data(), input.size()), ec);
  if (!ec) return taken;
  if (ec != http::error::need_more) {
    *failure = parser.own_failure ? *parser.own_failure : FailureOf(ec, limits);
  } else if (taken == 0 && parser.is_header_done() && input.size() > limits.head_bytes_max) {
    // Chunk headers and trailers are taken as a whole, so without this they could grow for ever.
    *failure = ParseFailure{
        400, fmt::format("a chunk's header or the trailer is longer than {} bytes", limits.head_bytes_max)};
  }
  return taken;
}

ParserState StateOf(const RequestCollector& parser, const std::optional<ParseFailure>& failure) {
  if (failure) return ParserState::kFailed;
  if (parser.is_done()) return ParserState::kDone;
  return parser.is_header_done() ? ParserState::kBody : ParserState::kHead;
}

}  // namespace

class RequestParser::Impl {
 public:
  explicit Impl(const ParserLimits& parser_limits) : limits(parser_limits) { Reset(); }
  void Reset() {
    parser.emplace(limits);
    line_begins = head_over = false;
  }

  const ParserLimits limits;
  std::optional<RequestCollector> parser;
  std::optional<ParseFailure> failure;

  // Beast joins folded lines before it reports a field, so the raw head is looked at: a line that begins with a blank
  // goes on with the one before. `taken`: what Beast has taken of the head just now, perhaps with some of the body.
  void RefuseFolds(std::string_view taken) {
    for (std::size_t i = 0; i < taken.size() && !head_over; ++i) {
      const char c = taken[i];
      if (line_begins && (c == ' ' || c == '\t')) failure = ParseFailure{400, "a header field is folded over lines"};
      head_over = line_begins && c == '\r';
      line_begins = c == '\n';
    }
  }
  bool line_begins = false, head_over = false;
};

RequestParser::RequestParser(const ParserLimits& limits) : impl_(std::make_unique<Impl>(limits)) {}
RequestParser::~RequestParser() = default;
RequestParser::RequestParser(RequestParser&&) noexcept = default;
RequestParser& RequestParser::operator=(RequestParser&&) noexcept = default;

std::size_t RequestParser::Feed(std::string_view input) {
  std::size_t taken = 0;
  if (state() == ParserState::kDone || state() == ParserState::kFailed) return taken;
  // Empty lines in front of a request are passed over, as RFC 9112 section 2.2 asks for.
  while (!impl_->parser->got_some() && input.substr(taken, 2) == "\r\n") taken += 2;
  const std::string_view rest = input.substr(taken);
  if (rest.empty() || (rest == "\r" && !impl_->parser->got_some())) return taken;
  // Beast waits for an empty line with carriage returns, so a client that sends none would wait for its time-out.
  const std::size_t line_feed = request().method.empty() ? rest.find('\n') : std::string_view::npos;
  if (line_feed != std::string_view::npos && (line_feed == 0 || rest[line_feed - 1] != '\r')) {
    impl_->failure = ParseFailure{400, "a line does not end in carriage return and line feed"};
    return taken;
  }
  const std::size_t fed = FeedOnce(*impl_->parser, rest, impl_->limits, &impl_->failure);
  if (!impl_->failure) impl_->RefuseFolds(rest.substr(0, fed));
  return taken + fed;
}

ParserState RequestParser::state() const {
  return StateOf(*impl_->parser, impl_->failure);
}

const ParseFailure& RequestParser::failure() const {
  CHECK(impl_->failure.has_value());
  return *impl_->failure;
}

bool RequestParser::expects_continue() const {
  return http_version() >= 11 && impl_->parser->request.headers.Find("Expect").has_value();
}
bool RequestParser::keep_alive() const {
  return impl_->parser->keep_alive();
}
int RequestParser::http_version() const {
  return impl_->parser->http_version;
}
const HttpRequest& RequestParser::request() const {
  return impl_->parser->request;
}

HttpRequest RequestParser::Take() {
  CHECK(state() == ParserState::kDone);
  HttpRequest request = std::move(impl_->parser->request);
  impl_->Reset();
  return request;
}

}  // namespace galley::net
