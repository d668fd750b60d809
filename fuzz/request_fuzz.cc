// SPDX-License-Identifier: Apache-2.0
// Any bytes as a request body of each API (the first byte chooses): an error with a message, or a request that renders,
// with the control tokens of its prompt in order and inside it.
#include <array>
#include <string_view>

#include "galley/protocol/image_plan.h"
#include "galley/protocol/request.h"
#include "input.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using galley::fuzz::Require;
  using namespace galley::protocol;
  if (size < 1) return 0;
  constexpr std::array<Protocol, 4> kProtocols = {Protocol::kChat, Protocol::kResponses, Protocol::kMessages,
                                                  Protocol::kCompletions};
  CodecOptions options;
  options.keep_call_order = (data[0] & 4) != 0;
  options.continue_prefill = (data[0] & 8) != 0;
  options.enforce_any = (data[0] & 16) != 0;
  options.render.keep_order = (data[0] & 32) != 0;
  const auto request = ParseRequest(kProtocols[data[0] % 4], galley::fuzz::Text(data + 1, size - 1), options);
  if (!request) {
    Require(!request.error().message.empty());
    return 0;
  }
  const Prompt prompt = RenderRequest(*request, options);
  std::size_t end = 0;
  for (const ByteRange& range : prompt.special) {
    Require(range.begin >= end && range.end > range.begin && range.end <= prompt.text.size());
    end = range.end;
  }
  (void)PlanImages(prompt.images);
  (void)ResolveMaxTokens(*request, 100, 1000);
  return 0;
}
