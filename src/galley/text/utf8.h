// SPDX-License-Identifier: Apache-2.0
// UTF-8 helpers shared by everything that reads text from outside: decoding one character, validation, repair, and a
// stream that never emits half a character. "Invalid" follows table 3-7 of the Unicode standard (no surrogates, no
// overlong forms, nothing above U+10FFFF). Each maximal invalid subpart counts as one error and is shown as one U+FFFD,
// as the standard recommends and as Python's errors="replace" and Rust's from_utf8_lossy do. Pure functions; Utf8Stream
// is a value owned by one thread. Positions and lengths are bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "galley/base/error.h"

namespace galley::text {

inline constexpr char32_t kReplacementChar = 0xFFFD;
inline constexpr std::string_view kReplacementUtf8 = "\xEF\xBF\xBD";

enum class Utf8Kind : std::uint8_t {
  kValid,
  kInvalid,    // can never become valid, whatever follows
  kTruncated,  // the text ends inside a sequence that more bytes could complete
};

struct Utf8Char {
  char32_t code;        // kReplacementChar unless kValid
  std::uint8_t length;  // bytes of the character or of the maximal invalid subpart, 1 to 4
  Utf8Kind kind;
};

// Decodes the character that starts at text[pos]. Requires pos < text.size().
[[nodiscard]] Utf8Char DecodeUtf8(std::string_view text, std::size_t pos);

// Appends the encoding of `code`; a surrogate or a value above U+10FFFF is written as U+FFFD.
void AppendUtf8(std::string& out, char32_t code);

[[nodiscard]] bool IsValidUtf8(std::string_view text);
// kInvalidArgument naming the byte offset of the first invalid sequence; `where` names the field.
[[nodiscard]] Status ValidateUtf8(std::string_view text, std::string_view where);
// `text` with every maximal invalid subpart replaced by one U+FFFD.
[[nodiscard]] std::string ReplaceInvalidUtf8(std::string_view text);

// Turns chunks of bytes into chunks of valid UTF-8. Whatever the chunks, the concatenated output of Append and Finish
// equals ReplaceInvalidUtf8 of the concatenated input, and every byte is emitted as early as that allows.
class Utf8Stream {
 public:
  // Text that `bytes` completes; up to three trailing bytes of an unfinished character are held back.
  [[nodiscard]] std::string Append(std::string_view bytes);
  // U+FFFD when a character is unfinished, else nothing. The stream is empty afterwards.
  [[nodiscard]] std::string Finish();
  // Forgets the unfinished character.
  void Clear() { pending_size_ = 0; }
  [[nodiscard]] std::string_view pending() const { return {pending_.data(), pending_size_}; }

 private:
  std::array<char, 3> pending_{};
  std::uint8_t pending_size_ = 0;
};

}  // namespace galley::text
