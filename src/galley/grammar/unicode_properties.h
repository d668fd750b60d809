// SPDX-License-Identifier: Apache-2.0
// Unicode properties that the regex dialect names with \p{…}, and simple case folding, decoded from unicode_tables.h.
// Safe from any thread.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace galley::grammar {

// Code points `first`..`last`, both inside.
struct CodePointRange {
  std::uint32_t first;
  std::uint32_t last;
};

// kHostName: what only host_names.h asks for.
enum class PropertyKind { kGeneralCategory, kScript, kScriptExtensions, kBinary, kHostName };

// `from` folds to `to` (statuses C and S of CaseFolding.txt).
struct CaseFold {
  std::uint32_t from;
  std::uint32_t to;
};

// Sorted ranges of a property by long name or alias, spelled exactly as in the database; empty when unknown.
[[nodiscard]] std::vector<CodePointRange> FindProperty(PropertyKind kind, std::string_view name);

// In order of `from`.
[[nodiscard]] std::vector<CaseFold> SimpleCaseFolds();

}  // namespace galley::grammar
