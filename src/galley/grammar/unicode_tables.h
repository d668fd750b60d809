// SPDX-License-Identifier: Apache-2.0
// The tables behind unicode_properties.h, which scripts/gen_grammar_unicode.pl writes as text: numbers in digits of one
// character, with line ends in between that mean nothing. Read-only; safe from any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "galley/grammar/unicode_properties.h"

namespace galley::grammar::internal {

struct PropertyRow {
  PropertyKind kind;
  std::string_view names;  // spellings, with spaces in between
  std::uint32_t offset;    // of its first digit in kRangeDigits
  std::uint32_t count;     // ranges
};

extern const std::span<const PropertyRow> kPropertyRows;
extern const std::string_view kRangeDigits;  // of each range: distance from the end of the one before, length - 1
extern const std::string_view kFoldDigits;   // from, to, from, to, …: signed distances from the number before

}  // namespace galley::grammar::internal
