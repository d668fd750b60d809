// SPDX-License-Identifier: Apache-2.0
#include "galley/base/error.h"

#include <gtest/gtest.h>

#include <set>

#include "galley/base/check.h"

namespace galley {
namespace {

Result<int> Half(int x) {
  if (x % 2 != 0) return Err(ErrorCode::kInvalidArgument, "3 is odd; pass an even number", "x");
  return x / 2;
}

Result<int> Quarter(int x) {
  ASSIGN_OR_RETURN(const int half, Half(x));
  ASSIGN_OR_RETURN(const int quarter, Half(half));
  return quarter;
}

Status OnlyEven(int x) {
  RETURN_IF_ERROR(Half(x));
  return {};
}

TEST(Error, MacrosPassValuesAndErrors) {
  EXPECT_EQ(*Quarter(8), 2);
  const Result<int> failed = Quarter(6);  // 6 / 2 = 3 is odd
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(failed.error().ToString(), "x: 3 is odd; pass an even number");
  EXPECT_TRUE(OnlyEven(2));
  EXPECT_FALSE(OnlyEven(3));
}

TEST(Error, EveryCodeHasItsOwnLabelAndExitCode) {
  std::set<std::string_view> labels;
  std::set<int> exits;
  constexpr int kCodes = static_cast<int>(ErrorCode::kInternal) + 1;
  for (int i = 0; i < kCodes; ++i) {
    const ErrorCodeInfo& info = Info(static_cast<ErrorCode>(i));
    EXPECT_TRUE(labels.insert(info.label).second) << info.label;
    EXPECT_TRUE(exits.insert(info.exit_code).second) << info.label;
    EXPECT_NE(info.exit_code, 0);
    EXPECT_GE(info.http_status, 400);
  }
}

TEST(CheckDeathTest, PrintsExpressionAndValues) {
  const int blocks = -1;
  EXPECT_DEATH(CHECK(blocks >= 0) << "blocks = " << blocks, "CHECK\\(blocks >= 0\\) failed blocks = -1");
}

}  // namespace
}  // namespace galley
