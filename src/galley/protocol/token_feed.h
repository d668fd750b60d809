// SPDX-License-Identifier: Apache-2.0
// Token ids of one sequence → pieces of output for the parser. Ids are held while they end in the middle of a
// character, so that no piece does. A value owned by the stream of one sequence; the tokenizer must outlive it.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "galley/protocol/output_parser.h"
#include "galley/text/tokenizer.h"

namespace galley::protocol {

struct SampledLogprob {
  double logprob = 0;
  std::vector<std::pair<TokenId, double>> top{};  // most likely first
};

class TokenFeed {
 public:
  // Control tokens other than those that answers are made of (grounding, thinking, DSML) are not shown, unless a stop
  // sequence spells them: such a client looks for them itself.
  TokenFeed(const text::Tokenizer& tokenizer, std::vector<std::string> stop_sequences);

  // Pieces that `ids` complete. `logprobs` is empty or has an entry for each id, otherwise kInvalidArgument. Ids behind
  // the end-of-sentence token are not looked at.
  [[nodiscard]] Result<std::vector<OutputPiece>> Push(std::span<const TokenId> ids,
                                                      std::vector<SampledLogprob> logprobs = {});
  // What is still held, an unfinished character as U+FFFD.
  [[nodiscard]] std::vector<OutputPiece> Flush();

  // Whether the end-of-sentence token has come.
  [[nodiscard]] bool ended() const { return ended_; }
  // Ids that no piece counts: the end-of-sentence token and ids without a token.
  [[nodiscard]] std::int64_t uncounted() const { return uncounted_; }

 private:
  struct Held {
    TokenId id;
    SampledLogprob logprob;
    bool has_logprob;
  };

  [[nodiscard]] std::vector<OutputPiece> Pieces();
  [[nodiscard]] bool IsControl(std::string_view spelling) const;
  [[nodiscard]] Logprob Describe(const Held& held) const;

  const text::Tokenizer* tokenizer_;
  std::vector<std::string> stop_sequences_;
  std::optional<TokenId> end_id_;
  std::vector<Held> held_;
  bool ended_ = false;
  std::int64_t uncounted_ = 0;
};

}  // namespace galley::protocol
