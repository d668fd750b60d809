// SPDX-License-Identifier: Apache-2.0
// Arbitrary bytes as tokenizer.json: an error, or a tokenizer that encodes without loss, decodes, streams and folds.
// The bytes behind the first NUL, if there is one, are the text to encode.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "galley/base/check.h"
#include "galley/text/compressed_ids.h"
#include "galley/text/detokenizer.h"
#include "galley/text/tokenizer.h"

namespace {

using galley::TokenId;
namespace text = galley::text;

void Exercise(const text::Tokenizer& tokenizer, std::string_view sample, text::AddedTokens added) {
  text::Encoder encoder(tokenizer, {.cache_slots = 4});
  const auto ids = encoder.Encode(sample, added);
  if (!ids) return;
  CHECK(*encoder.Encode(sample, added) == *ids) << "the cache changes the result";
  std::string bytes;
  text::Detokenizer detokenizer(tokenizer);
  std::string streamed;
  for (const TokenId id : *ids) {
    CHECK(tokenizer.has_token(id)) << id;
    CHECK(added == text::AddedTokens::kMatch || !tokenizer.is_added(id)) << id;
    bytes += *tokenizer.TokenBytes(id);
    streamed += *detokenizer.Append(id);
  }
  streamed += detokenizer.Finish();
  CHECK(bytes == sample) << "encoding loses bytes";
  CHECK(streamed == *tokenizer.Decode(*ids)) << "the stream differs from the whole";
  CHECK(encoder.work().merge_steps <= 200 * static_cast<std::int64_t>(2 * sample.size() + 1)) << "too much work";
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::size_t nul = std::min(input.find('\0'), size);
  const auto tokenizer = text::Tokenizer::FromJson(input.substr(0, nul));
  if (!tokenizer) return 0;
  const std::string_view sample =
      nul < size ? input.substr(nul + 1) : "ab 12345 \xE4\xB8\xAD\xFF <u> \r\n\t  zzz...!? \xF0\x9F\x98\x80";
  Exercise(*tokenizer, sample, text::AddedTokens::kAsText);
  Exercise(*tokenizer, sample, text::AddedTokens::kMatch);
  static_cast<void>(text::BuildCompressedIds(*tokenizer, std::min(tokenizer->vocab_size(), 4096)));
  return 0;
}
