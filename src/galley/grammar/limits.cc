// SPDX-License-Identifier: Apache-2.0
#include "galley/grammar/limits.h"

#include <fmt/format.h>

namespace galley::grammar {

Limits Limits::Metered() const {
  Limits out = *this;
  out.meter = std::make_shared<Meter>(steps_max, compile_bytes_max);
  return out;
}

std::shared_ptr<Meter> Limits::MeterOrNew() const {
  return meter != nullptr ? meter : std::make_shared<Meter>(steps_max, compile_bytes_max);
}

std::string Limits::Reached(const Meter& reached, const std::string& what) const {
  switch (reached.limit()) {
    case Meter::Limit::kSteps:
      return fmt::format("{} needs more than the {} steps allowed (steps_max); make it simpler", what, steps_max);
    case Meter::Limit::kBytes:
      return fmt::format("{} needs more than the {} MiB of memory allowed ({}); make it smaller", what,
                         reached.bytes_max() >> 20,
                         reached.bytes_max() == compile_bytes_max ? "compile_bytes_max" : "lexeme_bytes_max");
    case Meter::Limit::kStates:
      return fmt::format(
          "{} needs more than {} states in one lexeme (dfa_states_max); loosen its patterns, bounds and "
          "repeats",
          what, dfa_states_max);
    case Meter::Limit::kNfaStates:
      return fmt::format("{} unrolls to more than {} states in one lexeme (nfa_states_max); shorten its repeats", what,
                         nfa_states_max);
    case Meter::Limit::kNone:
      break;
  }
  return what + " reached no limit";
}

}  // namespace galley::grammar
