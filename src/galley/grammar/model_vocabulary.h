// SPDX-License-Identifier: Apache-2.0
// Where a grammar's vocabulary comes from: a tokenizer, the line protocol's vocabulary file, or bare bytes. Each call
// builds a new one, which takes a quarter of a second for a full-size model; keep it.
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "galley/base/strong_id.h"
#include "galley/grammar/compile.h"

namespace galley::text {
class Tokenizer;
}  // namespace galley::text

namespace galley::grammar {

struct ModelVocabulary {
  std::shared_ptr<const Vocabulary> vocabulary;
  std::vector<Marker> markers;  // control tokens by their spelling
};

// Every added token is a control token. Masks have as many ids as the model has logits, `vocab_size` (0: as many as the
// tokenizer); ids without a token are never allowed. Errors: kInvalidArgument when `ends` or the tokenizer leave them.
[[nodiscard]] Result<ModelVocabulary> VocabularyOf(const text::Tokenizer& tokenizer, std::span<const TokenId> ends,
                                                   int vocab_size = 0);

// {"vocab_size", "eos", "special", "names", "tokens": [base64 or null]}.
[[nodiscard]] Result<ModelVocabulary> ReadVocabularyFile(std::string_view json);

// 256 tokens of one byte, the tool call marker (kByteMarker) and an end. For judging texts without a model.
inline constexpr TokenId kByteMarker = 256;
[[nodiscard]] ModelVocabulary ByteVocabulary();

}  // namespace galley::grammar
