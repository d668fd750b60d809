// SPDX-License-Identifier: Apache-2.0
#include "galley/engine/output_stream.h"

namespace galley::engine {

Result<std::string> OutputStream::Append(TokenId id, bool search) {
  const auto take = [&](const std::string& piece) {
    return search ? matcher_.Append(piece) : matcher_.Flush() + piece;
  };
  if (!tokenizer_->is_added(id)) {
    ASSIGN_OR_RETURN(const std::string piece, detokenizer_.Append(id));
    return take(piece);
  }
  // A character that the tokens before left unfinished comes out as U+FFFD with the added token; what was held back
  // comes before both.
  std::string text = take(detokenizer_.Finish());
  text += matcher_.Flush();
  if (matcher_.stopped()) return text;
  ASSIGN_OR_RETURN(const std::string piece, detokenizer_.Append(id));
  return text + piece;
}

std::string OutputStream::Finish() {
  std::string text = matcher_.Append(detokenizer_.Finish());
  return text + matcher_.Flush();
}

}  // namespace galley::engine
