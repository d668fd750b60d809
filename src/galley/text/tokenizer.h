// SPDX-License-Identifier: Apache-2.0
// Byte-level BPE tokenizer read from a Hugging Face tokenizer.json. A Tokenizer is immutable after loading: any number
// of threads may use one, and it must outlive the Encoders and Detokenizers made from it. An Encoder owns the scratch
// memory and the piece cache of one thread. There is no global state. What parts of the file format are supported, and
// how invalid UTF-8 is treated, is in docs/tokenizer.md. Positions and sizes of text are bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "galley/base/error.h"
#include "galley/base/strong_id.h"

namespace galley::text {

// How spellings of added tokens (control tokens such as <｜User｜>) inside a text are read.
enum class AddedTokens : std::uint8_t {
  kAsText,  // as ordinary characters: the result holds no added token, whatever the text says. For text of users.
  kMatch,   // as the token that they spell. For whole prompts from a trusted template.
};

// Which tokens a decoder shows. "Special" is the flag of that name in tokenizer.json, not every added token has it.
enum class SpecialTokens : std::uint8_t { kKeep, kSkip };

// A part of a prompt. A special segment is the exact spelling of one added token; any other segment is plain text that
// is encoded on its own, without added tokens.
struct Segment {
  std::string_view text;
  bool special = false;
};

// Half-open range of bytes [begin, end).
struct ByteRange {
  std::size_t begin = 0;
  std::size_t end = 0;
};

class Encoder;

class Tokenizer {
 public:
  // Reads a tokenizer.json. Errors: kNotFound, kIo; those of FromJson.
  [[nodiscard]] static Result<Tokenizer> Load(const std::filesystem::path& path);
  // `where` names the file in errors. Errors: kInvalidArgument (not JSON, wrong types, limits), kUnsupported (a feature
  // that the format has and Galley has not; names the field), kCorrupt (parts of the file contradict each other).
  [[nodiscard]] static Result<Tokenizer> FromJson(std::string_view json, std::string_view where = "tokenizer.json");

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // One-off encoding; code that encodes often keeps an Encoder, whose cache makes it several times faster. Never fails
  // on the text itself, not even on invalid UTF-8. Errors: kResourceExhausted, only for a tokenizer.json with split
  // patterns of its own, when such a pattern backtracks beyond its budget on this text.
  [[nodiscard]] Result<std::vector<TokenId>> Encode(std::string_view text,
                                                    AddedTokens added = AddedTokens::kAsText) const;
  // A rendered prompt whose control tokens are marked. Errors: kInvalidArgument when a special segment is not the
  // spelling of an added token; those of Encode.
  [[nodiscard]] Result<std::vector<TokenId>> EncodeSegments(std::span<const Segment> segments) const;
  // The same, with the special parts of `prompt` given as ranges. Errors: kInvalidArgument when ranges are empty, out
  // of order, overlap or leave the prompt; those of EncodeSegments.
  [[nodiscard]] Result<std::vector<TokenId>> EncodeWithSpecialRanges(std::string_view prompt,
                                                                     std::span<const ByteRange> special_ranges) const;

  // Text of `ids`: bytes of the tokens joined, then every maximal invalid subpart replaced by U+FFFD. Errors:
  // kInvalidArgument for an id that has no token, naming its index.
  [[nodiscard]] Result<std::string> Decode(std::span<const TokenId> ids,
                                           SpecialTokens special = SpecialTokens::kKeep) const;

  // Bytes that a token stands for, valid as long as the tokenizer; not always valid UTF-8. For an added token its
  // spelling. nullopt: `id` is out of range or has no token.
  [[nodiscard]] std::optional<std::string_view> TokenBytes(TokenId id) const;
  // Spelling in tokenizer.json (bytes of ordinary tokens in the byte-level alphabet: "Ġthe"). nullopt as above.
  [[nodiscard]] std::optional<std::string> Spelling(TokenId id) const;
  // The token with that spelling in tokenizer.json, added tokens first; nullopt when there is none.
  [[nodiscard]] std::optional<TokenId> IdOf(std::string_view spelling) const;
  // The added token with that spelling.
  [[nodiscard]] std::optional<TokenId> AddedIdOf(std::string_view spelling) const;

  // Largest id + 1. Ids below it may have no token: has_token tells.
  [[nodiscard]] int vocab_size() const;
  // All three are false for ids out of range.
  [[nodiscard]] bool has_token(TokenId id) const;
  [[nodiscard]] bool is_added(TokenId id) const;
  [[nodiscard]] bool is_special(TokenId id) const;
  // Whether the split patterns are the official ones, which a hand-written splitter serves.
  [[nodiscard]] bool has_official_split() const;

 private:
  friend class Encoder;
  struct Impl;
  explicit Tokenizer(std::unique_ptr<const Impl> impl);
  std::unique_ptr<const Impl> impl_;
};

struct EncoderOptions {
  // Slots of the piece cache, 64 bytes each, rounded up to a power of two; 0: no cache. 32,768 take 2 MiB.
  std::size_t cache_slots = 32768;
};

// Steps that encoding took, in units that grow with the text and not with the machine. Tests use it to show that no
// input takes more than linear work.
struct EncodeWork {
  std::int64_t pieces = 0;
  std::int64_t cache_hits = 0;
  std::int64_t merge_steps = 0;  // pairs looked at by the merge loop, heap operations included
};

// Encodes for one thread. Results do not depend on what was encoded before.
class Encoder {
 public:
  explicit Encoder(const Tokenizer& tokenizer, EncoderOptions options = {});
  Encoder(Encoder&&) noexcept;
  Encoder& operator=(Encoder&&) noexcept;
  ~Encoder();

  // As the functions of Tokenizer with these names.
  [[nodiscard]] Result<std::vector<TokenId>> Encode(std::string_view text, AddedTokens added = AddedTokens::kAsText);
  [[nodiscard]] Result<std::vector<TokenId>> EncodeSegments(std::span<const Segment> segments);
  [[nodiscard]] Result<std::vector<TokenId>> EncodeWithSpecialRanges(std::string_view prompt,
                                                                     std::span<const ByteRange> special_ranges);
  // Pieces that the pre-tokenizer cuts `text` into, as end offsets; added tokens are not matched.
  [[nodiscard]] Result<std::vector<std::size_t>> SplitEnds(std::string_view text);

  [[nodiscard]] const EncodeWork& work() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace galley::text
