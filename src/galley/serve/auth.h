// SPDX-License-Identifier: Apache-2.0
// API keys: who may ask, and which cached prefixes a key may share. Immutable after creation, so any thread may use it.
// Comparing takes the same time whatever a wrong key has in common with a right one.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "galley/base/error.h"
#include "galley/net/http_message.h"

namespace galley::serve {

// Keys of a file: one a line; empty lines and lines that start with # are skipped.
[[nodiscard]] std::vector<std::string> KeysOfFile(std::string_view content);

class Keys {
 public:
  // Without keys everybody may ask. kInvalidArgument for a key that is empty, too long or has blanks in it; its place
  // is named, never its text.
  [[nodiscard]] static Result<Keys> Create(std::vector<std::string> keys);

  [[nodiscard]] bool open() const { return keys_.empty(); }
  // Index of the key that the request carries (`authorization: Bearer KEY` or `x-api-key: KEY`); 0 when there are no
  // keys; nullopt: none or a wrong one.
  [[nodiscard]] std::optional<int> Check(const net::Headers& headers) const;
  // What separates the cached prefixes of this key from those of others: not the key itself.
  [[nodiscard]] std::string_view salt(int index) const;

 private:
  std::vector<std::string> keys_;
  std::vector<std::string> salts_;
};

// Whether both are equal, in a time that depends on their lengths only.
[[nodiscard]] bool EqualInConstantTime(std::string_view a, std::string_view b);

}  // namespace galley::serve
