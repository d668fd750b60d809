// SPDX-License-Identifier: Apache-2.0
// Every option of the program, in one table. Adding an option is adding a row; docs/options.md is then written anew
// with `galley options --markdown`.
#pragma once

#include "galley/base/options.h"

namespace galley::options {

[[nodiscard]] Table AllOptions();

}  // namespace galley::options
