// SPDX-License-Identifier: Apache-2.0
#include "galley/grammar/machine.h"

namespace galley::grammar {

Machine::State Machine::SlowStep(State state, std::uint8_t byte) {
  if (final_[state]) return kDead;
  meter_->Step(1);
  const State target = ComputeStep(state, byte);
  if (rows_[state] == nullptr) {
    rows_[state] = std::make_unique<Row>();
    rows_[state]->fill(kUnknown);
    Grow(sizeof(Row));
  }
  (*rows_[state])[byte] = target;
  return target;
}

void Machine::Reset() {
  rows_.clear();
  labels_.clear();
  final_.clear();
  bytes_ = 0;
  AddState(kNoLabel, true);
}

}  // namespace galley::grammar
