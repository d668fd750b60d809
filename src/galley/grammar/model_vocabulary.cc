// SPDX-License-Identifier: Apache-2.0
#include "galley/grammar/model_vocabulary.h"

#include <fmt/format.h>

#include <charconv>
#include <optional>

#include "galley/base/base64.h"
#include "galley/base/check.h"
#include "galley/text/tokenizer.h"

namespace galley::grammar {
namespace {

constexpr std::int64_t kVocabularyMax = 16'000'000;

// The ids of member `name`, a list.
Result<std::vector<std::uint32_t>> Ids(const JsonValue& file, std::string_view name) {
  std::vector<std::uint32_t> out;
  const JsonValue* list = file.Find(name);
  if (list == nullptr || !list->is(JsonValue::Type::kArray)) {
    return Err(ErrorCode::kInvalidArgument, fmt::format("a vocabulary file needs the list \"{}\"", name));
  }
  for (const JsonValue& item : list->items) {
    const auto id = IntegerOf(&item);
    if (!id || *id < 0 || *id > kVocabularyMax) {
      return Err(ErrorCode::kInvalidArgument,
                 fmt::format("{} in \"{}\" is not a token id", JsonText(item).substr(0, 40), name));
    }
    out.push_back(static_cast<std::uint32_t>(*id));
  }
  return out;
}

}  // namespace

Result<ModelVocabulary> VocabularyOf(const text::Tokenizer& tokenizer, std::span<const TokenId> ends, int vocab_size) {
  const int size = vocab_size == 0 ? tokenizer.vocab_size() : vocab_size;
  if (size < tokenizer.vocab_size()) {
    return Err(ErrorCode::kInvalidArgument,
               fmt::format("the tokenizer has {} ids and the model only {}", tokenizer.vocab_size(), size));
  }
  VocabularyOptions options;
  options.tokens.resize(static_cast<std::size_t>(size));
  ModelVocabulary out;
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    const auto bytes = tokenizer.TokenBytes(id);
    if (!bytes) continue;
    const auto index = static_cast<std::uint32_t>(id);
    if (tokenizer.is_added(id)) {
      options.specials.push_back(index);
      out.markers.push_back({std::string(*bytes), index});
    } else {
      options.tokens[index] = *bytes;
    }
  }
  for (const TokenId id : ends) {
    if (id < 0) return Err(ErrorCode::kInvalidArgument, fmt::format("end token {} is not a token id", id));
    options.ends.push_back(static_cast<std::uint32_t>(id));
  }
  ASSIGN_OR_RETURN(out.vocabulary, Vocabulary::Create(std::move(options)));
  return out;
}

Result<ModelVocabulary> ReadVocabularyFile(std::string_view json) {
  const auto file = ParseJson(json);
  if (!file) return Err(file.error().ToError());
  const JsonValue* tokens = file->Find("tokens");
  if (tokens == nullptr || !tokens->is(JsonValue::Type::kArray)) {
    return Err(ErrorCode::kInvalidArgument, "a vocabulary file needs the list \"tokens\"");
  }
  VocabularyOptions options;
  ASSIGN_OR_RETURN(options.ends, Ids(*file, "eos"));
  ASSIGN_OR_RETURN(options.specials, Ids(*file, "special"));
  for (const JsonValue& token : tokens->items) options.tokens.push_back(Base64Decode(token.text));
  if (const JsonValue* given = file->Find("vocab_size")) {
    const auto size = IntegerOf(given);
    if (!size || *size < static_cast<std::int64_t>(options.tokens.size()) || *size > kVocabularyMax) {
      return Err(ErrorCode::kInvalidArgument, fmt::format("vocab_size {} does not fit {} tokens",
                                                          JsonText(*given).substr(0, 40), options.tokens.size()));
    }
    options.tokens.resize(static_cast<std::size_t>(*size));
  }
  ModelVocabulary out;
  if (const JsonValue* names = file->Find("names")) {
    for (const auto& [id, name] : names->members) {
      std::uint32_t number = 0;
      const auto [at, error] = std::from_chars(id.data(), id.data() + id.size(), number);
      if (error != std::errc() || at != id.data() + id.size() || number >= options.tokens.size()) {
        return Err(ErrorCode::kInvalidArgument, fmt::format("{} in \"names\" is not a token id", JsonQuote(id)));
      }
      out.markers.push_back({name.text, number});
    }
  }
  ASSIGN_OR_RETURN(out.vocabulary, Vocabulary::Create(std::move(options)));
  return out;
}

ModelVocabulary ByteVocabulary() {
  VocabularyOptions options;
  for (int byte = 0; byte < 256; ++byte) options.tokens.emplace_back(1, static_cast<char>(byte));
  options.tokens.resize(258);
  options.specials = {static_cast<std::uint32_t>(kByteMarker)};
  options.ends = {257};
  auto vocabulary = Vocabulary::Create(std::move(options));
  CHECK(vocabulary.has_value()) << "256 bytes, a marker and an end make a vocabulary";
  return {std::move(*vocabulary), {{std::string(kDsmlMarker), static_cast<std::uint32_t>(kByteMarker)}}};
}

}  // namespace galley::grammar
