// SPDX-License-Identifier: Apache-2.0
#include "galley/serve/engine_port.h"

#include <fmt/format.h>

#include <charconv>
#include <optional>
#include <utility>

#include "galley/engine/grammar_constraint.h"
#include "galley/grammar/compile.h"
#include "galley/grammar/json_value.h"
#include "galley/protocol/render.h"
#include "galley/protocol/shape.h"

namespace galley::serve {
namespace {

// The tool whose parameters `pointer` leads into, which then begins behind them.
std::optional<std::string> ToolOf(const ConstraintSpec& spec, std::string& pointer) {
  constexpr std::string_view kTools = "/tools/", kParameters = "/parameters";
  if (!pointer.starts_with(kTools)) return std::nullopt;
  std::size_t index = 0;
  const char *begin = pointer.data() + kTools.size(), *end = pointer.data() + pointer.size();
  const auto [stop, code] = std::from_chars(begin, end, index);
  const auto dsml = protocol::ParseJson(spec.spec);
  if (code != std::errc() || !dsml) return std::nullopt;
  const std::span<const protocol::Json> tools = protocol::Elements(protocol::Get(*dsml, "tools"));
  if (index >= tools.size()) return std::nullopt;
  pointer.erase(0, static_cast<std::size_t>(stop - pointer.data()));
  if (pointer.starts_with(kParameters)) pointer.erase(0, kParameters.size());
  return fmt::format("parameters of tool '{}'", protocol::Text(tools[index], "name"));
}

// Which member cannot be enforced, where in it, and why.
ApiError Explained(const ConstraintSpec& spec, const grammar::CompileError& error) {
  constexpr std::string_view kOtherwise = "/otherwise/spec";
  std::string param = spec.param, pointer = error.pointer;
  if (!spec.format_param.empty() && pointer.starts_with(kOtherwise)) {
    param = spec.format_param;
    pointer.erase(0, kOtherwise.size());
  }
  std::string place = ToolOf(spec, pointer).value_or(param);
  if (!error.keyword.empty() && !pointer.ends_with("/" + error.keyword)) pointer += "/" + error.keyword;
  if (!pointer.empty()) place += " at " + pointer;
  // Errors in texts say themselves at which byte.
  const std::string at_byte = error.position ? fmt::format(" at byte {}", *error.position) : "";
  if (error.message.find(at_byte) == std::string::npos) place += at_byte;
  return {.status = 400,
          .message = fmt::format("Invalid {}: {}", place, error.message),
          .param = param,
          .code = std::string(grammar::Label(error.code))};
}

class RealEngine : public EnginePort {
 public:
  RealEngine(engine::Engine& engine, TokenId eos_id, std::unique_ptr<engine::GrammarCompiler> compiler,
             const grammar::Limits& limits)
      : engine_(engine),
        eos_id_(eos_id),
        think_end_(engine.tokenizer().AddedIdOf(protocol::SpecialTokens().think_end)),
        has_calls_(engine.tokenizer().AddedIdOf(grammar::kDsmlMarker).has_value()),
        compiler_(std::move(compiler)),
        limits_(limits) {}

  [[nodiscard]] const text::Tokenizer& tokenizer() const override { return engine_.tokenizer(); }
  [[nodiscard]] std::int64_t max_seq_len() const override { return engine_.max_seq_len(); }
  [[nodiscard]] TokenId eos_id() const override { return eos_id_; }
  [[nodiscard]] Result<RequestId> Submit(engine::EngineRequest request, engine::EventSink sink) override {
    return engine_.Submit(std::move(request), std::move(sink));
  }
  void Cancel(RequestId request) override { engine_.Cancel(request); }
  [[nodiscard]] engine::EngineStats stats() const override { return engine_.stats(); }
  [[nodiscard]] ApiResult<std::shared_ptr<const engine::TokenConstraint>> Compile(
      const ConstraintSpec& spec, std::vector<std::string>& warnings) override {
    if (spec.optional && !has_calls_) return nullptr;
    const auto value = grammar::ParseJson(spec.spec, limits_.nesting_max, limits_.json_values_max);
    if (!value) return Refuse(Explained(spec, value.error()));
    engine::GrammarRequest request{.kind = spec.kind, .spec = *value, .options = {}};
    request.options.plain_numbers = true;
    request.options.limits = limits_;
    if (spec.after_thinking) request.starts_after = think_end_;
    auto compiled = compiler_->Compile(request, &warnings);
    if (!compiled) return Refuse(Explained(spec, compiled.error()));
    return std::move(*compiled);
  }
  void ClearCache() override { engine_.ClearCache(); }

 private:
  engine::Engine& engine_;
  TokenId eos_id_;
  std::optional<TokenId> think_end_;
  bool has_calls_;  // the tokenizer has the marker of calls
  std::unique_ptr<engine::GrammarCompiler> compiler_;
  grammar::Limits limits_;
};

}  // namespace

Result<std::unique_ptr<EnginePort>> PortOf(engine::Engine& engine, TokenId eos_id, int vocab_size,
                                           std::size_t grammar_cache, const grammar::Limits& limits) {
  ASSIGN_OR_RETURN(auto compiler,
                   engine::GrammarCompiler::Create(engine.tokenizer(), {&eos_id, 1}, vocab_size, grammar_cache));
  return std::make_unique<RealEngine>(engine, eos_id, std::move(compiler), limits);
}

}  // namespace galley::serve
