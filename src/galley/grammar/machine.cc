// SPDX-License-Identifier: Apache-2.0
#include "galley/grammar/machine.h"

namespace galley::grammar {

Machine::State Machine::SlowStep(State state, std::uint8_t byte) {
  if (final_[state]) return kDead;
  const State target = ComputeStep(state, byte);
  if (rows_[state] == nullptr) {
    rows_[state] = std::make_unique<Row>();
    rows_[state]->fill(kUnknown);
    bytes_ += sizeof(Row);
  }
  (*rows_[state])[byte] = target;
  return target;
}

}  // namespace galley::grammar
