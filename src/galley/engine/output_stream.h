// SPDX-License-Identifier: Apache-2.0
// Text of one generated sequence: tokens in, text out as soon as it is certain. Joins the detokenizer, which never
// gives half a character, with the search for stop strings, which never gives a part of one. Added tokens (control
// tokens) are shown by their spelling, and no stop string spans or touches one. Owned by the thread that generates;
// refers to tokenizer and stop set, which must outlive it.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "galley/base/error.h"
#include "galley/base/strong_id.h"
#include "galley/engine/stop_strings.h"
#include "galley/text/detokenizer.h"
#include "galley/text/tokenizer.h"

namespace galley::engine {

class OutputStream {
 public:
  OutputStream(const text::Tokenizer& tokenizer, const StopSet& stops)
      : tokenizer_(&tokenizer), detokenizer_(tokenizer), matcher_(stops) {}

  // See text::Detokenizer::StartAfter.
  [[nodiscard]] Status StartAfter(std::span<const TokenId> prompt) { return detokenizer_.StartAfter(prompt); }

  // Text that became certain with this token, often empty; nothing more once a stop string was found. Without `search`
  // no stop string is looked for in the token's text. Errors: kInvalidArgument for an id that has no token.
  [[nodiscard]] Result<std::string> Append(TokenId id, bool search = true);
  // End of the sequence: what was held back. Nothing after a stop string.
  [[nodiscard]] std::string Finish();

  // Index of the stop string that ended the text.
  [[nodiscard]] std::optional<std::size_t> stopped() const { return matcher_.stopped(); }

 private:
  const text::Tokenizer* tokenizer_;
  text::Detokenizer detokenizer_;
  StopMatcher matcher_;
};

}  // namespace galley::engine
