// SPDX-License-Identifier: Apache-2.0
#include "galley/tensor/dtype.h"

#include <iterator>

#include "galley/base/check.h"

namespace galley {
namespace {

constexpr DTypeInfo kTypes[] = {
    {DType::kF32, "F32", 4},      {DType::kBF16, "BF16", 2}, {DType::kF16, "F16", 2}, {DType::kF8E4M3, "F8_E4M3", 1},
    {DType::kE8M0, "F8_E8M0", 1}, {DType::kI8, "I8", 1},     {DType::kU8, "U8", 1},   {DType::kI16, "I16", 2},
    {DType::kI32, "I32", 4},      {DType::kI64, "I64", 8},   {DType::kF64, "F64", 8}, {DType::kBool, "BOOL", 1},
};

}  // namespace

const DTypeInfo& Info(DType dtype) {
  const auto index = static_cast<std::size_t>(dtype);
  CHECK(index < std::size(kTypes) && kTypes[index].dtype == dtype) << "dtype " << index << " has no table row";
  return kTypes[index];
}

std::optional<DType> DTypeFromSafetensors(std::string_view name) {
  for (const DTypeInfo& info : kTypes) {
    if (info.safetensors_name == name) return info.dtype;
  }
  return std::nullopt;
}

}  // namespace galley
