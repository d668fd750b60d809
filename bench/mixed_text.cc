// SPDX-License-Identifier: Apache-2.0
#include "mixed_text.h"

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "galley/base/rng.h"
#include "packed_file.h"

namespace galley::bench {
namespace {

constexpr std::string_view kMark = "§";

class Filler {
 public:
  // Uniform enough for a benchmark.
  std::size_t Below(std::size_t bound) { return static_cast<std::size_t>(MixBits(counter_++) % bound); }

  void AppendWord(std::string& out) {
    constexpr std::array<std::string_view, 24> kSyllables = {"ba", "ne", "tor", "li",  "quen", "sha", "mi",  "dor",
                                                             "ve", "ra", "zin", "plo", "gust", "ter", "ka",  "lu",
                                                             "on", "em", "ist", "fra", "wy",   "che", "sol", "nd"};
    for (std::size_t n = 2 + Below(3); n > 0; --n) out += kSyllables[Below(kSyllables.size())];
  }

  void AppendNumber(std::string& out) {
    std::size_t bound = 10;
    for (std::size_t n = Below(5); n > 0; --n) bound *= 10;
    out += std::to_string(Below(bound));
  }

  void AppendHex(std::string& out) {
    for (std::size_t n = 8 + 8 * Below(3); n > 0; --n) out.push_back("0123456789abcdef"[Below(16)]);
  }

 private:
  std::uint64_t counter_ = 1;
};

std::vector<std::string_view> Paragraphs(std::string_view seed) {
  std::vector<std::string_view> paragraphs;
  while (!seed.empty()) {
    const std::size_t end = std::min(seed.find("\n\n"), seed.size());
    if (end > 0) paragraphs.push_back(seed.substr(0, end));
    seed.remove_prefix(std::min(end + 2, seed.size()));
  }
  return paragraphs;
}

void AppendFilled(std::string_view paragraph, Filler& filler, std::string& out) {
  while (true) {
    const std::size_t mark = paragraph.find(kMark);
    out += paragraph.substr(0, mark);
    if (mark == std::string_view::npos || mark + kMark.size() >= paragraph.size()) return;
    switch (paragraph[mark + kMark.size()]) {
      case 'n':
        filler.AppendNumber(out);
        break;
      case 'h':
        filler.AppendHex(out);
        break;
      default:
        filler.AppendWord(out);
    }
    paragraph.remove_prefix(mark + kMark.size() + 1);
  }
}

}  // namespace

std::string MixedText(std::size_t bytes) {
  const std::string seed = ReadPacked(GALLEY_SOURCE_DIR "/bench/mixed_text_seed.txt.xz");
  const std::vector<std::string_view> paragraphs = Paragraphs(seed);
  std::string text;
  if (paragraphs.empty()) return text;
  text.reserve(bytes + seed.size());
  Filler filler;
  while (text.size() < bytes) {
    AppendFilled(paragraphs[filler.Below(paragraphs.size())], filler, text);
    text += "\n\n";
  }
  return text;
}

}  // namespace galley::bench
