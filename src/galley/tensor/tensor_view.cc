// SPDX-License-Identifier: Apache-2.0
#include "galley/tensor/tensor_view.h"

#include <fmt/ranges.h>

namespace galley {

std::int64_t ElementCount(const Shape& shape) {
  std::int64_t count = 1;
  for (const std::int64_t dim : shape) count *= dim;
  return count;
}

std::string ToString(const Shape& shape) {
  return fmt::format("{}", shape);
}

}  // namespace galley
