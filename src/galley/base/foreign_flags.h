// SPDX-License-Identifier: Apache-2.0
// Flags of other engines' servers that people have in their scripts. A flag with the same meaning is an alias in the
// option table; the rest are here: some have no effect in Galley and are let pass, the others are refused with what to
// do instead. Constants.
#pragma once

#include <span>
#include <string_view>

namespace galley::options {

struct ForeignFlag {
  std::string_view name;
  bool takes_value;
  std::string_view advice;         // said when it is refused
  std::string_view harmless = {};  // values, separated by spaces, with which it changes nothing; "*": all
};

// Those that `command` may meet.
[[nodiscard]] std::span<const ForeignFlag> ForeignFlags(std::string_view command);
// nullptr: nobody's.
[[nodiscard]] const ForeignFlag* FindForeign(std::string_view command, std::string_view name);

}  // namespace galley::options
