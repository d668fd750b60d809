// SPDX-License-Identifier: Apache-2.0
// A compiled grammar: rules whose nodes are lexemes, calls and token edges, plus objects and arrays whose next node
// depends on what they have seen so far. Front ends build it, parse states run it. Lexemes and their masks are filled
// in while it runs, by one thread at a time; everything else is immutable once built.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "galley/grammar/compile_error.h"
#include "galley/grammar/machine.h"
#include "galley/grammar/string_machine.h"
#include "galley/grammar/vocabulary.h"

namespace galley::grammar {

using NodeId = std::uint32_t;
using RuleId = std::uint32_t;

struct Node {
  enum class Kind : std::uint8_t {
    kLexeme,       // `machine` from its start state in context `arg`, then `next` (or outs[label] when there are outs)
    kTokens,       // one of the token ids in `outs`, then `next`
    kAnyToken,     // any control token except those in `outs` (ascending) and the end tokens, then `next`
    kCall,         // rule `arg`, then `next`
    kSplit,        // any of `outs`
    kReturn,       // end of the rule
    kObjectFirst,  // behind "{"; `arg` is the object
    kObjectKey,
    kObjectValue,  // behind ":"
    kObjectNext,   // behind a value
    kArrayFirst,   // behind "["; `arg` is the array
    kArrayElement,
    kArrayNext,
  };
  Kind kind = Kind::kReturn;
  bool open = false;  // kLexeme of free text: nearly every token may come
  std::uint32_t machine = 0;
  std::uint32_t arg = 0;
  NodeId next = 0;
  std::vector<std::uint32_t> outs;
};

// Nodes for ",", closing brackets and both, with the grammar's blanks.
struct SeparatorNodes {
  NodeId close_first;  // right behind the opening bracket
  NodeId both;
  NodeId comma;
  NodeId close;
};

struct ObjectSpec {
  StringMachine* key = nullptr;
  std::uint32_t key_machine = 0;
  std::uint32_t names = 0;    // declared or required names; indices below `ordered` come in this order,
  std::uint32_t ordered = 0;  // the rest in any order after them, with undeclared names
  std::vector<bool> allowed;
  std::vector<bool> required;
  std::vector<RuleId> name_rules;   // by name
  std::vector<RuleId> other_rules;  // by label of undeclared names
  std::uint32_t members_min = 0;
  std::uint32_t members_max = kUnbounded;
  SeparatorNodes separators{};
  NodeId first_node = 0;  // what leads to the first name
  NodeId key_node = 0;
  NodeId colon_node = 0;  // behind a name
  NodeId value_node = 0;
  NodeId next_node = 0;
  // Filled by Finish().
  std::vector<std::uint32_t> next_required;   // first required ordered name at or after i, or `ordered`
  std::vector<std::uint32_t> allowed_before;  // allowed ordered names with index < i
  [[nodiscard]] bool others() const { return !other_rules.empty(); }
  void Finish();
};

struct ArraySpec {
  struct Option {
    RuleId rule;
    std::uint32_t marks;  // bit i: counts for contains[i]; with `unique`, the index of the value
  };
  struct Contains {
    std::uint32_t min;
    std::uint32_t max;
  };
  // By element index, the last entry for all further ones. An empty entry ends the array there.
  std::vector<std::vector<Option>> options;
  std::vector<Contains> contains;
  bool unique = false;  // every option at most once
  std::uint32_t items_min = 0;
  std::uint32_t items_max = kUnbounded;
  SeparatorNodes separators{};
  NodeId element_node = 0;
  NodeId next_node = 0;
  [[nodiscard]] std::uint32_t index_cap() const;
};

// What a lexeme allows from one of its states.
struct LexemeMask {
  struct Exit {
    std::uint32_t node;  // trie node at which the lexeme may end
    int label;
  };
  bool dense = false;
  std::vector<MaskWord> bits;      // when dense
  std::vector<std::uint32_t> ids;  // otherwise
  std::vector<Exit> exits;
  [[nodiscard]] std::size_t bytes() const {
    return sizeof(*this) + bits.size() * 8 + ids.size() * 4 + exits.size() * sizeof(Exit);
  }
};

class Program {
 public:
  explicit Program(Limits limits) : limits_(std::move(limits)) { limits_.meter = limits_.MeterOrNew(); }

  // Building.
  NodeId AddNode(Node node);
  Node& node_mutable(NodeId id) { return nodes_[id]; }
  std::uint32_t AddMachine(std::unique_ptr<Machine> machine);
  RuleId AddRule(NodeId start = 0);
  void SetRule(RuleId rule, NodeId start) { rules_[rule] = start; }
  std::uint32_t AddObject(ObjectSpec spec);
  std::uint32_t AddArray(ArraySpec spec);
  ObjectSpec& object_mutable(std::uint32_t i) { return objects_[i]; }
  ArraySpec& array_mutable(std::uint32_t i) { return arrays_[i]; }
  void set_root(RuleId root) { root_ = root; }
  void AddWarning(std::string text) { warnings_.push_back(std::move(text)); }

  // Reading.
  [[nodiscard]] const Limits& limits() const { return limits_; }
  [[nodiscard]] const Node& node(NodeId id) const { return nodes_[id]; }
  [[nodiscard]] std::size_t node_count() const { return nodes_.size(); }
  [[nodiscard]] NodeId rule(RuleId id) const { return rules_[id]; }
  [[nodiscard]] RuleId root() const { return root_; }
  [[nodiscard]] const ObjectSpec& object(std::uint32_t i) const { return objects_[i]; }
  [[nodiscard]] const ArraySpec& array(std::uint32_t i) const { return arrays_[i]; }
  [[nodiscard]] const std::vector<std::string>& warnings() const { return warnings_; }

  // Running: fills in lexemes and their masks, so one thread at a time.
  [[nodiscard]] Machine& machine(std::uint32_t i) { return *machines_[i]; }
  [[nodiscard]] const LexemeMask& MaskOf(std::uint32_t machine, Machine::State state, const Vocabulary& vocabulary,
                                         bool keep_leaf_exits);
  // A call of a matcher begins: its steps and what it adds to the lexemes count from here.
  void BeginCall();
  // The call under way reached a limit of the lexemes.
  [[nodiscard]] bool overflowed() const { return limits_.meter->tripped(); }
  // Forgets every state of every lexeme, which leaves states of matchers without a meaning: they find out by the
  // generation. So what one request made a lexeme grow to is no burden of another.
  void Renew();
  [[nodiscard]] std::uint64_t generation() const { return generation_; }
  [[nodiscard]] std::size_t bytes() const;
  // Called from time to time as bytes() grow, by the thread that runs the program.
  void set_on_growth(std::function<void(std::size_t)> listener) { on_growth_ = std::move(listener); }

 private:
  Limits limits_;
  std::vector<Node> nodes_;
  std::vector<NodeId> rules_;
  std::vector<std::unique_ptr<Machine>> machines_;
  std::vector<ObjectSpec> objects_;
  std::vector<ArraySpec> arrays_;
  std::vector<std::string> warnings_;
  RuleId root_ = 0;
  bool running_ = false;
  std::uint64_t generation_ = 0;
  std::unordered_map<std::uint64_t, LexemeMask> masks_;
  std::size_t mask_bytes_ = 0;
  std::size_t mask_bytes_noted_ = 0;
  std::function<void(std::size_t)> on_growth_;
};

}  // namespace galley::grammar
