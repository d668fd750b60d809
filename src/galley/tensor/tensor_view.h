// SPDX-License-Identifier: Apache-2.0
// A read-only, contiguous, row-major tensor in memory that somebody else owns (a mapped checkpoint, a buffer).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "galley/base/check.h"
#include "galley/tensor/dtype.h"

namespace galley {

using Shape = std::vector<std::int64_t>;

// Product of the dimensions; 1 for a scalar.
[[nodiscard]] std::int64_t ElementCount(const Shape& shape);
// "[3, 4]"
[[nodiscard]] std::string ToString(const Shape& shape);

struct TensorView {
  DType dtype = DType::kF32;
  Shape shape;
  const std::byte* data = nullptr;

  [[nodiscard]] bool empty() const { return data == nullptr; }
  [[nodiscard]] std::int64_t elements() const { return ElementCount(shape); }
  [[nodiscard]] std::size_t bytes() const { return static_cast<std::size_t>(elements()) * Info(dtype).bytes; }
  [[nodiscard]] std::int64_t dim(std::size_t axis) const {
    CHECK(axis < shape.size()) << "axis " << axis << " of " << ToString(shape);
    return shape[axis];
  }
  // Typed pointer; T must be as wide as the dtype.
  template <typename T>
  [[nodiscard]] const T* as() const {
    CHECK(sizeof(T) == Info(dtype).bytes) << Info(dtype).safetensors_name << " read as " << sizeof(T) << " bytes";
    return reinterpret_cast<const T*>(data);
  }
};

}  // namespace galley
