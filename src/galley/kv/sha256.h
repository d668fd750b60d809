// SPDX-License-Identifier: Apache-2.0
// SHA-256 behind one wrapper (OpenSSL does the work). A hasher is owned by one thread and is reused from digest to
// digest; integers go in little-endian and variable-length fields go in with their length, so that no two different
// field lists can produce the same bytes.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace galley::kv {

struct Digest {
  std::array<std::uint8_t, 32> bytes{};

  friend constexpr auto operator<=>(const Digest&, const Digest&) = default;
  // The first eight bytes, for hash tables. Not for comparing: digests are never cut.
  [[nodiscard]] std::uint64_t prefix() const {
    std::uint64_t value;
    std::memcpy(&value, bytes.data(), sizeof value);
    return value;
  }
  [[nodiscard]] std::string ToHex() const;
};

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  Sha256& Bytes(std::span<const std::uint8_t> bytes);
  Sha256& U32(std::uint32_t value);
  Sha256& I64(std::int64_t value);
  // Length as U32, then the bytes.
  Sha256& Field(std::string_view text);
  // Token ids as 32-bit little-endian words, without a length.
  Sha256& Tokens(std::span<const std::int32_t> ids);
  // The digest of everything since the last Finish (or construction); the hasher starts over.
  [[nodiscard]] Digest Finish();

 private:
  void Start();

  struct Context;
  std::unique_ptr<Context> context_;
};

}  // namespace galley::kv

template <>
struct std::hash<galley::kv::Digest> {
  std::size_t operator()(const galley::kv::Digest& digest) const noexcept {
    return static_cast<std::size_t>(digest.prefix());
  }
};
