// SPDX-License-Identifier: Apache-2.0
#include "galley/text/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <system_error>
#include <utility>

#include "galley/text/added_tokens.h"
#include "galley/text/bpe.h"
#include "galley/text/byte_level.h"
#include "galley/text/piece_cache.h"
#include "galley/text/regex_splitter.h"
#include "galley/text/splitter.h"
#include "galley/text/tokenizer_json.h"
#include "galley/text/utf8.h"
#include "galley/text/vocabulary.h"

namespace galley::text {
namespace {

constexpr std::size_t kTextBytesMax = std::size_t{1} << 30;

Result<std::string> ReadWholeFile(const std::filesystem::path& path) {
  std::error_code error;
  const std::uintmax_t size = std::filesystem::file_size(path, error);
  if (error == std::errc::no_such_file_or_directory) {
    return Err(ErrorCode::kNotFound, "no such file; a model directory holds its tokenizer as tokenizer.json",
               path.string());
  }
  if (error) return Err(ErrorCode::kIo, error.message(), path.string());
  if (size > kTokenizerFileBytesMax) {
    return Err(ErrorCode::kInvalidArgument,
               fmt::format("the file has {} bytes; the limit is {}", size, kTokenizerFileBytesMax), path.string());
  }
  std::string content(static_cast<std::size_t>(size), '\0');
  std::ifstream file(path, std::ios::binary);
  if (!file.read(content.data(), static_cast<std::streamsize>(size))) {
    return Err(ErrorCode::kIo, fmt::format("cannot read {} bytes: {}", size, std::strerror(errno)), path.string());
  }
  return content;
}

// Tokens being written. The vector is kept larger than its content, so that a slot of the cache can be copied whole.
class TokenSink {
 public:
  explicit TokenSink(std::size_t bytes) : tokens_(bytes / kBytesPerToken + kSpare) {}

  void Append(const PieceCache::Slot& slot) {
    Reserve(slot.ids.size());
    std::copy_n(slot.ids.begin(), slot.ids.size(), tokens_.data() + count_);
    count_ += slot.count;
  }
  void Append(std::span<const BpeScratch::Symbol> symbols) {
    Reserve(symbols.size());
    for (const BpeScratch::Symbol& symbol : symbols) tokens_[count_++] = symbol.id;
  }
  void Append(TokenId id) {
    Reserve(1);
    tokens_[count_++] = id;
  }

  [[nodiscard]] std::vector<TokenId> Take() {
    tokens_.resize(count_);
    return std::move(tokens_);
  }

 private:
  void Reserve(std::size_t more) {
    if (tokens_.size() - count_ < more) tokens_.resize(2 * tokens_.size() + more);
  }

  // A first guess that most texts do not outgrow.
  static constexpr std::size_t kBytesPerToken = 3, kSpare = 64;

