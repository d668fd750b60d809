// SPDX-License-Identifier: Apache-2.0
// What a request demands of the form of its answer: JSON, a schema, a regular expression, a call of a tool. The one
// place that turns the codec's Constraint into something the engine enforces. What cannot be enforced is refused, never
// promised in silence.
#pragma once

#include "galley/protocol/request.h"
#include "galley/serve/api_error.h"

namespace galley::serve {

// Nothing to enforce, or an error that names what cannot be.
[[nodiscard]] ApiResult<void> CheckConstraint(const protocol::ParsedRequest& request, const protocol::Json& body);

}  // namespace galley::serve
