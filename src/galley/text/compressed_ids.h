// SPDX-License-Identifier: Apache-2.0
// Compressed ids for Engram: tokens whose text differs only in case, marks,
// compatibility form or white space get one id, numbered in the order of first appearance. Every n-gram hash depends on
// every one of these numbers, so the count is checked against the model's config. Pure; takes some tens of milliseconds
// for the full vocabulary and is done once at start.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "galley/base/error.h"
#include "galley/text/tokenizer.h"

namespace galley::text {

struct CompressedIds {
  std::vector<std::int32_t> ids;  // [vocab_size], each in [0, distinct)
  std::int32_t distinct = 0;
};

// Ids below `vocab_size` that have no token share one compressed id, that of the empty text. Requires vocab_size >= 0.
[[nodiscard]] CompressedIds BuildCompressedIds(const Tokenizer& tokenizer, int vocab_size);

// The map alone. kCorrupt when the number of distinct ids is not `expected_distinct` (engram_compressed_vocab_size of
// the config): tokenizer and model then do not belong together.
[[nodiscard]] Result<std::vector<std::int32_t>> CompressedIdsFor(const Tokenizer& tokenizer, int vocab_size,
                                                                 std::int64_t expected_distinct);

// The key that decides which tokens share an id. `text` is valid UTF-8: NFKC, NFD, marks (general category M) removed,
// lower case, runs of space, tab, CR and LF made one space, trimmed (a text that is exactly one space stays). Empty
// when nothing is left.
[[nodiscard]] std::string EngramFold(std::string_view text);

}  // namespace galley::text
