// SPDX-License-Identifier: Apache-2.0
// Configuration file in TOML, behind which toml++ does the reading. Pure: works on the text of the file.
#pragma once

#include <string_view>
#include <vector>

#include "galley/base/error.h"
#include "galley/base/options.h"

namespace galley::options {

// Every `key = value` of the file in order, with its table and line. `where` names the file in errors. Errors:
// kInvalidArgument for broken TOML (with the line), for values that no option can have (dates, nested tables, mixed
// arrays), and for files above 1 MiB. Names and limits are checked by Resolve.
[[nodiscard]] Result<std::vector<FileEntry>> ParseConfigFile(std::string_view toml, std::string_view where);

}  // namespace galley::options
