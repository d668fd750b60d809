// SPDX-License-Identifier: Apache-2.0
#include "galley/tensor/dtype.h"

#include <gtest/gtest.h>

#include "galley/tensor/tensor_view.h"

namespace galley {
namespace {

TEST(DType, NamesRoundTrip) {
  for (int i = 0; i <= static_cast<int>(DType::kBool); ++i) {
    const DTypeInfo& info = Info(static_cast<DType>(i));
    EXPECT_EQ(DTypeFromSafetensors(info.safetensors_name), info.dtype);
  }
  EXPECT_FALSE(DTypeFromSafetensors("F8_E5M2"));
  EXPECT_FALSE(DTypeFromSafetensors(""));
}

TEST(TensorView, BytesFollowShapeAndDtype) {
  const TensorView view{DType::kBF16, {3, 4}, nullptr};
  EXPECT_EQ(view.elements(), 12);
  EXPECT_EQ(view.bytes(), 24u);  // 12 elements of 2 bytes
  EXPECT_EQ(ToString(view.shape), "[3, 4]");
  EXPECT_EQ(ElementCount({}), 1);
}

}  // namespace
}  // namespace galley
