// SPDX-License-Identifier: Apache-2.0
#include "galley/engine/sequence.h"

namespace galley::engine {

Result<std::vector<float>> Sequence::Append(std::span<const TokenId> tokens, int logit_rows, model::Observer* observer,
                                            const model::LayerRange* range) {
  if (length_ == 0) RETURN_IF_ERROR(loaded_.model().ResetSlot(loaded_.state(), SlotId{0}, 0, {}));
  const model::SequenceInput input = {.slot = SlotId{0},
                                      .start = length_,
                                      .tokens = tokens,
                                      .blocks = blocks_,
                                      .decoder_floor = decoder_floor_,
                                      .logit_rows = logit_rows};
  ASSIGN_OR_RETURN(const float* device_logits, loaded_.model().Forward({&input, 1}, loaded_.state(), observer, range));
  length_ += static_cast<Position>(tokens.size());
  std::vector<float> logits(static_cast<std::size_t>(logit_rows) *
                            static_cast<std::size_t>(loaded_.config().vocab_size));
  RETURN_IF_ERROR(loaded_.backend().CopyToHost(logits.data(), device_logits, logits.size() * sizeof(float)));
  return logits;
}

}  // namespace galley::engine
