// SPDX-License-Identifier: Apache-2.0
// One sequence running alone on a loaded model: prefill in chunks, then one row a step. Shared by offline generation
// and by the dump of intermediate tensors. Owned by one thread; starting a sequence ends the one before.
#pragma once

#include <functional>
#include <numeric>
#include <span>
#include <vector>

#include "galley/engine/loaded_model.h"

namespace galley::engine {

class Sequence {
 public:
  // `decoder_floor`: first row that runs the decoder layers (0: every row).
  explicit Sequence(LoadedModel& loaded, Position decoder_floor = 0) : loaded_(loaded), decoder_floor_(decoder_floor) {
    blocks_.resize(static_cast<std::size_t>(loaded.state().blocks()));
    std::iota(blocks_.begin(), blocks_.end(), 0);
  }

  [[nodiscard]] Position length() const { return length_; }

  // Runs the next rows, at most the model's rows_max of them, and returns the logits of the last `logit_rows`, copied
  // to the host: [logit_rows][vocab_size]. Rows below the decoder floor have none.
  [[nodiscard]] Result<std::vector<float>> Append(std::span<const TokenId> tokens, int logit_rows,
                                                  model::Observer* observer = nullptr,
                                                  const model::LayerRange* range = nullptr);

 private:
  LoadedModel& loaded_;
  std::vector<std::int32_t> blocks_;
  Position decoder_floor_;
  Position length_ = 0;
};

}  // namespace galley::engine
