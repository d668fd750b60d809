// SPDX-License-Identifier: Apache-2.0
// What a decoded string must satisfy, as one automaton over code points: patterns that must, must not or may match, a
// length range, and a set of names. States are built where they are walked; every state handed out can still reach an
// accepted text. Not safe for concurrent use.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "galley/grammar/char_dfa.h"

namespace galley::grammar {

// A set of strings as a trie over code points. Each string has an index. Immutable.
class NameTrie {
 public:
  static constexpr std::uint32_t kOff = 0xFFFFFFFF;  // no name continues this way
  static constexpr std::uint32_t kNone = 0xFFFFFFFF;

  // Too many characters trip the meter of `limits`.
  NameTrie(const std::vector<std::string>& names, const Limits& limits);

  [[nodiscard]] const CharClasses& classes() const { return classes_; }
  [[nodiscard]] std::uint32_t Step(std::uint32_t node, std::uint32_t char_class) const;
  // Index of the name that ends at `node`, or kNone.
  [[nodiscard]] std::uint32_t name(std::uint32_t node) const { return nodes_[node].name; }
  // Ascending indices of the names at or below `node`.
  [[nodiscard]] const std::vector<std::uint32_t>& below(std::uint32_t node) const { return nodes_[node].below; }
  [[nodiscard]] std::size_t size() const { return count_; }
  [[nodiscard]] std::size_t bytes() const;

 private:
  struct Node {
    std::uint32_t name = kNone;
    std::vector<std::pair<std::uint32_t, std::uint32_t>> children;  // class, node
    std::vector<std::uint32_t> below;
  };
  std::vector<Node> nodes_;
  CharClasses classes_;
  std::size_t count_ = 0;
};

// Which names may come at one place. Names outside are refused, not taken for undeclared ones.
struct NameContext {
  std::uint32_t first = 0;               // window of name indices
  std::uint32_t last = NameTrie::kNone;  // inclusive
  bool others = true;                    // undeclared names
  std::vector<std::uint32_t> excluded;   // ascending
  auto operator<=>(const NameContext&) const = default;
};

struct TextSpec {
  enum class Sense { kMust, kMustNot, kObserve };
  struct Part {
    std::shared_ptr<CharDfa> dfa;
    Sense sense;
  };
  std::vector<Part> parts;
  std::uint32_t length_min = 0;
  std::uint32_t length_max = kUnbounded;
  std::shared_ptr<const NameTrie> names;
  std::vector<bool> name_allowed;  // by name index; the names' own facets are decided by who builds the spec
  // Labels of other texts by which kObserve parts match (bit i for the i-th of them). Sets that are missing are
  // refused. Unused without `names`: then every text that satisfies the parts has label 0.
  std::map<std::uint64_t, int> other_labels;
};

class TextAutomaton {
 public:
  using State = std::uint32_t;
  static constexpr State kDead = 0;
  static constexpr int kNoLabel = -1;

  TextAutomaton(TextSpec spec, const Limits& limits);

