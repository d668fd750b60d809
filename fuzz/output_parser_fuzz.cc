// SPDX-License-Identifier: Apache-2.0
// What a model may write through the output parser: the same answer however the text is cut, calls of declared tools
// only, an object for the arguments of each, no tool markup for the client. The first byte chooses the modes, the
// second the size of the pieces.
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "galley/protocol/output_parser.h"
#include "galley/text/utf8.h"
#include "input.h"

namespace {

using galley::fuzz::Require;
using galley::protocol::Finish;
using galley::protocol::OutputEvent;
using galley::protocol::OutputKind;
using galley::protocol::OutputParser;
using galley::protocol::OutputParserOptions;
using galley::protocol::ThinkingStage;

constexpr std::string_view kMarker = "｜DSML｜";

// Whether taking something out of `text` could leave a marker: half of one, two that share a bar, or `<` before a
// thinking tag. Such a marker is shown, as plain text.
bool MayJoin(std::string_view text) {
  std::size_t markers = 0, ds = 0;
  for (std::size_t at = text.find(kMarker); at != std::string_view::npos;
       at = text.find(kMarker, at + kMarker.size())) {
    ++markers;
  }
  for (const char c : text) ds += c == 'D' ? 1 : 0;
  return ds != markers || text.find("think>") != std::string_view::npos;
}

// Everything that the client gets, calls as `name(arguments)`.
std::string Read(const OutputParserOptions& options, std::string_view text, std::size_t piece_bytes, Finish finish) {
  OutputParser parser(options);
  std::vector<OutputEvent> events;
  for (std::size_t at = 0; at < text.size();) {
    std::size_t end = std::min(text.size(), at + piece_bytes);
    while (end < text.size() && (text[end] & 0xC0) == 0x80) ++end;  // pieces hold whole characters
    parser.Push({std::string(text.substr(at, end - at))}, events);
    at = end;
  }
  parser.End(finish, events);
  Require(parser.done());
  std::string reasoning, content, calls, arguments;
  const auto close_call = [&] {
    if (arguments.empty()) return;
    const auto parsed = galley::protocol::ParseJson(arguments, {.refuse_duplicates = true});
    Require(parsed.has_value() && parsed->is_object());
    calls += "(" + arguments + ")";
    arguments.clear();
  };
  for (const OutputEvent& event : events) {
    if (event.kind == OutputKind::kReasoning) reasoning += event.text;
    if (event.kind == OutputKind::kContent) content += event.text;
    if (event.kind == OutputKind::kCallArguments) arguments += event.text;
    if (event.kind != OutputKind::kCallStart) continue;
    close_call();
    Require(event.text == "f");
    calls += event.text;
  }
  close_call();
  const bool strict = options.parsing.parse_tool_calls && !options.parsing.parse_json_output && !MayJoin(text);
  if (strict) Require(content.find("<｜DSML｜ invoke") == std::string::npos);
  if (options.parsing.hide_markup && !MayJoin(text)) Require((reasoning + content).find(kMarker) == std::string::npos);
  return reasoning + "|" + content + "|" + calls;
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const unsigned modes = data[0];
  OutputParserOptions options;
  options.parsing.parse_tool_calls = (modes & 1) != 0;
  options.parsing.starts_in_tool_calls = (modes & 3) == 3;
  options.parsing.parse_json_output = (modes & 4) != 0;
  if ((modes & 8) != 0) options.parsing.stage = ThinkingStage::kReasoningStart;
  if ((modes & 16) != 0) options.parsing.stop_sequences = {"STOP", "\n\n", "aab"};
  options.parsing.hide_markup = (modes & 64) != 0 && !options.parsing.parse_tool_calls;
  options.parsing.keep_stop = (modes & 128) != 0;
  options.tool_names = {"f"};
  const Finish finish = (modes & 32) != 0 ? Finish::kLength : Finish::kStop;
  const std::string text = galley::text::ReplaceInvalidUtf8(galley::fuzz::Text(data + 2, size - 2));
  Require(Read(options, text, text.size() + 1, finish) == Read(options, text, 1 + data[1] % 32, finish));
  return 0;
}
