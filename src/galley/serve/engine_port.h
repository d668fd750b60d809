// SPDX-License-Identifier: Apache-2.0
// What the service needs of an engine, so that tests and benchmarks can put another one in its place. Every call may
// come from any thread; events arrive as engine.h says.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "galley/engine/engine.h"
#include "galley/grammar/limits.h"
#include "galley/serve/constraint.h"
#include "galley/text/tokenizer.h"

namespace galley::serve {

class EnginePort {
 public:
  virtual ~EnginePort() = default;
  [[nodiscard]] virtual const text::Tokenizer& tokenizer() const = 0;
  [[nodiscard]] virtual std::int64_t max_seq_len() const = 0;
  [[nodiscard]] virtual TokenId eos_id() const = 0;
  [[nodiscard]] virtual Result<RequestId> Submit(engine::EngineRequest request, engine::EventSink sink) = 0;
  virtual void Cancel(RequestId request) = 0;
  [[nodiscard]] virtual engine::EngineStats stats() const = 0;
  // `spec` in its start state, for EngineRequest::constraint. Errors are the client's and say what cannot be enforced;
  // `warnings` gets what is not enforced where that is no error.
  [[nodiscard]] virtual ApiResult<std::shared_ptr<const engine::TokenConstraint>> Compile(
      const ConstraintSpec& spec, std::vector<std::string>& warnings) = 0;
  // Drops cached prefixes that nobody uses.
  virtual void ClearCache() = 0;
};

// `engine` outlives the port; compiled grammars keep `limits`, and are kept up to `grammar_cache` bytes. Errors: those
// of GrammarCompiler::Create.
[[nodiscard]] Result<std::unique_ptr<EnginePort>> PortOf(engine::Engine& engine, TokenId eos_id, int vocab_size,
                                                         std::size_t grammar_cache, const grammar::Limits& limits);

}  // namespace galley::serve
