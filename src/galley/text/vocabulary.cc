// SPDX-License-Identifier: Apache-2.0
#include "galley/text/vocabulary.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "galley/text/byte_level.h"
#include "galley/text/hash.h"

namespace galley::text {
namespace {

// The same bytes may be an ordinary token and the literal spelling of an added one; the seed keeps them apart.
std::uint64_t HashOf(std::string_view bytes, bool literal) {
  return HashRound(HashBytes(bytes), literal ? 1 : 0);
}

std::uint32_t TagOf(std::uint64_t hash) {
  return static_cast<std::uint32_t>(hash >> 32);
}

}  // namespace

void Vocabulary::Reserve(std::size_t tokens, std::size_t bytes) {
  blob_.reserve(bytes);
  entries_.reserve(tokens);
  const std::size_t slots = std::bit_ceil(2 * tokens + 16);
  if (slots > slots_.size()) Rehash(slots);
}

Status Vocabulary::AddOrdinary(std::string_view spelling, std::int64_t id) {
  const std::size_t offset = blob_.size();
  std::uint8_t flags = kExists;
  if (!AppendBytesOfSpelling(spelling, blob_)) {
    blob_ += spelling;
    flags |= kLiteral;
  }
  return Insert(offset, id, flags);
}

Status Vocabulary::AddAdded(std::string_view content, std::int64_t id, bool special) {
  const auto flags = static_cast<std::uint8_t>(kExists | kAdded | kLiteral | (special ? kSpecial : 0));
  std::optional<TokenId> listed = FindLiteral(content);
  if (std::string bytes; !listed && AppendBytesOfSpelling(content, bytes)) listed = FindBytes(bytes);
  const std::size_t offset = blob_.size();
  blob_ += content;
  if (!listed) return Insert(offset, id, flags);
  if (*listed != id) {
    return Err(
        ErrorCode::kCorrupt,
        fmt::format("the spelling \"{}\" is that of id {} already, so it cannot be id {} too", content, *listed, id));
  }
  // The model's vocabulary lists the token too. From here on it is an added token only, which no merge may build. Its
  // old slot stays behind and never matches, because the entry has become literal.
  Entry& e = entries_[static_cast<std::size_t>(id)];
  if ((e.flags & kAdded) != 0) {
    return Err(ErrorCode::kCorrupt, fmt::format("the added token \"{}\" is listed twice", content));
  }
  const bool relink = (e.flags & kLiteral) == 0;
  e = {static_cast<std::uint32_t>(offset), static_cast<std::uint32_t>(content.size()), flags};
  if (relink) CountAndLink(*listed);
  return {};
}

Status Vocabulary::Insert(std::size_t offset, std::int64_t id, std::uint8_t flags) {
  const std::size_t length = blob_.size() - offset;
  if (id < 0 || id >= kTokenIdLimit) {
    return Err(ErrorCode::kInvalidArgument, fmt::format("token id {} is outside 0 to {}", id, kTokenIdLimit - 1));
  }
  if (length == 0 || length > kTokenBytesMax) {
    return Err(ErrorCode::kInvalidArgument,
               fmt::format("the token of id {} has {} bytes; 1 to {} are allowed", id, length, kTokenBytesMax));
  }
  const auto index = static_cast<std::size_t>(id);
  const std::string_view bytes = std::string_view(blob_).substr(offset);
  if (const auto other = Find(bytes, (flags & kLiteral) != 0)) {
    return Err(ErrorCode::kCorrupt, fmt::format("ids {} and {} have the same spelling", *other, id));
  }
  if (index < entries_.size() && (entries_[index].flags & kExists) != 0) {
    return Err(ErrorCode::kCorrupt, fmt::format("id {} has two tokens", id));
  }
  if (index >= entries_.size()) entries_.resize(index + 1);
  entries_[index] = {static_cast<std::uint32_t>(offset), static_cast<std::uint32_t>(length), flags};
  CountAndLink(static_cast<TokenId>(id));
  return {};
}

void Vocabulary::CountAndLink(TokenId id) {
  ++used_;
  if (2 * used_ > slots_.size()) {
    Rehash(std::max<std::size_t>(64, 2 * slots_.size()));
  } else {
    Link(id);
  }
}

std::optional<TokenId> Vocabulary::Find(std::string_view bytes, bool literal) const {
  if (slots_.empty()) return std::nullopt;
  const std::uint64_t hash = HashOf(bytes, literal);
  const std::size_t mask = slots_.size() - 1;
  for (std::size_t at = hash & mask; slots_[at].id >= 0; at = (at + 1) & mask) {
    if (slots_[at].tag != TagOf(hash)) continue;
    const Entry& e = entry(slots_[at].id);
    if (((e.flags & kLiteral) != 0) == literal && BytesOf(e) == bytes) return slots_[at].id;
  }
  return std::nullopt;
}

void Vocabulary::Link(TokenId id) {
  const Entry& e = entry(id);
  const std::uint64_t hash = HashOf(BytesOf(e), (e.flags & kLiteral) != 0);
  const std::size_t mask = slots_.size() - 1;
  std::size_t at = hash & mask;
  while (slots_[at].id >= 0) at = (at + 1) & mask;
  slots_[at] = {TagOf(hash), id};
}

void Vocabulary::Rehash(std::size_t slots) {
  slots_.assign(slots, Slot{});
  for (TokenId id = 0; id < size(); ++id) {
    if (Has(id)) Link(id);
  }
}

}  // namespace galley::text
