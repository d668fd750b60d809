// SPDX-License-Identifier: Apache-2.0
// Members of request bodies that clients of other servers send: those of OpenAI's, vLLM's, SGLang's and Anthropic's
// APIs that the codec does not know. What means something here is translated; what would change the answer and cannot
// be done is refused by name; all others are ignored (docs/serving.md has the tables). Pure.
#pragma once

#include <span>
#include <string_view>

#include "galley/protocol/json.h"
#include "galley/protocol/request.h"
#include "galley/serve/api_error.h"

namespace galley::serve {

// A member that is refused where its value would change the answer.
struct ForeignMember {
  unsigned apis;          // bits of 1 << Protocol
  std::string_view name;  // of the body's own member
  bool neutral;           // a value that says nothing, besides null and what is empty: this boolean
  std::string_view instead;
};
[[nodiscard]] std::span<const ForeignMember> ForeignMembers();

// Member of a rewritten structured_outputs: which one of the client's body it stands for.
inline constexpr std::string_view kAskedAs = "_asked_as";

// Rewrites a body into the words of the codec and of sampling_fields.h. An error names the member that has no meaning
// here, or no possible one. `body` is an object.
[[nodiscard]] ApiResult<void> TranslateForeign(protocol::Protocol protocol, protocol::Json& body);

}  // namespace galley::serve
