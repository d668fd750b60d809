// SPDX-License-Identifier: Apache-2.0
// Process-wide diagnostics on stderr, behind which spdlog does the work. Lines are for people and operators; results
// that a program reads go to stdout. Safe from any thread. Pure layers do not log.
#pragma once

#include <fmt/core.h>

#include <string_view>
#include <utility>

namespace galley::log {

enum class Level { kDebug, kInfo, kWarning, kError };

// Lines below `level` are dropped. The default is kWarning, so that commands print only their result.
void SetLevel(Level level);
void Write(Level level, std::string_view line);

template <typename... Args>
void Debug(fmt::format_string<Args...> format, Args&&... args) {
  Write(Level::kDebug, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void Info(fmt::format_string<Args...> format, Args&&... args) {
  Write(Level::kInfo, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void Warning(fmt::format_string<Args...> format, Args&&... args) {
  Write(Level::kWarning, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void Error(fmt::format_string<Args...> format, Args&&... args) {
  Write(Level::kError, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace galley::log
