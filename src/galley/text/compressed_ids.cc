// SPDX-License-Identifier: Apache-2.0
#include "galley/text/compressed_ids.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "galley/text/unicode.h"
#include "galley/text/utf8.h"

namespace galley::text {
namespace {

constexpr char32_t kPlaceholder = 0xE000;  // stands for "exactly one space" while trimming

bool IsCollapsed(char32_t c) {
  return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

// Full compatibility decomposition of one character into `out`; returns how many code points. NFD of NFKC is NFKD, and
// because every character with a combining class is a mark, which is removed, the order of marks never matters: the
// fold works character by character. No character decomposes into more than 18 code points (U+FDFA).
//
// utf8proc's version differs between distributions. Unicode promises that decompositions never change once assigned, so
// characters that the oldest supported version (2.8, Unicode 14) does not know are left as they are, and the rest
// cannot depend on the version.
std::span<const utf8proc_int32_t> Decompose(char32_t c, std::array<utf8proc_int32_t, 32>& out) {
  if (c < 0x80 || IsNewerThanUnicode14(c)) {
    out[0] = static_cast<utf8proc_int32_t>(c);
    return {out.data(), 1};
  }
  int last_class = 0;
  const auto count =
      utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), out.data(), static_cast<utf8proc_ssize_t>(out.size()),
                              static_cast<utf8proc_option_t>(UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT), &last_class);
  if (count < 1 || static_cast<std::size_t>(count) > out.size()) {
    out[0] = static_cast<utf8proc_int32_t>(c);
    return {out.data(), 1};
  }
  return {out.data(), static_cast<std::size_t>(count)};
}

char32_t Lower(char32_t c) {
  if (c < 0x80) return c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c;
  if (IsNewerThanUnicode14(c)) return c;
  return static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c)));
}

// Decomposed, without marks, in lower case.
std::u32string Simplify(std::string_view text) {
  std::u32string out;
  out.reserve(text.size());
  std::array<utf8proc_int32_t, 32> buffer;
  for (std::size_t pos = 0; pos < text.size();) {
    const Utf8Char c = DecodeUtf8(text, pos);
    pos += c.length;
    for (const utf8proc_int32_t part : Decompose(c.code, buffer)) {
      const auto code = static_cast<char32_t>(part);
      if (GroupOf(code) != CharGroup::kMark) out.push_back(Lower(code));
    }
  }
  return out;
}

void CollapseSpaces(std::u32string& text) {
  std::size_t size = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool space = IsCollapsed(text[i]);
    if (space && i > 0 && IsCollapsed(text[i - 1])) continue;
    text[size++] = space ? U' ' : text[i];
  }
  text.resize(size);
}

std::u32string_view Trim(std::u32string_view text) {
  const auto is_space = [](char32_t c) { return GroupOf(c) == CharGroup::kSpace; };
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

// What decides which compressed id a token gets.
std::string KeyOf(const Tokenizer& tokenizer, TokenId id) {
  const auto bytes = tokenizer.TokenBytes(id);
  if (!bytes) return {};
  // A text that shows U+FFFD says too little about the token; its spelling is unique.
  if (!IsValidUtf8(*bytes) || bytes->find(kReplacementUtf8) != std::string_view::npos) {
    return tokenizer.Spelling(id).value_or(std::string());
  }
  std::string folded = EngramFold(*bytes);
  return folded.empty() ? std::string(*bytes) : folded;
}

}  // namespace

std::string EngramFold(std::string_view text) {
  std::u32string simple = Simplify(text);
  CollapseSpaces(simple);
  if (simple == U" ") simple[0] = kPlaceholder;
  std::string out;
  for (const char32_t c : Trim(simple)) AppendUtf8(out, c == kPlaceholder ? U' ' : c);
  return out;
}

CompressedIds BuildCompressedIds(const Tokenizer& tokenizer, int vocab_size) {
  CompressedIds result;
  result.ids.reserve(static_cast<std::size_t>(vocab_size));
  std::unordered_map<std::string, std::int32_t> numbers;
  numbers.reserve(static_cast<std::size_t>(vocab_size));
  for (TokenId id = 0; id < vocab_size; ++id) {
    const auto [entry, fresh] = numbers.try_emplace(KeyOf(tokenizer, id), result.distinct);
    if (fresh) ++result.distinct;
    result.ids.push_back(entry->second);
  }
  return result;
}

Result<std::vector<std::int32_t>> CompressedIdsFor(const Tokenizer& tokenizer, int vocab_size,
                                                   std::int64_t expected_distinct) {
  CompressedIds map = BuildCompressedIds(tokenizer, vocab_size);
  if (map.distinct != expected_distinct) {
    return Err(
        ErrorCode::kCorrupt,
        fmt::format("the tokenizer gives {} compressed ids for a vocabulary of {}, the config states {}; use the "
                    "tokenizer.json that belongs to the model",
                    map.distinct, vocab_size, expected_distinct),
        "engram_compressed_vocab_size");
  }
  return std::move(map.ids);
}

}  // namespace galley::text
