// SPDX-License-Identifier: Apache-2.0
// Text for tokenizer benchmarks: English and eight other languages, source code, Markdown, logs, numbers, emoji. Made
// from a seed file, paragraph by paragraph in pseudo-random order, with numbers, hexadecimal strings and invented words
// filled in, so that it keeps showing pieces that were not seen before. The same size always gives the same text.
#pragma once

#include <cstddef>
#include <string>

namespace galley::bench {

// At least `bytes` bytes, ending with a whole paragraph; empty when the seed file cannot be read. In it paragraphs are
// divided by empty lines; §n stands for a number, §h for hexadecimal digits, §w for a word.
[[nodiscard]] std::string MixedText(std::size_t bytes);

}  // namespace galley::bench
