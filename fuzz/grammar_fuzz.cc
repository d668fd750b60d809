// SPDX-License-Identifier: Apache-2.0
// Compiles the input as a regex, an EBNF grammar or a JSON Schema (first byte), then walks masks, accepts and rollbacks
// chosen by the last bytes. Checks the promise of masks: a bit is set iff the token is accepted.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "galley/grammar/compile.h"

namespace {

using namespace galley::grammar;  // NOLINT(google-build-using-namespace): a fuzz target is one function

std::shared_ptr<const Vocabulary> Bytes() {
  VocabularyOptions options;
  for (int byte = 0; byte < 256; ++byte) options.tokens.emplace_back(1, static_cast<char>(byte));
  for (const char* text : {"\":", "\",\"", "true", "null", "[[", "}}", "12", "\\u00", "  ", "ab", "日"}) {
    options.tokens.emplace_back(text);
  }
  options.tokens.emplace_back();
  options.ends = {static_cast<std::uint32_t>(options.tokens.size() - 1)};
  return *Vocabulary::Create(std::move(options));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const auto vocabulary = Bytes();
  if (size < 2 || size > 4096) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  CompileOptions options;
  options.limits.steps_max = 200'000;
  options.limits.nfa_states_max = options.limits.dfa_states_max = 5'000;
  options.whitespace = (data[0] & 4) != 0 ? Whitespace::kFlexible : Whitespace::kDefault;
  options.any_order = (data[0] & 8) != 0;
  JsonValue spec;
  spec.type = JsonValue::Type::kString;
  spec.text = text;
  std::string_view kind = (data[0] & 3) == 0 ? "regex" : "ebnf";
  if ((data[0] & 3) >= 2) {
    auto parsed = ParseJson(text);
    if (!parsed) return 0;
    spec = std::move(*parsed);
    kind = "json_schema";
  }
  const auto grammar = CompileKind(kind, spec, {}, options, vocabulary);
  if (!grammar) return 0;
  Matcher matcher(*grammar);
  std::vector<MaskWord> mask(vocabulary->mask_words());
  for (std::size_t i = 0; i < 12 && !matcher.terminated() && !matcher.failed(); ++i) {
    matcher.FillMask(mask);
    std::vector<std::uint32_t> allowed;
    for (std::uint32_t id = 0; id < vocabulary->size(); ++id) {
      const bool bit = (mask[id / 64] >> (id % 64) & 1) != 0;
      if (bit) allowed.push_back(id);
      const bool accepted = matcher.Accept(id);
      if (accepted) matcher.Rollback(1);
      if (accepted != bit && !matcher.failed()) std::abort();
    }
    if (allowed.empty()) break;
    matcher.Accept(allowed[data[size - 1 - i % size] % allowed.size()]);
    if (data[i % size] % 5 == 0) matcher.Rollback(data[i % size] % 3);
  }
  return 0;
}
