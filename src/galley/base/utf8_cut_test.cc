// SPDX-License-Identifier: Apache-2.0
#include "galley/base/utf8_cut.h"

#include <gtest/gtest.h>

namespace galley {
namespace {

TEST(CutUtf8, NoCharacterIsCutInTwo) {
  EXPECT_EQ(CutUtf8("abc", 3), "abc");
  EXPECT_EQ(CutUtf8("abcd", 3), "abc");
  EXPECT_EQ(CutUtf8("", 0), "");
  const std::string_view smile = "a\xF0\x9F\x98\x80z";  // 1 + 4 + 1 bytes
  for (const std::size_t inside : {1u, 2u, 3u, 4u}) EXPECT_EQ(CutUtf8(smile, inside), "a") << inside;
  EXPECT_EQ(CutUtf8(smile, 5), smile.substr(0, 5));
  EXPECT_EQ(CutUtf8(smile, 6), smile);
}

TEST(CutUtf8, BytesThatBelongToNoCharacterAreNotAllDropped) {
  EXPECT_EQ(CutUtf8("\x80\x80\x80\x80\x80\x80\x80\x80\x80", 8).size(), 5u);
  EXPECT_EQ(CutUtf8("\x80\x80\x80", 2), "");
}

}  // namespace
}  // namespace galley
