// SPDX-License-Identifier: Apache-2.0
// Any bytes as text for the embedded model's tokenizer: the bytes of the tokens, one after the other, are the text, and
// an encoder whose cache is warm says the same as a fresh one.
#include "galley/text/tokenizer.h"
#include "input.h"

namespace {

const galley::text::Tokenizer& Nano() {
  static const auto loaded = galley::text::Tokenizer::Load(GALLEY_SOURCE_DIR "/models/nano/tokenizer.json");
  galley::fuzz::Require(loaded.has_value());
  return *loaded;
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static galley::text::Encoder warm(Nano());
  const std::string_view text = galley::fuzz::Text(data, size);

  const auto ids = Nano().Encode(text);
  galley::fuzz::Require(ids.has_value());
  std::string joined;
  for (const galley::TokenId id : *ids) joined += Nano().TokenBytes(id).value_or("");
  galley::fuzz::Require(joined == text);

  const auto again = warm.Encode(text);
  galley::fuzz::Require(again.has_value() && *again == *ids);
  return 0;
}
