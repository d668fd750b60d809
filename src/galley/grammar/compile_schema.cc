// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "galley/grammar/compile.h"
#include "galley/grammar/schema_emit.h"

namespace galley::grammar {
namespace {

Compiled<Grammar> Compile(const JsonValue& schema, const CompileOptions& options,
                          std::shared_ptr<const Vocabulary> vocabulary) {
  if (!schema.is(JsonValue::Type::kObject) && !schema.is(JsonValue::Type::kBool)) {
    return Refuse({CompileCode::kBadSchema, "a schema must be an object or a boolean", "", "", std::nullopt});
  }
  auto program = std::make_shared<Program>(options.limits);
  SchemaExpander expander(schema, options);
  SchemaEmitter emitter(expander, *program, options);
  std::vector<RuleId> rules;
  const GoalId root = expander.root_goal();
  if (!expander.ok() || !emitter.Run({root}, rules)) return Refuse(std::move(expander.error()));
  if (!emitter.satisfiable(root)) {
    return Refuse({CompileCode::kUnsatisfiable, "no JSON value satisfies this schema", "", "", std::nullopt});
  }
  const NodeId end = program->AddNode({});
  Node call;
  call.kind = Node::Kind::kCall;
  call.arg = rules[0];
  call.next = options.whitespace == Whitespace::kFlexible ? emitter.json().BlanksOnly(end) : end;
  NodeId start = program->AddNode(std::move(call));
  if (options.whitespace == Whitespace::kFlexible) start = emitter.json().BlanksOnly(start);
  program->set_root(program->AddRule(start));
  for (const std::string& text : expander.warnings()) program->AddWarning(text);
  return Grammar{std::move(program), std::move(vocabulary)};
}

}  // namespace

Compiled<Grammar> CompileJsonSchema(const JsonValue& schema, const CompileOptions& options,
                                    std::shared_ptr<const Vocabulary> vocabulary) {
  CompileOptions metered = options;
  metered.limits = options.limits.Metered();
  return UnlessLimited(Compile(schema, metered, std::move(vocabulary)), metered.limits, "schema");
}

}  // namespace galley::grammar
