// SPDX-License-Identifier: Apache-2.0
// A lexeme as a deterministic automaton over bytes, built where it is walked. Every state handed out can still reach an
// accepted text, so a byte that leads to a state is a byte that some completion uses. Owned by a grammar and
// used by its thread.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "galley/grammar/limits.h"

namespace galley::grammar {

class Machine {
 public:
  using State = std::uint32_t;
  static constexpr State kDead = 0;
  static constexpr int kNoLabel = -1;

  // State of a string body for which only the number of code points matters: `need` more at least, `room` more at most.
  struct PlainBody {
    std::uint32_t need;
    std::uint32_t room;  // kUnbounded for no limit
    int label;           // of a text that ends here
    [[nodiscard]] bool free() const { return need == 0 && room == 0xFFFFFFFF; }
  };

  virtual ~Machine() = default;
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  // Start state under a context of the machine; 0 is the plain one. kDead when the lexeme matches nothing.
  [[nodiscard]] virtual State Start(std::uint32_t context) = 0;
  [[nodiscard]] State Step(State state, std::uint8_t byte) {
    if (rows_[state] != nullptr) {
      const State known = (*rows_[state])[byte];
      if (known != kUnknown) return known;
    }
    return SlowStep(state, byte);
  }
  // Label of the text read so far, kNoLabel where it is not accepted.
  [[nodiscard]] int label(State state) const { return labels_[state]; }
  // Nothing can follow in this lexeme.
  [[nodiscard]] bool final(State state) const { return final_[state]; }
  [[nodiscard]] virtual std::optional<PlainBody> plain_body(State) const { return std::nullopt; }
  // Alphabets of strings: a-z; ASCII letters; those and blanks; those and all beyond ASCII.
  enum class Alphabet : std::uint8_t { kLower, kLetters, kBlanks, kWords };
  static constexpr std::size_t kAlphabets = 4;
  // The largest alphabet of which every text of up to `lengths[alphabet]` characters stays inside a string body. May
  // miss some.
  [[nodiscard]] virtual std::optional<Alphabet> stays(State, const std::array<std::uint32_t, kAlphabets>&) {
    return std::nullopt;
  }
  // False where plain_body() never answers.
  [[nodiscard]] virtual bool has_plain_body() const { return false; }
  // A limit was reached while building; the answers can no longer be trusted.
  [[nodiscard]] bool overflowed() const { return meter_->tripped(); }
  [[nodiscard]] virtual std::size_t bytes() const { return bytes_; }
  // Forgets every state; what was handed out means nothing any more.
  virtual void Reset();
  [[nodiscard]] std::size_t states() const { return labels_.size(); }

 protected:
  static constexpr State kUnknown = 0xFFFFFFFF;
  using Row = std::array<State, 256>;

  explicit Machine(const Limits& limits) : meter_(limits.MeterOrNew()) { AddState(kNoLabel, true); }
  State AddState(int label, bool final) {
    rows_.push_back(nullptr);
    labels_.push_back(label);
    final_.push_back(final);
    Grow(16);
    return static_cast<State>(labels_.size() - 1);
  }
  void Grow(std::size_t bytes) {
    bytes_ += bytes;
    meter_->Hold(bytes);
  }
  // The live successor, or kDead. May add states.
  virtual State ComputeStep(State state, std::uint8_t byte) = 0;

 private:
  State SlowStep(State state, std::uint8_t byte);

  std::vector<std::unique_ptr<Row>> rows_;
  std::vector<int> labels_;
  std::vector<bool> final_;

 protected:
  std::shared_ptr<Meter> meter_;
  std::size_t bytes_ = 0;
};

}  // namespace galley::grammar
