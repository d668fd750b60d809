// SPDX-License-Identifier: Apache-2.0
#include "galley/text/utf8.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace galley::text {
namespace {

// What a lead byte demands: the sequence length and the range of the second byte (table 3-7 of the Unicode standard).
// The other continuation bytes are always 80..BF. Length 0: never a lead byte.
struct LeadByte {
  std::uint8_t length;
  std::uint8_t second_min;
  std::uint8_t second_max;
};

constexpr LeadByte LeadByteOf(unsigned char byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xC2) return {0, 0, 0};
  if (byte < 0xE0) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4, 0x80, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

// Length of the longest prefix of `text` that is ASCII, eight bytes at a time.
std::size_t AsciiPrefix(std::string_view text) {
  std::size_t i = 0;
  for (; i + 8 <= text.size(); i += 8) {
    std::uint64_t word;
    std::memcpy(&word, text.data() + i, 8);
    if ((word & 0x8080808080808080U) != 0) break;
  }
  while (i < text.size() && static_cast<unsigned char>(text[i]) < 0x80) ++i;
  return i;
}

// Offset of the first sequence that is not valid, or text.size().
std::size_t FirstInvalid(std::string_view text) {
  std::size_t pos = 0;
  while (true) {
    pos += AsciiPrefix(text.substr(pos));
    if (pos >= text.size()) return text.size();
    const Utf8Char c = DecodeUtf8(text, pos);
    if (c.kind != Utf8Kind::kValid) return pos;
    pos += c.length;
  }
}

}  // namespace

Utf8Char DecodeUtf8(std::string_view text, std::size_t pos) {
  const auto at = [&](std::size_t i) { return static_cast<unsigned char>(text[pos + i]); };
  const unsigned char first = at(0);
  const LeadByte lead = LeadByteOf(first);
  if (lead.length == 1) return {first, 1, Utf8Kind::kValid};
  if (lead.length == 0) return {kReplacementChar, 1, Utf8Kind::kInvalid};
  const std::size_t available = std::min<std::size_t>(lead.length, text.size() - pos);
  char32_t code = first & (0x7FU >> lead.length);
  for (std::size_t i = 1; i < available; ++i) {
    const unsigned char byte = at(i);
    const bool fits = i == 1 ? byte >= lead.second_min && byte <= lead.second_max : (byte & 0xC0U) == 0x80;
    if (!fits) return {kReplacementChar, static_cast<std::uint8_t>(i), Utf8Kind::kInvalid};
    code = (code << 6) | (byte & 0x3FU);
  }
  if (available < lead.length) {
    return {kReplacementChar, static_cast<std::uint8_t>(available), Utf8Kind::kTruncated};
  }
  return {code, lead.length, Utf8Kind::kValid};
}

void AppendUtf8(std::string& out, char32_t code) {
  const auto put = [&](char32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | (code >> 6));
    put(0x80 | (code & 0x3F));
  } else if ((code >= 0xD800 && code < 0xE000) || code > 0x10FFFF) {
    out += kReplacementUtf8;
  } else if (code < 0x10000) {
    put(0xE0 | (code >> 12));
    put(0x80 | ((code >> 6) & 0x3F));
    put(0x80 | (code & 0x3F));
  } else {
    put(0xF0 | (code >> 18));
    put(0x80 | ((code >> 12) & 0x3F));
    put(0x80 | ((code >> 6) & 0x3F));
    put(0x80 | (code & 0x3F));
  }
}

bool IsValidUtf8(std::string_view text) {
  return FirstInvalid(text) == text.size();
}

Status ValidateUtf8(std::string_view text, std::string_view where) {
  const std::size_t bad = FirstInvalid(text);
  if (bad == text.size()) return {};
  return Err(ErrorCode::kInvalidArgument,
             fmt::format("byte {} of {} (value 0x{:02X}) is not valid UTF-8; send the text encoded as UTF-8", bad,
                         text.size(), static_cast<unsigned char>(text[bad])),
             std::string(where));
}

std::string ReplaceInvalidUtf8(std::string_view text) {
  Utf8Stream stream;
  std::string out = stream.Append(text);
  out += stream.Finish();
  return out;
}

std::string Utf8Stream::Append(std::string_view bytes) {
  std::string joined;
  if (pending_size_ > 0) {
    joined.reserve(pending_size_ + bytes.size());
    joined.append(pending_.data(), pending_size_).append(bytes);
    bytes = joined;
    pending_size_ = 0;
  }
  std::string out;
  out.reserve(bytes.size());
  std::size_t pos = 0;
  while (pos < bytes.size()) {
    const std::size_t bad = pos + FirstInvalid(bytes.substr(pos));
    out.append(bytes.substr(pos, bad - pos));
    pos = bad;
    if (pos == bytes.size()) break;
    const Utf8Char c = DecodeUtf8(bytes, pos);
    if (c.kind == Utf8Kind::kTruncated) {
      pending_size_ = c.length;
      std::copy_n(bytes.data() + pos, c.length, pending_.begin());
      break;
    }
    out += kReplacementUtf8;
    pos += c.length;
  }
  return out;
}

std::string Utf8Stream::Finish() {
  const bool unfinished = pending_size_ > 0;
  pending_size_ = 0;
  return unfinished ? std::string(kReplacementUtf8) : std::string();
}

}  // namespace galley::text
