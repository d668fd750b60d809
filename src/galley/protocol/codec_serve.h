// SPDX-License-Identifier: Apache-2.0
// The codec as a filter: test cases in, results out, one JSON object a line, in the formats of the recipe vectors. A
// line says in `file` which vector file it belongs to (render, stream, numbers, images, tokenize; an ending such as
// ".jsonl" may follow), which decides how it is read. What `galley codec-serve` runs. Deterministic: times and random
// call ids are replaced as they are in the vectors.
#pragma once

#include <string>
#include <string_view>

#include "galley/base/error.h"
#include "galley/protocol/json.h"
#include "galley/text/tokenizer.h"

namespace galley::protocol {

struct CodecServeOptions {
  // Without it nothing that needs token ids is answered: `ids` are left out, and streams of ids are errors.
  const text::Tokenizer* tokenizer = nullptr;
};

// The result of one case: {"file", "id", …} and then `expect` (render, stream) or the members of the vector that the
// codec computes (others). A case that cannot be read gives {"file", "id", "error"}.
[[nodiscard]] Json RunCodecCase(const Json& row, const CodecServeOptions& options);

// The answer to one line, without its end. A line that is not JSON gives {"error"}, with what can be read of file and
// id.
[[nodiscard]] std::string AnswerCodecLine(std::string_view line, const CodecServeOptions& options);

}  // namespace galley::protocol
