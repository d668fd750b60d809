// SPDX-License-Identifier: Apache-2.0
// Caps on what one grammar may cost, and the meter that all parts of one grammar share: what compiling it, and later
// one call of a matcher, has cost so far. Steps stand in for time, so the same grammar meets the same limit on every
// machine. Used by the thread that the grammar belongs to.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "galley/base/error.h"

namespace galley::grammar {

class Meter {
 public:
  enum class Limit { kNone, kSteps, kBytes, kStates, kNfaStates };

  Meter(std::uint64_t steps_max, std::uint64_t bytes_max) : steps_max_(steps_max), bytes_max_(bytes_max) {}

  void Step(std::uint64_t count) {
    steps_ += count;
    if (steps_ > steps_max_) Trip(Limit::kSteps);
  }
  // Memory that stays taken until Restart().
  void Hold(std::uint64_t bytes) {
    bytes_ += bytes;
    if (bytes_ > bytes_max_) Trip(Limit::kBytes);
  }
  // A limit was reached: from here on answers are not to be trusted. The first one is remembered.
  void Trip(Limit limit) {
    if (tripped_ == Limit::kNone) tripped_ = limit;
  }
  [[nodiscard]] bool tripped() const { return tripped_ != Limit::kNone; }
  [[nodiscard]] Limit limit() const { return tripped_; }
  [[nodiscard]] std::uint64_t steps() const { return steps_; }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
  [[nodiscard]] std::uint64_t bytes_max() const { return bytes_max_; }
  [[nodiscard]] std::uint64_t steps_max() const { return steps_max_; }
  [[nodiscard]] bool running() const { return running_; }

  // The next call counts its own steps.
  void RestartSteps() { steps_ = 0; }
  // What was held is released, and no limit has been reached.
  // The grammar runs from here on, under limits of its own.
  void Restart(std::uint64_t steps_max, std::uint64_t bytes_max) {
    running_ = true;
    steps_ = bytes_ = 0;
    steps_max_ = steps_max;
    bytes_max_ = bytes_max;
    tripped_ = Limit::kNone;
  }

 private:
  std::uint64_t steps_max_;
  std::uint64_t bytes_max_;
  std::uint64_t steps_ = 0;
  std::uint64_t bytes_ = 0;
  Limit tripped_ = Limit::kNone;
  bool running_ = false;
};

// A reached cap is named in the error, by its name here.
struct Limits {
  int nesting_max = 256;                         // of JSON values, groups in a regex and rules in a grammar
  std::uint32_t json_values_max = 250'000;       // of one specification, about 100 bytes each
  std::uint32_t nfa_states_max = 200'000;        // after repeats are unrolled, per lexeme; nodes of a grammar
  std::uint32_t dfa_states_max = 400'000;        // lazily built, per lexeme
  std::uint32_t goals_max = 20'000;              // distinct conjunctions of subschemas
  std::uint32_t branches_max = 4'096;            // alternatives of one conjunction
  std::uint32_t array_states_max = 200'000;      // combinations of one array's counts
  std::uint64_t steps_max = 60'000'000;          // elementary steps of a compile: stands in for time, about a second
  std::uint64_t spec_bytes_max = 8u << 20;       // one regex or pattern
  std::uint64_t compile_bytes_max = 128u << 20;  // memory of one compile
  std::uint64_t lexeme_bytes_max = 64u << 20;    // states of lexemes that one call may build; dropped beyond half of it
  std::uint32_t state_items_max = 30'000;        // places in the grammar that one text may be at
  std::uint64_t mask_steps_max = 20'000'000;     // the same of one mask or token
  std::uint64_t matcher_bytes_max = 16u << 20;   // states kept by one request before old ones are dropped
  std::uint64_t call_bytes_max = 128u << 20;     // states that one mask or token may need beyond those

  // Of the grammar under way; whoever builds parts alone may leave it empty.
  std::shared_ptr<Meter> meter = {};

  // All of them, as SetLimits reads them: equal texts are equal limits.
  [[nodiscard]] std::string Text() const;
  // These limits with a meter of their own, for a compile that begins.
  [[nodiscard]] Limits Metered() const;
  [[nodiscard]] std::shared_ptr<Meter> MeterOrNew() const;
  // Which limit `meter` reached, its value, and what to do. `what`: "schema", "regex", …
  [[nodiscard]] std::string Reached(const Meter& reached, const std::string& what) const;
};

// Sets limits from texts such as "steps_max=120000000,compile_bytes_max=1GiB". Errors:
// kInvalidArgument for an unknown name or a value out of range.
[[nodiscard]] Status SetLimits(std::span<const std::string> given, Limits& limits);

}  // namespace galley::grammar
