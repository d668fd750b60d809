// SPDX-License-Identifier: Apache-2.0
// Incremental detokenizer of one generated sequence: tokens in, text out as soon as it is certain. It never emits half
// a character, and the concatenated output of Append and Finish equals Tokenizer::Decode of the same ids, however the
// sequence goes. U+FFFD appears only once the bytes can no longer become valid, one for each maximal invalid subpart.
// A value owned by one thread; refers to the tokenizer, which must outlive it.
#pragma once

#include <span>
#include <string>

#include "galley/base/error.h"
#include "galley/base/strong_id.h"
#include "galley/text/tokenizer.h"
#include "galley/text/utf8.h"

namespace galley::text {

class Detokenizer {
 public:
  explicit Detokenizer(const Tokenizer& tokenizer, SpecialTokens special = SpecialTokens::kKeep);

  // Declares the prompt that the tokens to come continue. Only a character that the prompt leaves unfinished matters:
  // when the first tokens complete it, it is emitted whole; when they do not, the broken part is the prompt's and is
  // dropped without a U+FFFD, continuation bytes of the first tokens included. Nothing else of the prompt is ever
  // emitted. To be called before the first Append. Errors: kInvalidArgument for an id at the end of the prompt that has
  // no token.
  [[nodiscard]] Status StartAfter(std::span<const TokenId> prompt);

  // Text that became certain with this token, often empty. Errors: kInvalidArgument for an id that has no token; the
  // state is then as before.
  [[nodiscard]] Result<std::string> Append(TokenId id);

  // End of the sequence: U+FFFD when a character that the generated tokens began is unfinished, else nothing. Ready for
  // another sequence afterwards.
  [[nodiscard]] std::string Finish();

 private:
  const Tokenizer* tokenizer_;
  SpecialTokens special_;
  Utf8Stream stream_;
  bool prompt_pending_ = false;  // the unfinished character in stream_ began in the prompt
};

}  // namespace galley::text
