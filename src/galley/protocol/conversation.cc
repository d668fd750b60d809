// SPDX-License-Identifier: Apache-2.0
#include "galley/protocol/conversation.h"

#include <array>

namespace galley::protocol {
namespace {

template <std::size_t kCount, typename Enum>
std::string_view Look(const std::array<std::string_view, kCount>& names, Enum value) {
  return names[static_cast<std::size_t>(value)];
}

}  // namespace

std::string_view Name(ModelVersion version) {
  return Look(std::array<std::string_view, 2>{"v4", "v41"}, version);
}
std::string_view Name(Role role) {
  return Look(std::array<std::string_view, 5>{"system", "user", "assistant", "tool", "latest_reminder"}, role);
}
std::string_view Name(Effort effort) {
  return Look(std::array<std::string_view, 4>{"low", "high", "xhigh", "max"}, effort);
}
std::string_view Name(ToolChoice choice) {
  return Look(std::array<std::string_view, 3>{"auto", "none", "required"}, choice);
}
std::string_view Name(ResponseFormat format) {
  return Look(std::array<std::string_view, 4>{"text", "json_object", "json_schema", "regex"}, format);
}
std::string_view Name(ImageDetail detail) {
  return Look(std::array<std::string_view, 4>{"auto", "low", "high", "original"}, detail);
}

}  // namespace galley::protocol