  std::vector<TokenId> tokens_;
  std::size_t count_ = 0;
};

// A one-off encoding should not pay for a cache that is larger than its text can use.
EncoderOptions OptionsForOneText(std::size_t bytes) {
  constexpr std::size_t kBytesPerSlot = 4;
  return {.cache_slots = std::min(EncoderOptions{}.cache_slots, bytes / kBytesPerSlot)};
}

}  // namespace

struct Tokenizer::Impl {
  Vocabulary vocabulary;
  BpeModel bpe;
  AddedTokenMatcher added;
  std::optional<RegexSplitter> regex_splitter;  // none: the official splitter
};

Tokenizer::Tokenizer(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Result<Tokenizer> Tokenizer::Load(const std::filesystem::path& path) {
  ASSIGN_OR_RETURN(const std::string content, ReadWholeFile(path));
  return FromJson(content, path.string());
}

Result<Tokenizer> Tokenizer::FromJson(std::string_view json, std::string_view where) {
  ASSIGN_OR_RETURN(TokenizerParts parts, ParseTokenizerJson(json, where));
  Result<BpeModel> bpe = BpeModel::Create(parts.byte_ids, parts.merges);
  if (!bpe) return Err(bpe.error().code, bpe.error().message, fmt::format("{}: model.merges", where));
  std::optional<RegexSplitter> regex_splitter;
  if (!IsOfficialSplit(parts.split_patterns)) {
    ASSIGN_OR_RETURN(regex_splitter, RegexSplitter::Create(parts.split_patterns, where));
  }
  return Tokenizer(std::make_unique<Impl>(Impl{std::move(parts.vocabulary), std::move(*bpe),
                                               AddedTokenMatcher(parts.added_tokens), std::move(regex_splitter)}));
}

Result<std::vector<TokenId>> Tokenizer::Encode(std::string_view text, AddedTokens added) const {
  return Encoder(*this, OptionsForOneText(text.size())).Encode(text, added);
}

Result<std::vector<TokenId>> Tokenizer::EncodeSegments(std::span<const Segment> segments) const {
  std::size_t bytes = 0;
  for (const Segment& segment : segments) bytes += segment.text.size();
  return Encoder(*this, OptionsForOneText(bytes)).EncodeSegments(segments);
}

Result<std::vector<TokenId>> Tokenizer::EncodeWithSpecialRanges(std::string_view prompt,
                                                                std::span<const ByteRange> special_ranges) const {
  return Encoder(*this, OptionsForOneText(prompt.size())).EncodeWithSpecialRanges(prompt, special_ranges);
}

Result<std::string> Tokenizer::Decode(std::span<const TokenId> ids, SpecialTokens special) const {
  std::string bytes;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const auto token = TokenBytes(ids[i]);
    if (!token) {
      return Err(ErrorCode::kInvalidArgument,
                 fmt::format("id {} at index {} has no token; ids run from 0 to {}", ids[i], i, vocab_size() - 1));
    }
    if (special == SpecialTokens::kKeep || !is_special(ids[i])) bytes += *token;
  }
  return IsValidUtf8(bytes) ? bytes : ReplaceInvalidUtf8(bytes);
}

std::optional<std::string_view> Tokenizer::TokenBytes(TokenId id) const {
  if (!has_token(id)) return std::nullopt;
  return impl_->vocabulary.Bytes(id);
}

std::optional<std::string> Tokenizer::Spelling(TokenId id) const {
  const auto bytes = TokenBytes(id);
  if (!bytes) return std::nullopt;
  return impl_->vocabulary.IsLiteral(id) ? std::string(*bytes) : SpellingOfBytes(*bytes);
}

std::optional<TokenId> Tokenizer::IdOf(std::string_view spelling) const {
  if (const auto literal = impl_->vocabulary.FindLiteral(spelling)) return literal;
  std::string bytes;
  if (!AppendBytesOfSpelling(spelling, bytes)) return std::nullopt;
  return impl_->vocabulary.FindBytes(bytes);
}

std::optional<TokenId> Tokenizer::AddedIdOf(std::string_view spelling) const {
  const auto id = impl_->vocabulary.FindLiteral(spelling);
  return id && is_added(*id) ? id : std::nullopt;
}

int Tokenizer::vocab_size() const {
  return impl_->vocabulary.size();
}
bool Tokenizer::has_token(TokenId id) const {
  return impl_->vocabulary.Has(id);
}
bool Tokenizer::is_added(TokenId id) const {
  return impl_->vocabulary.IsAdded(id);
}
bool Tokenizer::is_special(TokenId id) const {
  return impl_->vocabulary.IsSpecial(id);
}
bool Tokenizer::has_official_split() const {
  return !impl_->regex_splitter;
}

struct Encoder::Impl {
  Impl(const Tokenizer& tokenizer, const EncoderOptions& options)
      : model(*tokenizer.impl_), cache(options.cache_slots) {}

  // Appends the tokens of one piece. `limit` is the end of the text that holds it.
  void AppendPiece(std::string_view piece, const char* limit, TokenSink& out);
  // Appends the tokens of `text` read as ordinary characters.
  [[nodiscard]] Status AppendPlain(std::string_view text, TokenSink& out);
  // Appends the added token that `text` spells.
  [[nodiscard]] Status AppendSpecial(std::string_view text, TokenSink& out) const;

