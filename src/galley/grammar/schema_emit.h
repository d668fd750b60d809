// SPDX-License-Identifier: Apache-2.0
// From goals to program rules: plans every goal that is reachable, finds out which of them some value can satisfy, and
// emits nodes for those. One per compile.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "galley/grammar/compile.h"
#include "galley/grammar/json_nodes.h"
#include "galley/grammar/program.h"
#include "galley/grammar/schema_expand.h"

namespace galley::grammar {

class SchemaEmitter {
 public:
  SchemaEmitter(SchemaExpander& expander, Program& program, const CompileOptions& options)
      : expander_(expander), program_(program), options_(options), json_(program, options.whitespace) {}

  // Emits a rule that matches a value of the goal, without blanks around it. False when the expander holds an error.
  // Goals given in one call share rules.
  bool Run(const std::vector<GoalId>& goals, std::vector<RuleId>& rules);
  // Goals may turn out to admit nothing; whoever needs them decides what that means.
  [[nodiscard]] bool satisfiable(GoalId goal) const;
  // What strings of a goal must satisfy, one entry per alternative, for callers that write strings without quotes.
  [[nodiscard]] std::vector<TextSpec> StringsOf(GoalId goal);

  // An object before it is known which of its members can have a value.
  struct ObjectPlan {
    std::vector<std::string> names;
    std::vector<GoalId> goals;
    std::vector<bool> required;
    std::uint32_t ordered = 0;
    TextSpec key;                         // facets of undeclared names; labels filled at emission
    std::vector<std::uint64_t> observed;  // sets of patterns that undeclared names can match
    std::vector<GoalId> other_goals;      // by observed set
    std::uint32_t min = 0;
    std::uint32_t max = kUnbounded;
  };
  [[nodiscard]] std::vector<ObjectPlan> PlanObjects(const ObjectFacts& facts);
  [[nodiscard]] static bool Satisfied(const ObjectPlan& object, const std::function<bool(GoalId)>& fits);
  // The specification with names in the given form; members without a rule are not offered.
  [[nodiscard]] ObjectSpec BuildObject(const ObjectPlan& object, StringMachine::Form form,
                                       const std::function<std::optional<RuleId>(GoalId)>& rule_of);
  // Adds the object and its nodes; the caller sets what stands between them. `first` is the node behind the opening.
  std::uint32_t AddObject(ObjectSpec spec, NodeId& first);
  [[nodiscard]] JsonNodes& json() { return json_; }

 private:
  struct ArrayPlan {
    std::vector<std::vector<std::pair<GoalId, std::uint32_t>>> options;
    std::vector<ArraySpec::Contains> contains;
    bool unique = false;
    std::uint32_t min = 0;
    std::uint32_t max = kUnbounded;
  };
  struct Plan {
    std::uint32_t literals = 0;          // null and booleans
    std::vector<std::uint32_t> scalars;  // machines that match something
    std::vector<ObjectPlan> objects;
    std::vector<ArrayPlan> arrays;
    bool satisfiable = false;
  };

  void PlanGoal(GoalId goal);
  void PlanNumber(const Branch& branch, GoalId goal, Plan& plan);
  void PlanString(const StringFacts& facts, Plan& plan);
  void PlanArray(const Branch& branch, GoalId goal, Plan& plan);
  void PlanUnique(const Branch& branch, ArrayPlan& array);
  void PlanObject(const ObjectFacts& facts, Plan& plan);
  std::vector<ObjectFacts> ResolveExists(const ObjectFacts& facts);
  bool PlanNames(const ObjectFacts& facts, ObjectPlan& object);
  bool NameFacets(const ObjectFacts& facts, ObjectPlan& object, std::vector<std::string>& finite, bool& is_finite);
  // Goals of a layer by name, so that many names need no search of each layer.
  using NamedGoals = std::unordered_multimap<std::string_view, GoalId>;
  GoalId MemberGoal(const ObjectFacts& facts, const std::vector<NamedGoals>& named, const std::string& name);
  void PlanOthers(const ObjectFacts& facts, ObjectPlan& object, bool allowed);
  bool FiniteValues(GoalId goal, std::vector<JsonValue>& out);
  void Need(GoalId goal);
  void AddMachine(std::unique_ptr<Machine> machine, const std::string& key, Plan& plan);

  bool Satisfied(const ObjectPlan& object) const;
  bool Satisfied(const ArrayPlan& array) const;
  ArraySpec ArrayOptions(const ArrayPlan& array) const;

  NodeId EmitObject(const ObjectPlan& object);
  NodeId EmitArray(const ArrayPlan& array);
  NodeId EmitScalars(const Plan& plan);
  RuleId RuleOf(GoalId goal);

  SchemaExpander& expander_;
  Program& program_;
  CompileOptions options_;
  JsonNodes json_;
  std::map<GoalId, Plan> plans_;
  std::deque<GoalId> todo_;
  std::map<GoalId, RuleId> rules_;
  std::deque<GoalId> to_emit_;                     // have a rule that has no body yet
  std::map<std::string, std::uint32_t> machines_;  // by facts; kUnbounded for those that match nothing
  NodeId end_ = 0;
};

[[nodiscard]] TextSpec TextSpecOf(const StringFacts& facts, const Limits& limits);

}  // namespace galley::grammar
