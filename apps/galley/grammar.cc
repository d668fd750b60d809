// SPDX-License-Identifier: Apache-2.0
// `galley grammar check`: why a text is refused. `galley grammar-serve`: the grammar engine from outside.
#include <fmt/core.h>

#include <chrono>
#include <optional>
#include <system_error>

#include "command.h"
#include "files.h"
#include "galley/grammar/explain.h"
#include "galley/grammar/line_server.h"
#include "galley/grammar/model_vocabulary.h"
#include "galley/protocol/render.h"
#include "galley/text/tokenizer.h"
#include "grammar_options.h"
#include "line_filter.h"

namespace galley::app {
namespace {

constexpr std::size_t kVocabularyBytesMax = std::size_t{64} << 20;

Result<grammar::ModelVocabulary> LoadVocabulary(const Context& context) {
  if (const std::string& file = context.values.String("vocab"); !file.empty()) {
    ASSIGN_OR_RETURN(const std::string json, ReadFile(file, kVocabularyBytesMax));
    auto vocabulary = grammar::ReadVocabularyFile(json);
    if (!vocabulary) return Err(vocabulary.error().code, vocabulary.error().message, file);
    return std::move(*vocabulary);
  }
  std::filesystem::path path = context.values.String("tokenizer");
  if (path.empty()) {
    ASSIGN_OR_RETURN(path, ModelDir(context));
  }
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) path /= "tokenizer.json";
  ASSIGN_OR_RETURN(const text::Tokenizer tokenizer, text::Tokenizer::Load(path));
  const std::string end = protocol::SpecialTokens{}.end_of_sentence;
  const auto id = tokenizer.AddedIdOf(end);
  if (!id) return Err(ErrorCode::kUnsupported, fmt::format("the tokenizer has no token {}", end), path.string());
  const TokenId ends[] = {*id};
  return grammar::VocabularyOf(tokenizer, ends);
}

std::uint64_t NowUs() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(now).count());
}

}  // namespace

Result<int> RunGrammar(Context& context) {
  const std::span<const std::string> arguments = context.arguments;
  if (arguments.empty() || arguments[0] != "check") {
    return Err(ErrorCode::kInvalidArgument, "the one thing to do is `galley grammar check SCHEMA [TEXT]`",
               arguments.empty() ? "" : arguments[0]);
  }
  if (arguments.size() < 2) return Err(ErrorCode::kInvalidArgument, "name the file of the schema or grammar");
  const std::string& path = arguments[1];
  const std::string& kind = context.values.String("kind");
  ASSIGN_OR_RETURN(const grammar::CompileOptions options, CompileOptionsOf(context.values));
  auto read = ReadSpec(path, kind, options.limits);
  if (!read && kind == "json_schema" && read.error().message.find("not JSON") != std::string::npos) {
    read.error().message += "; where the file is no JSON Schema, say with --kind what it is";
  }
  ASSIGN_OR_RETURN(const grammar::JsonValue spec, std::move(read));
  const grammar::ModelVocabulary bytes = grammar::ByteVocabulary();
  const auto compiled = grammar::CompileKind(kind, spec, bytes.markers, options, bytes.vocabulary);
  if (!compiled) return tl::unexpected(RefusalError(compiled.error(), path));
  for (const std::string& warning : compiled->program->warnings()) context.terminal.Complain("warning: " + warning);

  Context rest{context.terminal,    context.values,     arguments.subspan(2),
               context.environment, context.executable, context.make_generator};
  ASSIGN_OR_RETURN(const std::string text, ReadText(rest, /*strip_newline=*/true));
  grammar::Matcher matcher(*compiled);
  const grammar::Explanation explanation =
      grammar::Explain(matcher, text, kind == "json_schema" ? &spec : nullptr, bytes.markers);
  context.terminal.WriteForeign(context.values.Bool("json") ? grammar::ToJson(explanation) + "\n"
                                                            : grammar::ToText(explanation, text));
  return explanation.judgement.complete ? kExitOk : Info(ErrorCode::kInvalidArgument).exit_code;
}

Result<int> RunGrammarServe(Context& context) {
  ASSIGN_OR_RETURN(grammar::ModelVocabulary vocabulary, LoadVocabulary(context));
  grammar::LineServer server({std::move(vocabulary.vocabulary), std::move(vocabulary.markers), NowUs, GALLEY_VERSION});
  return FilterLines(
      context.terminal, [&](std::string_view line) { return server.Handle(line); }, [&] { return server.done(); });
}

}  // namespace galley::app
