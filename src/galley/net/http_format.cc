// SPDX-License-Identifier: Apache-2.0
#include "galley/net/http_format.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <iterator>

namespace galley::net {
namespace {

constexpr std::string_view kFraming[] = {"Content-Length", "Transfer-Encoding", "Connection", "Date"};

bool IsTokenChar(char c) {
  return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
         std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
}

bool IsFraming(std::string_view name) {
  return std::any_of(std::begin(kFraming), std::end(kFraming),
                     [name](std::string_view entry) { return EqualsIgnoreCase(entry, name); });
}

}  // namespace

bool MayHaveBody(int status) {
  return status >= 200 && status != 204 && status != 304;
}

std::string FormatField(std::string_view name, std::string_view value) {
  if (name.empty() || !std::all_of(name.begin(), name.end(), IsTokenChar)) return {};
  std::string line(name);
  line += ": ";
  for (const char c : value) line += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? ' ' : c;
  return line += "\r\n";
}

std::string FormatHead(int status, const Headers& headers, const HeadOptions& options) {
  std::string head = fmt::format("HTTP/1.1 {} {}\r\n", status, ReasonPhrase(status));
  for (const auto& [name, value] : headers.fields()) {
    if (!IsFraming(name)) head += FormatField(name, value);
  }
  head += fmt::format("Date: {}\r\n", FormatDate(options.date));
  if (options.content_length) head += fmt::format("Content-Length: {}\r\n", *options.content_length);
  if (options.chunked) head += "Transfer-Encoding: chunked\r\n";
  head += options.keep_alive ? "Connection: keep-alive\r\n\r\n" : "Connection: close\r\n\r\n";
  return head;
}

void AppendChunk(std::string* out, std::string_view bytes) {
  fmt::format_to(std::back_inserter(*out), "{:x}\r\n", bytes.size());
  out->append(bytes);
  out->append("\r\n");
}

// Names are written out since those of strftime follow the locale.
std::string FormatDate(std::chrono::system_clock::time_point time) {
  static constexpr std::array<std::string_view, 7> kDays = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
  static constexpr std::array<std::string_view, 12> kMonths = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                                               "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  const std::time_t seconds = std::chrono::system_clock::to_time_t(time);
  std::tm utc{};
  gmtime_r(&seconds, &utc);
  return fmt::format("{}, {:02} {} {} {:02}:{:02}:{:02} GMT", kDays[static_cast<std::size_t>(utc.tm_wday)], utc.tm_mday,
                     kMonths[static_cast<std::size_t>(utc.tm_mon)], utc.tm_year + 1900, utc.tm_hour, utc.tm_min,
                     utc.tm_sec);
}

}  // namespace galley::net
