// SPDX-License-Identifier: Apache-2.0
// Helpers of this layer's tests: small vocabularies, case files, one-line compiles.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "galley/base/base64.h"
#include "galley/grammar/compile.h"
#include "galley/grammar/line_server.h"
#include "galley/grammar/model_vocabulary.h"

namespace galley::grammar::testing {

// Text of a file, unpacked when its name ends in .xz; empty when it cannot be read.
inline std::string ReadPacked(const std::string& path) {
  const bool packed = path.size() > 3 && path.compare(path.size() - 3, 3, ".xz") == 0;
  FILE* pipe = popen(((packed ? "xz -dc '" : "cat '") + path + "'").c_str(), "r");
  if (pipe == nullptr) return {};
  std::string out;
  std::array<char, 1 << 16> buffer{};
  for (std::size_t n = 0; (n = fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) out.append(buffer.data(), n);
  return pclose(pipe) == 0 ? out : std::string();
}

inline std::vector<JsonValue> ReadRows(const std::string& path) {
  std::vector<JsonValue> out;
  const std::string text = ReadPacked(path);
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    auto row = ParseJson(std::string_view(text).substr(at, end - at), 600);
    if (row) out.push_back(std::move(*row));
    at = end + 1;
  }
  return out;
}

inline std::string CasePath(const std::string& name) {
  return std::string(GALLEY_SOURCE_DIR) + "/tests/cases/structured/" + name;
}

// The vocabulary of the token mask cases: awkward on purpose.
inline const ModelVocabulary& Vocab1k() {
  static const ModelVocabulary file = *ReadVocabularyFile(ReadPacked(CasePath("vocab1k.json.xz")));
  return file;
}

// Vocabulary of the given pieces; the id behind the last one ends the text.
inline std::shared_ptr<const Vocabulary> Pieces(std::vector<std::string> pieces) {
  VocabularyOptions options;
  options.tokens = std::move(pieces);
  options.tokens.emplace_back();
  options.ends = {static_cast<std::uint32_t>(options.tokens.size() - 1)};
  return *Vocabulary::Create(std::move(options));
}

inline Compiled<Grammar> CompileText(std::string_view kind, std::string_view spec, const CompileOptions& options = {}) {
  JsonValue value;
  if (kind == "json_schema" || kind == "structural_tag" || kind == "dsml" || kind == "choice") {
    auto parsed = ParseJson(spec);
    if (!parsed) return Refuse(parsed.error());
    value = std::move(*parsed);
  } else {
    value.type = JsonValue::Type::kString;
    value.text = spec;
  }
  return CompileKind(kind, value, Vocab1k().markers, options, Vocab1k().vocabulary);
}

// Whether a grammar of the case vocabulary takes the whole text.
inline bool Takes(std::string_view kind, std::string_view spec, std::string_view text,
                  const CompileOptions& options = {}) {
  const auto grammar = CompileText(kind, spec, options);
  EXPECT_TRUE(grammar.has_value()) << spec << ": " << (grammar ? "" : grammar.error().message);
  return grammar && Matcher(*grammar).Check(text).complete;
}

inline std::vector<MaskWord> MaskOf(Matcher& matcher) {
  std::vector<MaskWord> out(matcher.grammar().vocabulary->mask_words());
  matcher.FillMask(out);
  return out;
}

}  // namespace galley::grammar::testing
