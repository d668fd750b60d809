// SPDX-License-Identifier: Apache-2.0
// Server-sent events as the HTML standard defines text/event-stream. Pure.
#pragma once

#include <string>
#include <string_view>

namespace galley::net {

// Adds "event: …" unless `event` is empty, one "data: …" for each line of `data`, an empty line. `event` holds no line
// break.
void AppendSse(std::string& out, std::string_view event, std::string_view data);

}  // namespace galley::net
