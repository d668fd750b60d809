// SPDX-License-Identifier: Apache-2.0
// Expands schemas, and their negations, into branches. Every keyword is either turned into facts exactly or refused
// with its JSON Pointer. One per compile.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "galley/grammar/compile.h"
#include "galley/grammar/schema_branch.h"
#include "galley/grammar/schema_document.h"

namespace galley::grammar {

class SchemaExpander {
 public:
  SchemaExpander(const JsonValue& root, const CompileOptions& options);

  // False once something failed or a limit was reached, which error() then says.
  [[nodiscard]] bool ok() {
    if (!error_ && meter_->tripped()) FailByLimit();
    return !error_.has_value();
  }
  [[nodiscard]] CompileError& error() { return *error_; }
  [[nodiscard]] const Limits& limits() const { return options_.limits; }
  [[nodiscard]] const std::vector<std::string>& warnings() const { return warnings_; }

  [[nodiscard]] GoalId root_goal() { return Goal({{document_.root(), false}}); }
  [[nodiscard]] GoalId Goal(const std::vector<Literal>& literals);
  [[nodiscard]] GoalId Both(GoalId a, GoalId b);
  // Branches of a goal, settled; empty when it admits nothing that can be told at this depth. The reference stays
  // valid.
  const Branches& Expand(GoalId goal);
  // A goal for exactly this JSON value.
  [[nodiscard]] GoalId ConstGoal(const JsonValue& value);
  // A goal for a schema made up by the caller.
  [[nodiscard]] GoalId SchemaGoal(JsonValue schema) {
    return Goal({{document_.Synthetic(std::move(schema), ""), false}});
  }
  [[nodiscard]] GoalId Negated(GoalId goal, const std::string& pointer);
  // Pointer of the first schema of a goal, for messages.
  [[nodiscard]] std::string PointerOf(GoalId goal) const;
  // Counts work against the limit.
  bool Spend(std::uint64_t steps);
  // The same for memory that stays taken while the schema is compiled.
  bool Hold(std::uint64_t bytes);
  void Fail(CompileCode code, std::string message, std::string pointer, std::string keyword = "",
            std::optional<std::uint64_t> position = std::nullopt);
  // A compiled pattern, searched; equal patterns are one object.
  std::shared_ptr<CharDfa> Pattern(const std::string& pattern, const std::string& pointer, const std::string& keyword);

 private:
  Branches ExpandLiteral(const Literal& literal, bool track);
  Branches ExpandPositive(SchemaId id, bool track);
  Branches ExpandNegative(SchemaId id);
  void NegateNumbers(SchemaId id, const JsonValue& s, Branches& out);
  void NegateStrings(SchemaId id, const JsonValue& s, Branches& out);
  void NegateArrays(SchemaId id, const JsonValue& s, Branches& out);
  void NegateObjects(SchemaId id, const JsonValue& s, Branches& out);
  void NegateCombiners(SchemaId id, const JsonValue& s, Branches& out);
  void NegateDependents(SchemaId id, const JsonValue& s, Branches& out);
  void CheckKeywords(SchemaId id, const JsonValue& schema);
  Branches Product(const Branches& a, const Branches& b);
  bool Disjoint(const Literal& a, const Literal& b);
  bool Empty(const Branches& branches, int depth);
  bool Empty(const Branch& branch, int depth);
  bool EmptyGoal(GoalId goal, int depth);
  Branches ValueBranches(const std::vector<const JsonValue*>& values);
  Branches NegatedValueBranches(const std::vector<const JsonValue*>& values);
  GoalId ChildGoal(SchemaId parent, const JsonValue& value, std::string_view path, bool negated = false);
  std::optional<SchemaId> ReferenceTarget(SchemaId id, const JsonValue& schema, std::string& keyword);

  // Positive keywords, one family each. They narrow every branch of `out`.
  void ApplyType(SchemaId id, const JsonValue& s, Branches& out);
  void ApplyNumbers(SchemaId id, const JsonValue& s, Branches& out);
  void ApplyStrings(SchemaId id, const JsonValue& s, Branches& out);
  bool ApplyContent(SchemaId id, const JsonValue& s, Branch& facts);
  void ApplyArrays(SchemaId id, const JsonValue& s, Branches& out, bool track);
  void ApplyObjects(SchemaId id, const JsonValue& s, Branches& out, bool track);
  void ApplyCombiners(SchemaId id, const JsonValue& s, Branches& out, bool track);
  void ApplyUnevaluated(SchemaId id, const JsonValue& s, Branches& out);
  Branches OneOf(SchemaId id, const JsonValue& list, bool track);
  Branches AnyOf(SchemaId id, const JsonValue& list, bool track);

  // Reading values.
  std::optional<std::uint32_t> Count(SchemaId id, const JsonValue& s, std::string_view keyword);
  std::optional<Decimal> Number(SchemaId id, const JsonValue& s, std::string_view keyword);
  std::optional<std::uint32_t> TypeMask(SchemaId id, const JsonValue& s);
  std::optional<NumberSpec::Bound> BoundOf(SchemaId id, const JsonValue& s, bool low);
  std::optional<std::vector<std::string>> Strings(SchemaId id, const JsonValue& v, std::string_view keyword,
                                                  const std::string& path);
  std::vector<StringFacts::Pattern> FormatParts(SchemaId id, const JsonValue& s, std::uint32_t& length_max);
  ArrayFacts::Layer ItemLayer(SchemaId id, const JsonValue& s, bool& any);
  ObjectFacts::Layer MemberLayer(SchemaId id, const JsonValue& s, bool& any);
  const JsonValue* Member(SchemaId id, const JsonValue& s, std::string_view keyword, JsonValue::Type type,
                          std::string_view what);
  [[nodiscard]] Branches One(Branch branch) const { return {std::move(branch)}; }

  void FailByLimit();
  std::size_t HoldBranches(const Branches& branches);

  CompileOptions options_;
  std::shared_ptr<Meter> meter_;
  SchemaDocument document_;
  std::optional<CompileError> error_;
  std::vector<std::string> warnings_;
  std::vector<std::vector<Literal>> goals_;
  std::map<std::vector<Literal>, GoalId> goal_ids_;
  std::unordered_map<GoalId, std::unique_ptr<Branches>> expanded_;
  std::map<std::pair<Literal, bool>, Branches> literal_cache_;
  std::set<Literal> open_;  // being expanded in place
  std::set<SchemaId> checked_;
  std::map<std::string, std::shared_ptr<CharDfa>> patterns_;
  std::deque<Branches> probed_;
  int probing_ = 0;       // inside a question whose answer may be "perhaps"
  bool tainted_ = false;  // such an answer was given, so results are not kept
  int depth_ = 0;
};

}  // namespace galley::grammar
