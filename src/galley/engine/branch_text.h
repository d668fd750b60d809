// SPDX-License-Identifier: Apache-2.0
// Text of one branch of a request, and where it ends: joins the output stream with what the request says about stop
// strings. Fed with every token in order before the scheduler hears of it, so that a stop string ends a sequence like a
// stop id does. Owned by the engine's thread.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "galley/engine/executor.h"
#include "galley/engine/output_stream.h"

namespace galley::engine {

class BranchText {
 public:
  // `tokenizer` must outlive it. The text continues the context's prompt.
  BranchText(const text::Tokenizer& tokenizer, std::shared_ptr<const DrawContext> context);

  // Text that became certain with this token. A stop id, and an id without a token, say nothing.
  [[nodiscard]] std::string Append(TokenId id);
  // What was held back; nothing after a stop string.
  [[nodiscard]] std::string Finish() { return stream_.Finish(); }

  // Index of the stop string that ended the text.
  [[nodiscard]] std::optional<std::size_t> stop_string() const { return stream_.stopped(); }
  // The stop id that came.
  [[nodiscard]] std::optional<TokenId> stop_id() const { return stop_id_; }

 private:
  const text::Tokenizer* tokenizer_;
  std::shared_ptr<const DrawContext> context_;
  OutputStream stream_;
  int tokens_ = 0;
  bool searching_;  // the token behind which stop strings count has come
  std::optional<TokenId> stop_id_;
};

}  // namespace galley::engine
