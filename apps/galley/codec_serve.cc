// SPDX-License-Identifier: Apache-2.0
// `galley codec-serve`: test cases of the codec in, results out, line by line.
#include "galley/protocol/codec_serve.h"

#include <optional>
#include <string>
#include <system_error>

#include "command.h"
#include "galley/text/tokenizer.h"
#include "line_filter.h"

namespace galley::app {

Result<int> RunCodecServe(Context& context) {
  std::optional<text::Tokenizer> tokenizer;
  if (context.values.Has("tokenizer")) {
    std::filesystem::path path = context.values.String("tokenizer");
    std::error_code error;
    if (std::filesystem::is_directory(path, error)) path /= "tokenizer.json";
    ASSIGN_OR_RETURN(text::Tokenizer loaded, text::Tokenizer::Load(path));
    tokenizer.emplace(std::move(loaded));
  }
  const protocol::CodecServeOptions options{tokenizer ? &*tokenizer : nullptr};
  return FilterLines(context.terminal, [&](std::string_view line) { return protocol::AnswerCodecLine(line, options); });
}

}  // namespace galley::app
