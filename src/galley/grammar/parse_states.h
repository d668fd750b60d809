// SPDX-License-Identifier: Apache-2.0
// States of an Earley recogniser over bytes whose terminals are lexemes. A state is a set of items; equal sets are one
// state, so a loop in the text comes back to states whose successors and masks are known. An item's origin is the state
// in which its rule began, which keeps recursion exact at any depth; calls in tail position take over the caller's
// origin, so right recursion does not grow. One per matcher, used by the program's thread.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "galley/grammar/container_rules.h"
#include "galley/grammar/flat_map.h"
#include "galley/grammar/program.h"

namespace galley::grammar {

struct Item {
  NodeId node = 0;
  Machine::State lexeme = 0;   // state inside a lexeme node, 0 before it begins
  std::uint32_t payload = 0;   // what the enclosing object or array has seen
  std::uint32_t captured = 0;  // bytes of an undeclared name so far
  std::uint32_t origin = 0;    // state in which the rule began
  RuleId symbol = 0;           // rule that ends with this one
  auto operator<=>(const Item&) const = default;
};

class ParseStates {
 public:
  using Id = std::uint32_t;
  static constexpr Id kDead = 0;

  struct State {
    std::vector<Item> kernel;
    std::vector<Item> lexemes;  // where a byte can go on
    std::vector<Item> tokens;   // where a control token can
    std::vector<std::pair<RuleId, Item>> waiting;
    bool complete = false;
    bool guessed = false;  // reached by a member name that is only known to be different if the guess holds
  };

  explicit ParseStates(Program& program);

  [[nodiscard]] Id start() const { return start_; }
  [[nodiscard]] const State& state(Id id) const { return states_[id]; }
  [[nodiscard]] Id Step(Id from, std::uint8_t byte);
  // By a control token's id. Ordinary tokens are stepped byte by byte.
  [[nodiscard]] Id StepToken(Id from, std::uint32_t token, bool is_end);
  // State behind the lexeme of `item`, ended with `label` but without a byte: what a mask walks on from. With `guess`,
  // the text of an undeclared name is left open.
  [[nodiscard]] Id AfterLexeme(const Item& item, int label, bool guess);
  [[nodiscard]] const Payload& payload(std::uint32_t id) const { return *payloads_[id]; }
  // Whether `item` writes a name in an object that has undeclared ones, and so captures its bytes.
  [[nodiscard]] bool Captures(const Item& item) const;
  // Whether the name `captured` + `tail` (raw, up to its closing quote) was already used by the object of `item`.
  [[nodiscard]] bool NameUsed(const Item& item, std::string_view tail) const;
  // What is left of used names that begin with what was captured, in UTF-8, where nothing but such names may follow
  // the last of it: a token of it may lead to where no name is left. `partly`: the last character captured is not whole
  // and each begins with it.
  [[nodiscard]] std::vector<std::string> ExhaustedNames(const Item& item, bool& partly);
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  [[nodiscard]] std::size_t size() const { return states_.size(); }
  // A limit that belongs to this text alone was reached, so that states are missing.
  enum class Overflow : std::uint8_t { kNone, kPlaces, kCounts, kBytes };
  [[nodiscard]] Overflow overflow() const { return overflow_; }
  // Rebuilds the store with only what `keep` needs, and returns the new ids of those states.
  [[nodiscard]] std::vector<Id> Compact(std::span<const Id> keep);

 private:
  static constexpr std::uint32_t kRootOrigin = 0xFFFFFFFF;

  struct Tables {  // of a store that is being replaced
    std::vector<const Payload*> payloads;
    std::vector<std::pair<std::uint32_t, std::uint8_t>> captures;
  };

  struct Renamed {  // what became of their entries
    std::unordered_map<std::uint32_t, std::uint32_t> payloads, captures;
  };

  void Begin();
  [[nodiscard]] Item Moved(Item item, const Tables& old, Renamed& now);
  Id Intern(std::vector<Item> kernel, bool guessed);
  // Whether the name that `item` writes may still become one that its object does not have.
  [[nodiscard]] bool NameLeft(const Item& item);
  struct NameBegun;
  [[nodiscard]] NameBegun BegunName(const Item& item);
  void Close(Id id);
  void Expand(State& state, Id id, const Item& item);
  void ExpandObject(State& state, const Item& item);
  void ExpandArray(State& state, const Item& item);
  void Push(const Item& item);
  void Call(State& state, Id id, const Item& from, RuleId rule, NodeId next, std::uint32_t payload_after);
  void Complete(State& state, Id id, const Item& item);
  void AddLexeme(State& state, const Item& item);
  // Appends the item behind a finished lexeme, if its label and name allow one.
  bool Advance(const Item& item, int label, bool guess, std::vector<Item>& out);
  [[nodiscard]] std::uint32_t InternPayload(Payload payload);
  [[nodiscard]] std::uint32_t Capture(std::uint32_t before, std::uint8_t byte);
  [[nodiscard]] std::string CapturedBytes(std::uint32_t id) const;
  [[nodiscard]] std::uint32_t InternName(std::u32string text);
  std::vector<array_rules::Step> ElementsOf(const Item& item);

  struct KernelHash {
    std::size_t operator()(const std::vector<Item>& kernel) const;
  };
  struct ItemHash {
    std::size_t operator()(const Item& item) const;
  };
  struct PayloadHash {
    std::size_t operator()(const Payload& payload) const;
  };

  Program& program_;
  std::deque<State> states_;
  std::array<std::unordered_map<std::vector<Item>, Id, KernelHash>, 2> ids_;  // by whether it was guessed
  FlatMap moves_;                                                             // by state << 8 | byte
  std::vector<const Payload*> payloads_;
  std::unordered_map<Payload, std::uint32_t, PayloadHash> payload_ids_;
  std::vector<std::pair<std::uint32_t, std::uint8_t>> captures_;
  std::unordered_map<std::uint64_t, std::uint32_t> capture_ids_;
  std::map<std::u32string, std::uint32_t, std::less<>> names_;
  std::map<std::uint32_t, array_rules::ClosableStates> closable_;  // by array
  std::vector<Item> todo_;                                         // closure work list
  std::vector<Item> pushed_;                                       // everything pushed in this closure
  std::unordered_set<Item, ItemHash> pushed_set_;                  // the same, where there are many
  std::vector<RuleId> empty_;                                      // rules that matched nothing in this closure
  bool guess_event_ = false;
  Overflow overflow_ = Overflow::kNone;
  Id start_ = kDead;
  std::size_t bytes_ = 0;
};

}  // namespace galley::grammar
