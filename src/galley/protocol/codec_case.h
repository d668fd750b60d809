// SPDX-License-Identifier: Apache-2.0
// Cases of codec-serve that run whole requests. Not for use outside the protocol layer.
#pragma once

#include <span>

#include "galley/base/strong_id.h"
#include "galley/protocol/codec_serve.h"
#include "galley/protocol/request.h"

namespace galley::protocol::internal {

[[nodiscard]] Json RunRenderCase(const Json& row, const CodecServeOptions& options);
[[nodiscard]] Json RunStreamCase(const Json& row, const CodecServeOptions& options);

// Codec options of a case; unknown members are ignored.
[[nodiscard]] CodecOptions OptionsOfCase(const Json& row);
[[nodiscard]] Protocol ProtocolOfCase(const Json& row);
// The request's body, as bytes.
[[nodiscard]] std::string BodyOfCase(const Json& row);

[[nodiscard]] Json IdsJson(std::span<const TokenId> ids);
[[nodiscard]] Json ErrorJson(const RequestError& error);
[[nodiscard]] Json ParsingJson(const ParsingOptions& parsing);

}  // namespace galley::protocol::internal
