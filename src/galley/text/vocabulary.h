// SPDX-License-Identifier: Apache-2.0
// The tokens of a tokenizer.json by id and by text. Built once, then immutable and shared by threads. Bytes of all
// tokens lie in one string, so views of them stay valid as long as the vocabulary.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "galley/base/error.h"
#include "galley/base/strong_id.h"

namespace galley::text {

// Ids below this bound; keeps a hostile file from asking for a table of gigabytes.
inline constexpr TokenId kTokenIdLimit = 1 << 21;
inline constexpr std::size_t kTokenBytesMax = 1 << 16;

class Vocabulary {
 public:
  // Adds an ordinary token, spelled in the byte-level alphabet. A spelling with characters outside of it is kept as it
  // is: no text is ever encoded to such a token. Errors: kInvalidArgument (id or length outside the limits), kCorrupt
  // (id or spelling already taken).
  [[nodiscard]] Status AddOrdinary(std::string_view spelling, std::int64_t id);
  // Adds an added token, or turns the ordinary token of that id and spelling into one. Call it after all AddOrdinary.
  // Errors as above.
  [[nodiscard]] Status AddAdded(std::string_view content, std::int64_t id, bool special);
  void Reserve(std::size_t tokens, std::size_t bytes);

  [[nodiscard]] int size() const { return static_cast<int>(entries_.size()); }  // largest id + 1
  [[nodiscard]] bool Has(TokenId id) const { return InRange(id) && (entry(id).flags & kExists) != 0; }
  [[nodiscard]] bool IsAdded(TokenId id) const { return InRange(id) && (entry(id).flags & kAdded) != 0; }
  [[nodiscard]] bool IsSpecial(TokenId id) const { return InRange(id) && (entry(id).flags & kSpecial) != 0; }
  // Whether TokenBytes are the spelling itself and not what the byte-level alphabet makes of it.
  [[nodiscard]] bool IsLiteral(TokenId id) const { return InRange(id) && (entry(id).flags & kLiteral) != 0; }
  // Requires Has(id).
  [[nodiscard]] std::string_view Bytes(TokenId id) const { return BytesOf(entry(id)); }

  // Ordinary token that stands for `bytes`.
  [[nodiscard]] std::optional<TokenId> FindBytes(std::string_view bytes) const { return Find(bytes, false); }
  // Token whose spelling is kept literally: every added token and ordinary ones outside the alphabet.
  [[nodiscard]] std::optional<TokenId> FindLiteral(std::string_view spelling) const { return Find(spelling, true); }

 private:
  enum Flag : std::uint8_t { kExists = 1, kAdded = 2, kSpecial = 4, kLiteral = 8 };
  struct Entry {
    std::uint32_t offset = 0;
    std::uint32_t length = 0;
    std::uint8_t flags = 0;
  };
  struct Slot {
    std::uint32_t tag = 0;
    TokenId id = -1;
  };

  [[nodiscard]] bool InRange(TokenId id) const { return id >= 0 && id < size(); }
  [[nodiscard]] const Entry& entry(TokenId id) const { return entries_[static_cast<std::size_t>(id)]; }
  [[nodiscard]] std::string_view BytesOf(const Entry& e) const {
    return std::string_view(blob_).substr(e.offset, e.length);
  }
  [[nodiscard]] std::optional<TokenId> Find(std::string_view bytes, bool literal) const;
  [[nodiscard]] Status Insert(std::size_t offset, std::int64_t id, std::uint8_t flags);
  void CountAndLink(TokenId id);
  void Link(TokenId id);
  void Rehash(std::size_t slots);

  std::string blob_;
  std::vector<Entry> entries_;  // by id
  std::vector<Slot> slots_;     // open addressing over (bytes, literal); a power of two
  std::size_t used_ = 0;
};

}  // namespace galley::text
