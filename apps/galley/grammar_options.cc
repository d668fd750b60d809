// SPDX-License-Identifier: Apache-2.0
#include "grammar_options.h"

#include <fmt/core.h>

#include <filesystem>
#include <system_error>

#include "files.h"
#include "galley/protocol/render.h"
#include "galley/text/tokenizer.h"
#include "galley/text/utf8.h"

namespace galley::app {
namespace {

constexpr std::size_t kSpecBytesMax = std::size_t{8} << 20;

struct Asked {
  std::string_view option;
  std::string_view kind;
  bool is_file;
};
constexpr Asked kAsked[] = {{"json-schema", "json_schema", true}, {"regex", "regex", false}, {"grammar", "ebnf", true}};

struct NamedWhitespace {
  std::string_view name;
  grammar::Whitespace value;
};
constexpr NamedWhitespace kWhitespace[] = {{"compact", grammar::Whitespace::kCompact},
                                           {"default", grammar::Whitespace::kDefault},
                                           {"flexible", grammar::Whitespace::kFlexible}};

}  // namespace

Result<grammar::CompileOptions> CompileOptionsOf(const options::Values& values) {
  grammar::CompileOptions out;
  for (const NamedWhitespace& row : kWhitespace) {
    if (row.name == values.String("whitespace")) out.whitespace = row.value;
  }
  out.any_order = values.Bool("any-order");
  out.plain_numbers = true;
  out.lenient = values.Bool("lenient");
  RETURN_IF_ERROR(grammar::SetLimits(values.List("grammar-limits"), out.limits));
  return out;
}

// Where in the specification a refusal points.
Error RefusalError(const grammar::CompileError& error, const std::string& path) {
  std::string where = path, pointer = error.pointer, message = error.message;
  if (!error.keyword.empty() && !pointer.ends_with("/" + error.keyword)) pointer += "/" + error.keyword;
  if (!pointer.empty()) where += "#" + pointer;
  // Errors in texts say themselves at which byte.
  const std::string at_byte = error.position ? fmt::format(" at byte {}", *error.position) : "";
  if (message.find(at_byte) == std::string::npos) message += at_byte;
  if (error.code == grammar::CompileCode::kUnsupportedKeyword && message.starts_with("unknown "))
    message += ", or ignore it with --lenient";
  return Error{ErrorCode::kInvalidArgument, message, where};
}

// What a file of this kind holds: JSON, or text without its last line end.
Result<grammar::JsonValue> ReadSpec(const std::string& path, std::string_view kind, const grammar::Limits& limits) {
  ASSIGN_OR_RETURN(std::string text, ReadFile(path, kSpecBytesMax));
  if (kind != "regex" && kind != "ebnf") {
    auto value = grammar::ParseJson(text, limits.nesting_max, limits.json_values_max);
    if (!value) return tl::unexpected(RefusalError(value.error(), path));
    return std::move(*value);
  }
  RETURN_IF_ERROR(text::ValidateUtf8(text, path));
  if (kind == "regex" && text.ends_with('\n')) text.pop_back();
  grammar::JsonValue value;
  value.type = grammar::JsonValue::Type::kString;
  value.text = std::move(text);
  return value;
}

Result<std::optional<AskedGrammar>> ReadAskedGrammar(const options::Values& values) {
  std::optional<AskedGrammar> out;
  for (const Asked& row : kAsked) {
    const std::string& value = values.String(row.option);
    if (value.empty()) continue;
    if (out) {
      return Err(ErrorCode::kInvalidArgument, "one of --json-schema, --regex and --grammar at a time",
                 fmt::format("--{}", row.option));
    }
    out.emplace();
    out->where = row.is_file ? value : fmt::format("--{}", row.option);
    out->request.kind = row.kind;
    ASSIGN_OR_RETURN(out->request.options, CompileOptionsOf(values));
    if (row.is_file) {
      std::error_code error;
      if (value.starts_with('{') && !std::filesystem::exists(value, error)) {
        return Err(ErrorCode::kInvalidArgument, "this is JSON itself; write it into a file and give the file's name",
                   fmt::format("--{}", row.option));
      }
      ASSIGN_OR_RETURN(out->request.spec, ReadSpec(value, row.kind, out->request.options.limits));
    } else {
      out->request.spec.type = grammar::JsonValue::Type::kString;
      out->request.spec.text = value;
    }
  }
  return out;
}

Result<std::shared_ptr<const engine::TokenConstraint>> MakeConstraint(AskedGrammar asked,
                                                                      const engine::Generator& generator,
                                                                      bool thinking) {
  const text::Tokenizer& tokenizer = generator.tokenizer();
  const TokenId ends[] = {generator.config().eos_token_id};
  ASSIGN_OR_RETURN(const auto compiler,
                   engine::GrammarCompiler::Create(tokenizer, ends, generator.config().vocab_size, /*cache_bytes=*/0));
  if (thinking) {
    const std::string marker = protocol::SpecialTokens{}.think_end;
    asked.request.starts_after = tokenizer.AddedIdOf(marker);
    if (!asked.request.starts_after) {
      return Err(ErrorCode::kUnsupported,
                 fmt::format("the tokenizer has no {}, behind which the constraint would begin", marker), "--thinking");
    }
  }
  auto constraint = compiler->Compile(asked.request);
  if (!constraint) return tl::unexpected(RefusalError(constraint.error(), asked.where));
  return std::move(*constraint);
}

}  // namespace galley::app
