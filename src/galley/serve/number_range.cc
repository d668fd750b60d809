// SPDX-License-Identifier: Apache-2.0
#include "galley/serve/number_range.h"

#include <fmt/format.h>

#include <cmath>

namespace galley::serve {

std::optional<double> NumberRange::Read(const protocol::Json& value) const {
  if (!value.is_number()) return std::nullopt;
  const double number = value.AsDouble();
  // The codec and the engine compute with 32 bits, in which the least numbers are 0.
  const bool inside =
      (low_open ? static_cast<float>(number) > static_cast<float>(low) : number >= low) && number <= high;
  if (!inside || (whole && number != std::floor(number))) return std::nullopt;
  return number;
}

std::string NumberRange::Text() const {
  return fmt::format("{}{}, {}]{}", low_open ? "(" : "[", low, high, whole ? ", whole numbers" : "");
}

}  // namespace galley::serve
