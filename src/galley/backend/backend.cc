// SPDX-License-Identifier: Apache-2.0
#include "galley/backend/backend.h"

#include <optional>
#include <span>

namespace galley::backend {

// For backends whose memory the host can read.
Status Backend::Draw(const DrawArgs& args) {
  const auto vocab = static_cast<std::size_t>(args.vocab);
  for (std::size_t i = 0; i < static_cast<std::size_t>(args.count); ++i) {
    const float* row = args.logits + static_cast<std::size_t>(args.row_list[i]) * vocab;
    const std::optional<TokenId> drawn = SampleRow(std::span(row, vocab), args.params[i]);
    args.tokens[i] = drawn ? *drawn : -1;
  }
  return {};
}

}  // namespace galley::backend
