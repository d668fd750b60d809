// SPDX-License-Identifier: Apache-2.0
// `galley codec-serve`: test cases of the codec in, results out, line by line.
#include "galley/protocol/codec_serve.h"

#include <optional>
#include <string>
#include <system_error>

#include "command.h"
#include "galley/text/tokenizer.h"
#include "interrupt.h"

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
  const Interrupt interrupt;
  Terminal& terminal = context.terminal;
  std::string line;
  while (true) {
    ASSIGN_OR_RETURN(const ReadEnd end, terminal.ReadLine(interrupt, line));
    if (end == ReadEnd::kInterrupted) return Info(ErrorCode::kCancelled).exit_code;
    if (end == ReadEnd::kEndOfInput || terminal.output_closed()) break;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    terminal.Write(protocol::AnswerCodecLine(line, options) + "\n");
    RETURN_IF_ERROR(terminal.write_status());
  }
  return kExitOk;
}

}  // namespace galley::app
