// SPDX-License-Identifier: Apache-2.0
#include "galley/serve/trace.h"

#include <fmt/format.h>

#include <algorithm>

#include "galley/base/rng.h"

namespace galley::serve {
namespace {

constexpr std::size_t kRequestIdMax = 128;
constexpr std::size_t kTracestateMax = 512;

bool IsVisible(std::string_view text, std::size_t length_max) {
  return !text.empty() && text.size() <= length_max &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c < 0x7F && c != '"' && c != '\\'; });
}

bool IsHex(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

bool AllZero(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c == '0'; });
}

}  // namespace

std::string IdSource::Next() {
  const auto words =
      Philox4x32({count_++, 0, 0, 0}, {static_cast<std::uint32_t>(seed_), static_cast<std::uint32_t>(seed_ >> 32)});
  return fmt::format("{:08x}{:08x}{:08x}{:08x}", words[0], words[1], words[2], words[3]);
}

std::uint64_t IdSource::NextSeed() {
  const auto words =
      Philox4x32({count_++, 1, 0, 0}, {static_cast<std::uint32_t>(seed_), static_cast<std::uint32_t>(seed_ >> 32)});
  return (std::uint64_t{words[0]} << 31) ^ words[1];  // below 2^63, as seeds in requests are
}

bool IsTraceparent(std::string_view value) {
  // version "-" trace id "-" parent id "-" flags: 2, 32, 16 and 2 hexadecimal digits.
  if (value.size() != 55 || value[2] != '-' || value[35] != '-' || value[52] != '-') return false;
  const std::string_view trace = value.substr(3, 32), parent = value.substr(36, 16);
  return value.substr(0, 2) == "00" && IsHex(trace) && IsHex(parent) && IsHex(value.substr(53)) && !AllZero(trace) &&
         !AllZero(parent);
}

Trace TraceOf(const net::Headers& headers, IdSource& ids) {
  Trace trace;
  const std::string_view given = headers.Get("x-request-id");
  trace.request_id = IsVisible(given, kRequestIdMax) ? std::string(given) : "req_" + ids.Next();
  const std::string_view parent = headers.Get("traceparent");
  if (!IsTraceparent(parent)) return trace;
  trace.traceparent = parent;
  const std::string_view state = headers.Get("tracestate");
  if (IsVisible(state, kTracestateMax)) trace.tracestate = state;
  return trace;
}

}  // namespace galley::serve
