// SPDX-License-Identifier: Apache-2.0
// Automaton over code points, made deterministic only where it is walked. One per regex, shared by every lexeme that
// uses it; host_names.h derives one that no regex could be. Not safe for concurrent use: a grammar belongs to one
// thread at a time.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "galley/grammar/char_classes.h"
#include "galley/grammar/regex.h"

namespace galley::grammar {

class CharDfa {
 public:
  using State = std::uint32_t;
  static constexpr State kDead = 0;  // nothing can match any more
  static constexpr int kNoLabel = -1;

  // kFull: the whole text must match. kSearch: some part of it must, as ECMA-262's test() decides.
  enum class Mode { kFull, kSearch };

  // `options[i]` matches with label i; the lowest label wins. Errors: kTooComplex when repeats unroll too far.
  [[nodiscard]] static Compiled<std::shared_ptr<CharDfa>> Create(std::vector<Regex> options, Mode mode,
                                                                 const Limits& limits);

  virtual ~CharDfa() = default;
  CharDfa(const CharDfa&) = delete;
  CharDfa& operator=(const CharDfa&) = delete;

  [[nodiscard]] const CharClasses& classes() const { return classes_; }
  [[nodiscard]] State start() const { return start_; }
  [[nodiscard]] virtual State Step(State state, std::uint32_t char_class);
  // Every state but kDead can still reach a match, so nobody needs to search for one.
  [[nodiscard]] virtual bool exact() const { return false; }
  // How many letters a-z may surely follow without a match becoming impossible; 0 where it is not known.
  [[nodiscard]] virtual std::uint32_t letters_ahead(State) const { return 0; }
  // Label of the option that the text read so far matches, or kNoLabel.
  [[nodiscard]] int Label(State state) const { return labels_[state]; }
  // Every continuation matches too.
  [[nodiscard]] bool universal(State state) const { return state == all_; }
  // Forgets every state but the start.
  virtual void Reset();
  [[nodiscard]] bool Matches(std::string_view utf8);
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 protected:
  explicit CharDfa(std::shared_ptr<Meter> meter) : meter_(std::move(meter)) {}
  void Grow(std::size_t bytes) {
    bytes_ += bytes;
    meter_->Hold(bytes);
  }

  std::shared_ptr<Meter> meter_;
  CharClasses classes_;
  std::vector<int> labels_;  // by state
  State start_ = kDead;
  std::size_t bytes_ = 0;

 private:
  friend class CharDfaBuilder;
  struct NfaState {
    enum class Kind : std::uint8_t { kSet, kSplit, kAssert, kMatch, kAll };
    Kind kind;
    std::uint32_t arg = 0;   // set, assertion or label
    std::uint32_t next = 0;  // kSet, kAssert
    std::vector<std::uint32_t> outs;
  };
  // What the assertions see on the left of the next character.
  enum Left : std::uint32_t { kLeftOther, kLeftStart, kLeftWord, kLeftLineEnd };

  struct Key {
    std::vector<std::uint32_t> states;
    Left left;
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    std::size_t operator()(const Key& key) const;
  };

  void Begin();
  State Intern(std::vector<std::uint32_t> states, Left left);
  // Follows empty moves from `from`; assertions stay in the result unless `resolve`, when `right` decides them.
  void Close(std::span<const std::uint32_t> from, Left left, bool resolve, Left right, std::vector<std::uint32_t>& out);
  [[nodiscard]] static bool Holds(Regex::Assertion assertion, Left left, Left right, bool at_end);
  int ComputeLabel(const Key& key);

  std::vector<NfaState> nfa_;
  std::uint32_t nfa_start_ = 0;
  bool has_assertions_ = false;
  bool looks_left_ = false;                // some assertion asks what stands in front of it
  std::vector<std::vector<bool>> member_;  // [set][class]
  std::vector<Left> left_after_;           // by class
  std::unordered_map<Key, State, KeyHash> ids_;
  std::vector<const Key*> keys_;
  std::vector<std::vector<State>> rows_;  // by state and class; kUnknown where not walked yet
  std::vector<std::uint32_t> mark_;
  std::uint32_t mark_now_ = 0;
  State all_ = 0xFFFFFFFF;
  std::uint32_t states_max_ = 0;
  std::size_t fixed_bytes_ = 0;  // of what Reset leaves
};

}  // namespace galley::grammar