  const Tokenizer::Impl& model;
  PieceCache cache;
  BpeScratch scratch;
  EncodeWork work;
};

void Encoder::Impl::AppendPiece(std::string_view piece, const char* limit, TokenSink& out) {
  ++work.pieces;
  if (piece.size() > PieceCache::kPieceBytesMax || !cache.enabled()) {
    out.Append(model.bpe.Encode(piece, scratch));
    return;
  }
  const PieceCache::Key key = PieceCache::KeyOf(piece.data(), piece.size(), limit);
  PieceCache::Slot& slot = cache.SlotOf(key);
  if (slot.key == key) {
    ++work.cache_hits;
    out.Append(slot);
    return;
  }
  const std::span<const BpeScratch::Symbol> symbols = model.bpe.Encode(piece, scratch);
  out.Append(symbols);
  if (symbols.size() > PieceCache::kTokensMax) return;
  slot.key = key;
  slot.count = static_cast<std::uint32_t>(symbols.size());
  std::transform(symbols.begin(), symbols.end(), slot.ids.begin(), [](const auto& symbol) { return symbol.id; });
}

Status Encoder::Impl::AppendPlain(std::string_view text, TokenSink& out) {
  if (text.size() > kTextBytesMax) {
    return Err(ErrorCode::kInvalidArgument,
               fmt::format("the text has {} bytes; at most {} can be encoded at once", text.size(), kTextBytesMax));
  }
  const char* limit = text.data() + text.size();
  std::size_t begin = 0;
  if (model.regex_splitter) {
    ASSIGN_OR_RETURN(const std::vector<std::size_t> ends, model.regex_splitter->Split(text));
    for (const std::size_t end : ends) {
      AppendPiece(text.substr(begin, end - begin), limit, out);
      begin = end;
    }
  } else {
    while (begin < text.size()) {
      const std::size_t end = OfficialPieceEnd(text, begin);
      AppendPiece(text.substr(begin, end - begin), limit, out);
      begin = end;
    }
  }
  work.merge_steps = scratch.steps;
  return {};
}

Status Encoder::Impl::AppendSpecial(std::string_view text, TokenSink& out) const {
  const auto id = model.vocabulary.FindLiteral(text);
  if (!id || !model.vocabulary.IsAdded(*id)) {
    return Err(
        ErrorCode::kInvalidArgument,
        fmt::format("\"{}\" is marked as a special token, but this tokenizer has no added token of that spelling",
                    ReplaceInvalidUtf8(text.substr(0, kAddedTokenBytesMax))));
  }
  out.Append(*id);
  return {};
}

Encoder::Encoder(const Tokenizer& tokenizer, EncoderOptions options)
    : impl_(std::make_unique<Impl>(tokenizer, options)) {}
Encoder::Encoder(Encoder&&) noexcept = default;
Encoder& Encoder::operator=(Encoder&&) noexcept = default;
Encoder::~Encoder() = default;

Result<std::vector<TokenId>> Encoder::Encode(std::string_view text, AddedTokens added) {
  TokenSink out(text.size());
  std::size_t from = 0;
  if (added == AddedTokens::kMatch) {
    for (const AddedMatch& match : impl_->model.added.FindAll(text)) {
      RETURN_IF_ERROR(impl_->AppendPlain(text.substr(from, match.begin - from), out));
      out.Append(match.id);
      from = match.end;
    }
  }
  RETURN_IF_ERROR(impl_->AppendPlain(text.substr(from), out));
  return out.Take();
}

Result<std::vector<TokenId>> Encoder::EncodeSegments(std::span<const Segment> segments) {
  std::size_t bytes = 0;
  for (const Segment& segment : segments) bytes += segment.text.size();
  TokenSink out(bytes);
  for (const Segment& segment : segments) {
    RETURN_IF_ERROR(segment.special ? impl_->AppendSpecial(segment.text, out) : impl_->AppendPlain(segment.text, out));
  }
  return out.Take();
}

Result<std::vector<TokenId>> Encoder::EncodeWithSpecialRanges(std::string_view prompt,
                                                              std::span<const ByteRange> special_ranges) {
  std::vector<Segment> segments;
  segments.reserve(2 * special_ranges.size() + 1);
  std::size_t from = 0;
  for (const ByteRange& range : special_ranges) {
    if (range.begin < from || range.begin >= range.end || range.end > prompt.size()) {
      return Err(
          ErrorCode::kInvalidArgument,
          fmt::format("special range [{}, {}) must hold at least one byte, start at {} or later and end at {} or "
                      "earlier",
                      range.begin, range.end, from, prompt.size()));
    }
    segments.push_back({prompt.substr(from, range.begin - from), false});
    segments.push_back({prompt.substr(range.begin, range.end - range.begin), true});
    from = range.end;
  }
  segments.push_back({prompt.substr(from), false});
  return EncodeSegments(segments);
}

Result<std::vector<std::size_t>> Encoder::SplitEnds(std::string_view text) {
  if (impl_->model.regex_splitter) return impl_->model.regex_splitter->Split(text);
  std::vector<std::size_t> ends;
  for (std::size_t end = 0; end < text.size();) {
    end = OfficialPieceEnd(text, end);
    ends.push_back(end);
  }
  return ends;
}

const EncodeWork& Encoder::work() const {
  return impl_->work;
}

}  // namespace galley::text