  [[nodiscard]] const CharClasses& classes() const { return classes_; }
  [[nodiscard]] std::uint32_t InternContext(const NameContext& context);
  // Start state under a context (0 is the context that allows everything); kDead when nothing is accepted.
  [[nodiscard]] State Start(std::uint32_t context);
  // Live successor or kDead.
  [[nodiscard]] State Step(State state, std::uint32_t char_class);
  // Name index, or name count + other label, or kNoLabel where the text so far is not accepted.
  [[nodiscard]] int Label(State state) const { return states_[state].label; }
  // A limit was reached; answers since then are not to be trusted.
  [[nodiscard]] bool overflowed() const { return meter_->tripped(); }
  // Forgets every state and context.
  void Reset();
  [[nodiscard]] const TextSpec& spec() const { return spec_; }
  // Where no pattern and no name can matter any more, only the number of code points: the label of a text of fitting
  // length; kNoLabel elsewhere. `count` is how many were read, saturating at length_min when there is no maximum.
  [[nodiscard]] int plain_label(State state) const;
  [[nodiscard]] std::uint32_t count(State state) const { return states_[state].count; }
  // How many letters a-z may surely follow a state, whichever they are; 0 where it is not known.
  [[nodiscard]] std::uint32_t letters_ahead(State state) const {
    return exact_ ? spec_.parts[0].dfa->letters_ahead(part_states_[state]) : 0;
  }
  // Some class of code points in first..last leads to a live state.
  [[nodiscard]] bool AnyLive(State state, std::uint32_t first, std::uint32_t last);
  // The one state that all of first..last lead to, when there is one.
  [[nodiscard]] bool Uniform(State state, std::uint32_t first, std::uint32_t last, State& target);
  // With the patterns, which other automata may share.
  [[nodiscard]] std::size_t bytes() const;
  // How many texts may still be accepted from a live state on, no two of them equal; `enough` for that many or more.
  [[nodiscard]] std::uint32_t Continuations(State state, std::uint32_t enough);
  // Whether some accepted text goes on from `state` with none of `rests`, each of which is accepted. Where `next` is
  // not empty, more must follow and begin in it.
  [[nodiscard]] bool GoesOnWithout(State state, std::vector<std::u32string_view> rests, const CodePointSet& next);
  // Accepted undeclared texts, when there are at most `limit`: false when there are more or the search is too long.
  [[nodiscard]] bool EnumerateOthers(std::size_t limit, std::vector<std::string>& out);
  // Whether the text of a name satisfies parts and length (its own allowance aside), and which kObserve parts match.
  [[nodiscard]] static bool Satisfies(const TextSpec& spec, const std::string& text, std::uint64_t* observed);
  // Every set of kObserve parts that some undeclared text within the facets matches. False when a limit is reached.
  [[nodiscard]] static bool ObservedSets(const TextSpec& spec, const Limits& limits, std::vector<std::uint64_t>& out);

 private:
  enum class Life : std::uint8_t { kUnknown, kLive, kDead, kVisited };
  struct Info {
    std::uint32_t context;
    std::uint32_t node;
    std::uint32_t count;
    int label;
    Life life;
  };

  [[nodiscard]] bool Allowed(std::uint32_t name, const NameContext& context) const;
  [[nodiscard]] bool NameBelow(const Info& info) const;
  State Intern(std::uint32_t context, std::uint32_t node, std::uint32_t count, const std::vector<std::uint32_t>& parts);
  State RawStep(State state, std::uint32_t char_class);
  [[nodiscard]] int ComputeLabel(const Info& info, const std::uint32_t* parts) const;
  [[nodiscard]] int FirstLabel(const std::uint32_t* parts) const;
  // Code points of a class without the surrogates, which no text in UTF-8 holds.
  std::uint32_t SizeOf(std::uint32_t char_class);
  bool IsLive(State state);
  void Begin();
  void Grow(std::size_t bytes) {
    bytes_ += bytes;
    meter_->Hold(bytes);
  }

  TextSpec spec_;
  std::shared_ptr<Meter> meter_;
  std::uint32_t states_max_;
  bool exact_ = false;  // one pattern that finds out by itself which of its states live, and nothing else
  CharClasses classes_;
  std::vector<std::uint32_t> sizes_;              // by class, once they are asked for
  std::vector<std::vector<std::uint32_t>> maps_;  // per part, then the names: class of the part by our class
  std::uint32_t count_cap_ = 0;                   // counts saturate here
  std::vector<NameContext> contexts_;
  std::map<NameContext, std::uint32_t> context_ids_;
  struct KeyHash {
    std::size_t operator()(const std::vector<std::uint32_t>& key) const;
  };
  std::unordered_map<std::vector<std::uint32_t>, State, KeyHash> ids_;
  std::vector<Info> states_;
  std::vector<std::uint32_t> part_states_;  // states × parts
  std::vector<std::vector<State>> rows_;    // raw successors
  // What is known of Continuations(): the number, or that it is at least so large.
  struct Count {
    std::uint32_t least;
    bool exact;
  };
  std::unordered_map<State, Count> counts_;
  std::size_t bytes_ = 0;
};

}  // namespace galley::grammar
