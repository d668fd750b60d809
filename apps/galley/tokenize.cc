// SPDX-License-Identifier: Apache-2.0
// `galley tokenize`: text to ids and back.
#include <fmt/core.h>

#include <charconv>
#include <limits>
#include <system_error>

#include "command.h"
#include "files.h"
#include "galley/protocol/json.h"
#include "galley/text/tokenizer.h"
#include "galley/text/utf8.h"

namespace galley::app {
namespace {

using protocol::Json;

Result<text::Tokenizer> LoadTokenizer(const Context& context) {
  std::filesystem::path path = context.values.String("tokenizer");
  if (path.empty()) {
    ASSIGN_OR_RETURN(path, ModelDir(context));
  }
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) path /= "tokenizer.json";
  return text::Tokenizer::Load(path);
}

// A JSON array, or ids separated by white space or commas.
Result<std::vector<TokenId>> ParseIdList(std::string_view text) {
  constexpr std::string_view kGaps = " \t\r\n,";
  std::size_t at = text.find_first_not_of(kGaps);
  if (at == std::string_view::npos) return std::vector<TokenId>{};
  if (text[at] == '[') return ParseIds(text, "ids");
  std::vector<TokenId> ids;
  while (at != std::string_view::npos) {
    const std::size_t end = std::min(text.find_first_of(kGaps, at), text.size());
    TokenId id = 0;
    const auto [stop, code] = std::from_chars(text.data() + at, text.data() + end, id);
    if (code != std::errc() || stop != text.data() + end || id < 0) {
      constexpr std::size_t kQuotedMax = 40;
      return Err(ErrorCode::kInvalidArgument,
                 fmt::format("\"{}\" is not a token id; ids are whole numbers from 0 on",
                             text::ReplaceInvalidUtf8(text.substr(at, std::min(end - at, kQuotedMax)))),
                 fmt::format("id {}", ids.size()));
    }
    ids.push_back(id);
    at = text.find_first_not_of(kGaps, end);
  }
  return ids;
}

Result<int> Decode(Context& context, const text::Tokenizer& tokenizer) {
  ASSIGN_OR_RETURN(const std::string input, ReadText(context, /*strip_newline=*/false));
  ASSIGN_OR_RETURN(const std::vector<TokenId> ids, ParseIdList(input));
  ASSIGN_OR_RETURN(const std::string text, tokenizer.Decode(ids));
  Terminal& terminal = context.terminal;
  if (context.values.Bool("json")) {
    terminal.Write(protocol::DumpJson(Json::MakeObject({{"text", text}})) + "\n");
  } else {
    // Exactly the text, so that it can be piped; a person gets the end of line that the shell's prompt needs.
    terminal.WriteForeign(text);
    if (terminal.out_is_tty() && !text.ends_with('\n')) terminal.Write("\n");
  }
  return kExitOk;
}

Json TokensJson(const text::Tokenizer& tokenizer, std::span<const TokenId> ids) {
  Json list(Json::Array{});
  for (const TokenId id : ids) {
    Json token = Json::MakeObject({{"id", id}, {"spelling", tokenizer.Spelling(id).value_or("")}});
    if (tokenizer.is_added(id)) token.Set("added", true);
    list.Push(std::move(token));
  }
  return list;
}

// Position, id and spelling of each token, and a mark on control tokens.
std::string TokenTable(const text::Tokenizer& tokenizer, std::span<const TokenId> ids) {
  std::string out;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    out += fmt::format("{:>6} {:>7}  {}{}\n", i, ids[i], tokenizer.Spelling(ids[i]).value_or(""),
                       tokenizer.is_added(ids[i]) ? "  (control)" : "");
  }
  return out;
}

}  // namespace

Result<int> RunTokenize(Context& context) {
  const options::Values& values = context.values;
  if (values.Bool("decode") && (values.Bool("count") || values.Bool("tokens") || values.Bool("special"))) {
    return Err(ErrorCode::kInvalidArgument, "cannot go together with --count, --tokens or --special", "--decode");
  }
  ASSIGN_OR_RETURN(const text::Tokenizer tokenizer, LoadTokenizer(context));
  if (values.Bool("decode")) return Decode(context, tokenizer);

  ASSIGN_OR_RETURN(const std::string input, ReadText(context, /*strip_newline=*/false));
  const auto added = values.Bool("special") ? text::AddedTokens::kMatch : text::AddedTokens::kAsText;
  ASSIGN_OR_RETURN(const std::vector<TokenId> ids, tokenizer.Encode(input, added));
  Terminal& terminal = context.terminal;
  if (values.Bool("json")) {
    Json object = Json::MakeObject(
        {{"ids", Json(Json::Array(ids.begin(), ids.end()))}, {"count", static_cast<std::int64_t>(ids.size())}});
    if (values.Bool("tokens")) object.Set("tokens", TokensJson(tokenizer, ids));
    terminal.Write(protocol::DumpJson(object) + "\n");
  } else if (values.Bool("count")) {
    terminal.Write(fmt::format("{}\n", ids.size()));
  } else if (values.Bool("tokens")) {
    terminal.WriteForeign(TokenTable(tokenizer, ids));
  } else {
    terminal.Write(protocol::DumpJson(Json(Json::Array(ids.begin(), ids.end()))) + "\n");
  }
  return kExitOk;
}

}  // namespace galley::app
