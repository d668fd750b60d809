// SPDX-License-Identifier: Apache-2.0
#include "galley/serve/auth.h"

#include <fmt/format.h>

#include <algorithm>

namespace galley::serve {
namespace {

constexpr std::size_t kKeyBytesMax = 1024;

std::string_view Trimmed(std::string_view text) {
  const auto is_blank = [](char c) { return c == ' ' || c == '\t' || c == '\r'; };
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
  return text;
}

// The key that a request shows; empty for none.
std::string_view KeyOf(const net::Headers& headers) {
  constexpr std::string_view kBearer = "bearer ";
  const std::string_view authorization = headers.Get("authorization");
  const bool bearer = authorization.size() > kBearer.size() &&
                      std::equal(kBearer.begin(), kBearer.end(), authorization.begin(),
                                 [](char a, char b) { return a == b || (b >= 'A' && b <= 'Z' && a == b + 32); });
  if (bearer) return Trimmed(authorization.substr(kBearer.size()));
  return Trimmed(headers.Get("x-api-key"));
}

}  // namespace

std::vector<std::string> KeysOfFile(std::string_view content) {
  std::vector<std::string> keys;
  while (!content.empty()) {
    const std::size_t end = std::min(content.find('\n'), content.size());
    const std::string_view line = Trimmed(content.substr(0, end));
    if (!line.empty() && line.front() != '#') keys.emplace_back(line);
    content.remove_prefix(std::min(end + 1, content.size()));
  }
  return keys;
}

bool EqualInConstantTime(std::string_view a, std::string_view b) {
  unsigned difference = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const auto left = static_cast<unsigned char>(a[i]);
    const auto right = static_cast<unsigned char>(b.empty() ? '\0' : b[i % b.size()]);
    // Through a volatile, so that no compiler turns the loop into one that stops at the first difference.
    volatile unsigned bits = static_cast<unsigned>(left ^ right);
    difference |= bits;
  }
  return difference == 0;
}

Result<Keys> Keys::Create(std::vector<std::string> keys) {
  Keys result;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const bool plain = std::all_of(keys[i].begin(), keys[i].end(), [](char c) { return c > ' ' && c < 0x7F; });
    if (keys[i].empty() || keys[i].size() > kKeyBytesMax || !plain)
      return Err(ErrorCode::kInvalidArgument,
                 fmt::format("key {} must have 1 to {} visible ASCII characters", i + 1, kKeyBytesMax), "api-key");
  }
  result.keys_ = std::move(keys);
  // Block keys are made with SHA-256 over this, so that nothing about the key can be read from them.
  for (const std::string& key : result.keys_) result.salts_.push_back("key:" + key);
  return result;
}

std::optional<int> Keys::Check(const net::Headers& headers) const {
  if (keys_.empty()) return 0;
  const std::string_view shown = KeyOf(headers);
  std::optional<int> found;
  for (std::size_t i = 0; i < keys_.size(); ++i)
    if (EqualInConstantTime(shown, keys_[i])) found = static_cast<int>(i);
  return found;
}

std::string_view Keys::salt(int index) const {
  return salts_.empty() ? std::string_view() : std::string_view(salts_[static_cast<std::size_t>(index)]);
}

}  // namespace galley::serve
