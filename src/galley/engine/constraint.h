// SPDX-License-Identifier: Apache-2.0
// What the engine asks of a grammar, a schema or anything else that says which token may come next in one sequence.
// A request brings one in its start state; every branch works on a clone of its own. From Submit on the engine calls
// all of a group, of all requests, from one thread at a time; the masks of a step are filled while the device runs it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "galley/backend/sampling.h"
#include "galley/base/error.h"
#include "galley/base/strong_id.h"

namespace galley::engine {

class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;

  // A second one in the same state.
  [[nodiscard]] virtual std::shared_ptr<TokenConstraint> Clone() const = 0;
  // Token i may come next iff bit i mod 32 of word i / 32 is set. `mask` has MaskWords(vocab_size) words. An error ends
  // the sequence.
  [[nodiscard]] virtual Status FillMask(std::span<std::uint32_t> mask) = 0;
  // Advances by a token that was drawn, or by a draft that is to be looked past. False, and no change: it may not come.
  [[nodiscard]] virtual bool Accept(TokenId token) = 0;
  // Takes back the last `tokens` accepted ones.
  virtual void Rollback(int tokens) = 0;
  // Nearly every token may come here, as in free text. The engine then draws without a mask, and asks for one only when
  // Accept refuses what was drawn; so the text is what it would be without the constraint.
  [[nodiscard]] virtual bool IsOpen() { return false; }
  // What constraints of different groups do can be done on different threads at once.
  [[nodiscard]] virtual const void* group() const { return nullptr; }
  // Nothing may follow: the sequence ends as if its last token were a stop id.
  [[nodiscard]] virtual bool IsComplete() const = 0;
};

using backend::MaskWords;

}  // namespace galley::engine
