// SPDX-License-Identifier: Apache-2.0
// What the tests of this layer share: files of the repository and of the read-only folder beside it, which may be
// absent, and a small builder of tokenizer.json texts.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "galley/base/check.h"
#include "galley/text/byte_level.h"
#include "galley/text/tokenizer.h"
#include "galley/text/utf8.h"

namespace galley::text::test {

// Random 32-bit numbers for property tests; prints its seed.
class Random {
 public:
  using result_type = unsigned;
  explicit Random(unsigned seed) : engine_(seed) { std::cout << "seed " << seed << "\n"; }
  static constexpr unsigned min() { return 0; }
  static constexpr unsigned max() { return 0xFFFFFFFF; }
  unsigned operator()() { return static_cast<unsigned>(engine_()); }

 private:
  std::mt19937 engine_;
};

inline std::filesystem::path SharedFile(std::string_view name) {
  return std::filesystem::path(GALLEY_SHARED_DIR) / name;
}

// Skips the calling test when the file beside the checkout is absent.
#define GALLEY_NEEDS_SHARED(name)                                                      \
  if (!std::filesystem::exists(::galley::text::test::SharedFile(name))) {              \
    GTEST_SKIP() << "needs " << (name) << " in the shared folder beside the checkout"; \
  }

inline std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  std::stringstream content;
  content << file.rdbuf();
  return content.str();
}

// Content of an .xz file, through the xz program.
inline std::string ReadXz(const std::filesystem::path& path) {
  const std::string command = "xz -dc '" + path.string() + "'";
  std::string content;
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) {
    ADD_FAILURE() << "cannot run " << command;
    return content;
  }
  std::array<char, 65536> buffer;
  while (const std::size_t n = fread(buffer.data(), 1, buffer.size(), pipe)) content.append(buffer.data(), n);
  EXPECT_EQ(pclose(pipe), 0) << command;
  return content;
}

inline std::vector<std::string> Lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

inline Tokenizer MustLoad(std::string_view json) {
  Result<Tokenizer> tokenizer = Tokenizer::FromJson(json);
  CHECK(tokenizer.has_value()) << tokenizer.error().ToString();
  return std::move(*tokenizer);
}

inline Tokenizer NanoTokenizer() {
  return MustLoad(ReadFile(std::filesystem::path(GALLEY_SOURCE_DIR) / "models/nano/tokenizer.json"));
}

inline std::string ReleasedTokenizerJson() {
  return ReadXz(SharedFile("recipe/tokenizer.json.xz"));
}

// A tokenizer of the 256 bytes (id = byte) and the given merges, which get ids from 256 on in their order.
inline nlohmann::json ByteTokenizerJson(const std::vector<std::pair<std::string, std::string>>& merges = {}) {
  nlohmann::json vocab = nlohmann::json::object();
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    vocab[SpellingOfBytes({&c, 1})] = byte;
  }
  nlohmann::json list = nlohmann::json::array();
  int next = 256;
  for (const auto& [left, right] : merges) {
    const std::string joined = SpellingOfBytes(left + right);
    if (!vocab.contains(joined)) vocab[joined] = next++;
    list.push_back({SpellingOfBytes(left), SpellingOfBytes(right)});
  }
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", nlohmann::json::array()},
          {"normalizer", nullptr},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}},
          {"post_processor", nullptr},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", list}}}};
}

inline nlohmann::json AddedTokenJson(int id, std::string_view content, bool special, bool normalized = false) {
  return {{"id", id},        {"content", content},       {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", normalized}, {"special", special}};
}

inline nlohmann::json SplitJson(std::string_view regex) {
  return {{"type", "Split"}, {"pattern", {{"Regex", regex}}}, {"behavior", "Isolated"}, {"invert", false}};
}

// The pre_tokenizer with these Split patterns.
inline nlohmann::json PreTokenizerJson(const std::vector<std::string>& patterns) {
  nlohmann::json steps = nlohmann::json::array();
  for (const std::string& pattern : patterns) steps.push_back(SplitJson(pattern));
  steps.push_back({{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}});
  return {{"type", "Sequence"}, {"pretokenizers", steps}};
}

inline std::vector<std::string> OfficialPatterns() {
  return {
      R"(\p{N}{1,3})", "[一-龥\u3040-ゟ゠-ヿ]+",
      R"([!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};
}

// Bytes of all tokens joined, what lossless encoding must give back.
inline std::string JoinBytes(const Tokenizer& tokenizer, const std::vector<TokenId>& ids) {
  std::string bytes;
  for (const TokenId id : ids) bytes += tokenizer.TokenBytes(id).value_or("<no token>");
  return bytes;
}

// Characters at which splitting, decoding or folding changes its mind, for random texts.
inline const std::vector<char32_t>& InterestingChars() {
  static const std::vector<char32_t> chars = {
      0x00,   0x09,   0x0A,   0x0B,   0x0D,    0x1F,    ' ',     ' ',     ' ',     '!',     '"',    '\'',   '(',
      '-',    '.',    '/',    '0',    '1',     '9',     'A',     'Z',     'a',     'b',     'z',    '~',    0x7F,
      0x80,   0x85,   0xA0,   0xA9,   0xB2,    0xBD,    0xC9,    0xE9,    0x130,   0x300,   0x301,  0x378,  0x3A3,
      0x3C2,  0x451,  0x5D0,  0x660,  0x903,   0xE01,   0x1680,  0x1E9E,  0x2003,  0x200B,  0x200D, 0x2019, 0x2028,
      0x20AC, 0x20DD, 0x2167, 0x3000, 0x3001,  0x303F,  0x3040,  0x3041,  0x3097,  0x3099,  0x309B, 0x309F, 0x30A0,
      0x30A1, 0x30FB, 0x30FC, 0x30FF, 0x3100,  0x4DFF,  0x4E00,  0x4E2D,  0x9FA5,  0x9FA6,  0xAC00, 0xE000, 0xFF0C,
      0xFF11, 0xFF21, 0xFFFD, 0xFFFF, 0x1D7D8, 0x1F600, 0x1F468, 0x20000, 0xE0001, 0x10FFFF};
  return chars;
}

}  // namespace galley::text::test
