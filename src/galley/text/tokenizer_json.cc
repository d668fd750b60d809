// SPDX-License-Identifier: Apache-2.0
#include "galley/text/tokenizer_json.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <span>
#include <utility>

#include "galley/text/byte_level.h"

namespace galley::text {
namespace {

namespace dom = simdjson::dom;

// A JSON value with the path that error messages name.
struct Node {
  dom::element value;
  std::string path;

  [[nodiscard]] bool is_null() const { return value.is_null(); }
  [[nodiscard]] Node Child(std::string_view key, dom::element child) const {
    return {child, path.empty() ? std::string(key) : fmt::format("{}.{}", path, key)};
  }
  [[nodiscard]] Node Child(std::size_t index, dom::element child) const {
    return {child, fmt::format("{}[{}]", path, index)};
  }
};

tl::unexpected<Error> Fail(ErrorCode code, const Node& node, std::string message) {
  return Err(code, std::move(message), node.path);
}

// The value as it stands in the file, cut for messages.
std::string Show(const Node& node) {
  constexpr std::size_t kShownMax = 80;
  std::string text = simdjson::minify(node.value);
  if (text.size() > kShownMax) {
    std::size_t cut = kShownMax;
    while (cut > 0 && (static_cast<unsigned char>(text[cut]) & 0xC0U) == 0x80) --cut;
    text = text.substr(0, cut) + "…";
  }
  return text;
}

tl::unexpected<Error> WrongType(const Node& node, std::string_view wanted) {
  return Fail(ErrorCode::kInvalidArgument, node, fmt::format("is {}; {} is needed", Show(node), wanted));
}

Result<dom::object> AsObject(const Node& node) {
  dom::object object;
  if (node.value.get(object) != simdjson::SUCCESS) return WrongType(node, "an object");
  return object;
}

Result<dom::array> AsArray(const Node& node) {
  dom::array array;
  if (node.value.get(array) != simdjson::SUCCESS) return WrongType(node, "an array");
  return array;
}

Result<std::string_view> AsString(const Node& node) {
  std::string_view text;
  if (node.value.get(text) != simdjson::SUCCESS) return WrongType(node, "a string");
  return text;
}

Result<std::int64_t> AsInteger(const Node& node) {
  std::int64_t number = 0;
  if (node.value.get(number) != simdjson::SUCCESS) return WrongType(node, "an integer");
  return number;
}

Result<bool> AsBool(const Node& node) {
  bool flag = false;
  if (node.value.get(flag) != simdjson::SUCCESS) return WrongType(node, "true or false");
  return flag;
}

using Reader = std::function<Status(const Node&)>;

// A key of an object and what reads its value.
struct Field {
  std::string_view key;
  bool required;
  Reader read;
};

// Reads every key of an object through its field. Unknown keys are errors, because a key that is ignored would change
// what the tokenizer does.
Status ReadObject(const Node& node, std::span<const Field> fields) {
  ASSIGN_OR_RETURN(const dom::object object, AsObject(node));
  std::vector<bool> seen(fields.size(), false);
  for (const auto& [key, value] : object) {
    const Node child = node.Child(key, value);
    const auto name = key;
    const auto field = std::find_if(fields.begin(), fields.end(), [&](const Field& f) { return f.key == name; });
    if (field == fields.end()) {
      return Fail(ErrorCode::kUnsupported, child,
                  "Galley does not know this key; see docs/tokenizer.md for those it does");
    }
    const auto index = static_cast<std::size_t>(field - fields.begin());
    if (seen[index]) return Fail(ErrorCode::kInvalidArgument, child, "the key stands twice in its object");
    seen[index] = true;
    RETURN_IF_ERROR(field->read(child));
  }
  for (std::size_t i = 0; i < fields.size(); ++i) {
    if (fields[i].required && !seen[i]) {
      return Fail(ErrorCode::kInvalidArgument, node, fmt::format("the key \"{}\" is missing", fields[i].key));
    }
  }
  return {};
}

Status Ignore(const Node&) {
  return {};
}

// The value must be one of those listed, written as JSON: everything else is a feature that Galley has not.
Reader OneOf(std::vector<std::string> allowed) {
  return [allowed = std::move(allowed)](const Node& node) -> Status {
    const std::string shown = Show(node);
    if (std::find(allowed.begin(), allowed.end(), shown) != allowed.end()) return {};
    return Fail(ErrorCode::kUnsupported, node,
                fmt::format("is {}; Galley supports {}", shown, fmt::join(allowed, " or ")));
  };
}

// The member "type" of a component such as a normalizer, without checking the rest.
Result<std::string_view> TypeOf(const Node& node) {
  ASSIGN_OR_RETURN(const dom::object object, AsObject(node));
  dom::element type;
  if (object.at_key("type").get(type) != simdjson::SUCCESS) {
    return Fail(ErrorCode::kInvalidArgument, node, "the key \"type\" is missing");
  }
  return AsString(node.Child("type", type));
}

Status ReadNormalizer(const Node& node) {
  if (node.is_null()) return {};
  const Field fields[] = {{"type", true, OneOf({"\"Sequence\""})}, {"normalizers", true, OneOf({"[]"})}};
  return ReadObject(node, fields);
}

// Post-processor and decoder: in the byte-level form both leave ids and bytes alone, whatever their options say.
Status ReadByteLevelComponent(const Node& node) {
  const Field fields[] = {{"type", true, OneOf({"\"ByteLevel\""})},
                          {"add_prefix_space", false, Ignore},
                          {"trim_offsets", false, Ignore},
                          {"use_regex", false, Ignore}};
  return ReadObject(node, fields);
}

Status ReadByteLevelSplit(const Node& node) {
  const Field fields[] = {{"type", true, OneOf({"\"ByteLevel\""})},
                          {"add_prefix_space", true, OneOf({"false"})},
                          {"trim_offsets", false, Ignore},
                          {"use_regex", true, OneOf({"false"})}};
  return ReadObject(node, fields);
}

Status ReadSplit(const Node& node, std::vector<std::string>& patterns) {
  const auto read_pattern = [&](const Node& pattern) {
    const auto read_regex = [&](const Node& regex) -> Status {
      ASSIGN_OR_RETURN(const std::string_view text, AsString(regex));
      patterns.emplace_back(text);
      return {};
    };
    const Field fields[] = {{"Regex", true, read_regex}};
    return ReadObject(pattern, fields);
  };
  const Field fields[] = {{"type", true, OneOf({"\"Split\""})},
                          {"pattern", true, read_pattern},
                          {"behavior", true, OneOf({"\"Isolated\""})},
                          {"invert", true, OneOf({"false"})}};
  return ReadObject(node, fields);
}

// A ByteLevel alone, or a Sequence of Splits that a ByteLevel ends.
Status ReadPreTokenizer(const Node& node, std::vector<std::string>& patterns) {
  ASSIGN_OR_RETURN(const std::string_view type, TypeOf(node));
  if (type != "Sequence") return ReadByteLevelSplit(node);
  const auto read_steps = [&](const Node& list) -> Status {
    constexpr std::size_t kStepsMax = 16;
    ASSIGN_OR_RETURN(const dom::array steps, AsArray(list));
    const std::size_t count = steps.size();
    if (count == 0 || count > kStepsMax) {
      return Fail(ErrorCode::kUnsupported, list,
                  fmt::format("has {} steps; Galley supports 1 to {}", count, kStepsMax));
    }
    std::size_t index = 0;
    for (const dom::element step : steps) {
      const Node child = list.Child(index, step);
      RETURN_IF_ERROR(++index == count ? ReadByteLevelSplit(child) : ReadSplit(child, patterns));
    }
    return {};
  };
  const Field fields[] = {{"type", true, OneOf({"\"Sequence\""})}, {"pretokenizers", true, read_steps}};
  return ReadObject(node, fields);
}

Status ReadVocab(const Node& node, Vocabulary& vocabulary) {
  ASSIGN_OR_RETURN(const dom::object object, AsObject(node));
  vocabulary.Reserve(object.size(), 8 * object.size());
  for (const auto& [key, value] : object) {
    std::int64_t id = 0;
    if (value.get(id) != simdjson::SUCCESS) return WrongType(node.Child(key, value), "an integer");
    if (auto added = vocabulary.AddOrdinary(key, id); !added) {
      return Fail(added.error().code, node.Child(key, value), added.error().message);
    }
  }
  return {};
}

struct Pair {
  std::string_view left;
  std::string_view right;
};

// "a b" or ["a", "b"].
std::optional<Pair> SplitMerge(dom::element merge) {
  std::string_view text;
  if (merge.get(text) == simdjson::SUCCESS) {
    const std::size_t space = text.find(' ');
    if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos) return std::nullopt;
    return Pair{text.substr(0, space), text.substr(space + 1)};
  }
  dom::array array;
  if (merge.get(array) != simdjson::SUCCESS || array.size() != 2) return std::nullopt;
  Pair pair;
  if (array.at(0).get(pair.left) != simdjson::SUCCESS || array.at(1).get(pair.right) != simdjson::SUCCESS) {
    return std::nullopt;
  }
  return pair;
}

// Only ordinary tokens take part in merges, so no text can be merged into an added token.
Status ReadMerges(const Node& node, const Vocabulary& vocabulary, std::vector<Merge>& merges) {
  ASSIGN_OR_RETURN(const dom::array array, AsArray(node));
  merges.reserve(array.size());
  std::string bytes;
  const auto find = [&](std::string_view spelling) -> std::optional<TokenId> {
    const std::size_t before = bytes.size();
    if (!AppendBytesOfSpelling(spelling, bytes)) return std::nullopt;
    return vocabulary.FindBytes(std::string_view(bytes).substr(before));
  };
  for (const dom::element element : array) {
    const auto here = [&] { return node.Child(merges.size(), element); };
    const std::optional<Pair> pair = SplitMerge(element);
    if (!pair) return WrongType(here(), "two tokens, as \"a b\" or [\"a\", \"b\"]");
    bytes.clear();
    const auto left = find(pair->left);
    const auto right = find(pair->right);
    const auto product = left && right ? vocabulary.FindBytes(bytes) : std::nullopt;
    if (!product) {
      return Fail(ErrorCode::kCorrupt, here(),
                  fmt::format("merge {}: both parts and their join must be ordinary tokens of model.vocab in the "
                              "byte-level alphabet",
                              Show(here())));
    }
    merges.push_back({*left, *right, *product});
  }
  return {};
}

Status ReadAddedToken(const Node& node, Vocabulary& vocabulary, std::vector<AddedToken>& added) {
  AddedToken token;
  std::int64_t id = -1;
  const auto read_bool = [](bool& flag) {
    return [&flag](const Node& value) -> Status {
      ASSIGN_OR_RETURN(flag, AsBool(value));
      return {};
    };
  };
  const auto read_id = [&](const Node& value) -> Status {
    ASSIGN_OR_RETURN(id, AsInteger(value));
    return {};
  };
  const auto read_content = [&](const Node& value) -> Status {
    ASSIGN_OR_RETURN(const std::string_view text, AsString(value));
    if (text.empty() || text.size() > kAddedTokenBytesMax) {
      return Fail(ErrorCode::kInvalidArgument, value,
                  fmt::format("has {} bytes; 1 to {} are allowed", text.size(), kAddedTokenBytesMax));
    }
    token.content = text;
    return {};
  };
  const Field fields[] = {{"id", true, read_id},
                          {"content", true, read_content},
                          {"single_word", false, OneOf({"false"})},
                          {"lstrip", false, OneOf({"false"})},
                          {"rstrip", false, OneOf({"false"})},
                          {"normalized", true, read_bool(token.normalized)},
                          {"special", true, read_bool(token.special)}};
  RETURN_IF_ERROR(ReadObject(node, fields));
  if (auto status = vocabulary.AddAdded(token.content, id, token.special); !status) {
    return Fail(status.error().code, node, status.error().message);
  }
  token.id = static_cast<TokenId>(id);
  added.push_back(std::move(token));
  return {};
}

// Keeps a node for later: added tokens and merges refer to the vocabulary, wherever they stand in the file.
Reader Keep(std::optional<Node>& slot) {
  return [&slot](const Node& node) -> Status {
    slot = node;
    return {};
  };
}

Status ReadModel(const Node& node, std::optional<Node>& vocab, std::optional<Node>& merges) {
  // The type decides what the other keys mean, so another model is reported as such and not by its first strange key.
  ASSIGN_OR_RETURN(const std::string_view type, TypeOf(node));
  if (type != "BPE") {
    return Fail(ErrorCode::kUnsupported, node, fmt::format("the model is of type \"{}\"; Galley supports BPE", type));
  }
  const Field fields[] = {{"type", true, Ignore},
                          {"dropout", false, OneOf({"null", "0", "0.0"})},
                          {"unk_token", false, OneOf({"null"})},
                          {"continuing_subword_prefix", false, OneOf({"null", "\"\""})},
                          {"end_of_word_suffix", false, OneOf({"null", "\"\""})},
                          {"fuse_unk", false, OneOf({"false"})},
                          {"byte_fallback", false, OneOf({"false"})},
                          {"ignore_merges", false, OneOf({"false"})},
                          {"vocab", true, Keep(vocab)},
                          {"merges", true, Keep(merges)}};
  return ReadObject(node, fields);
}

Status ReadAddedTokens(const Node& node, Vocabulary& vocabulary, std::vector<AddedToken>& added) {
  ASSIGN_OR_RETURN(const dom::array array, AsArray(node));
  for (const dom::element element : array) {
    RETURN_IF_ERROR(ReadAddedToken(node.Child(added.size(), element), vocabulary, added));
  }
  return {};
}

Status FindByteTokens(const Node& vocab, const Vocabulary& vocabulary, std::array<TokenId, 256>& byte_ids) {
  for (unsigned byte = 0; byte < 256; ++byte) {
    const char text = static_cast<char>(byte);
    const auto id = vocabulary.FindBytes({&text, 1});
    if (!id) {
      return Fail(
          ErrorCode::kUnsupported, vocab,
          fmt::format("no ordinary token stands for byte 0x{:02X}; Galley needs one for each of the 256 bytes, so "
                      "that every text can be encoded",
                      byte));
    }
    byte_ids[byte] = *id;
  }
  return {};
}

Result<TokenizerParts> ReadFile(const Node& root) {
  TokenizerParts parts;
  std::optional<Node> added, vocab, merges;
  const Field fields[] = {
      {"version", false, OneOf({"\"1.0\""})},
      {"truncation", false, OneOf({"null"})},
      {"padding", false, OneOf({"null"})},
      {"added_tokens", false, Keep(added)},
      {"normalizer", false, ReadNormalizer},
      {"pre_tokenizer", true, [&](const Node& node) { return ReadPreTokenizer(node, parts.split_patterns); }},
      {"post_processor", false,
       [](const Node& node) { return node.is_null() ? Status{} : ReadByteLevelComponent(node); }},
      {"decoder", true, ReadByteLevelComponent},
      {"model", true, [&](const Node& node) { return ReadModel(node, vocab, merges); }}};
  RETURN_IF_ERROR(ReadObject(root, fields));
  RETURN_IF_ERROR(ReadVocab(*vocab, parts.vocabulary));
  if (added) RETURN_IF_ERROR(ReadAddedTokens(*added, parts.vocabulary, parts.added_tokens));
  RETURN_IF_ERROR(FindByteTokens(*vocab, parts.vocabulary, parts.byte_ids));
  RETURN_IF_ERROR(ReadMerges(*merges, parts.vocabulary, parts.merges));
  return parts;
}

}  // namespace

Result<TokenizerParts> ParseTokenizerJson(std::string_view json, std::string_view file) {
  if (json.size() > kTokenizerFileBytesMax) {
    return Err(ErrorCode::kInvalidArgument,
               fmt::format("the file has {} bytes; the limit is {}", json.size(), kTokenizerFileBytesMax),
               std::string(file));
  }
  dom::parser parser;
  dom::element root;
  if (const auto error = parser.parse(json.data(), json.size()).get(root); error != simdjson::SUCCESS) {
    if (error == simdjson::MEMALLOC) {
      return Err(ErrorCode::kResourceExhausted, fmt::format("no memory to parse its {} bytes", json.size()),
                 std::string(file));
    }
    return Err(ErrorCode::kInvalidArgument, fmt::format("not valid JSON: {}", simdjson::error_message(error)),
               std::string(file));
  }
  Result<TokenizerParts> parts = ReadFile(Node{root, ""});
  if (!parts) {
    Error error = std::move(parts).error();
    error.where = error.where.empty() ? std::string(file) : fmt::format("{}: {}", file, error.where);
    return Err(std::move(error));
  }
  return parts;
}

}  // namespace galley::text
