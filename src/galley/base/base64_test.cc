// SPDX-License-Identifier: Apache-2.0
#include "galley/base/base64.h"

#include <gtest/gtest.h>

namespace galley {
namespace {

// The vectors of RFC 4648, section 10.
TEST(Base64, BothWays) {
  constexpr std::pair<std::string_view, std::string_view> kRows[] = {{"", ""},
                                                                     {"f", "Zg=="},
                                                                     {"fo", "Zm8="},
                                                                     {"foo", "Zm9v"},
                                                                     {"foob", "Zm9vYg=="},
                                                                     {"fooba", "Zm9vYmE="},
                                                                     {"foobar", "Zm9vYmFy"},
                                                                     {"\xFB\xFF\xBE", "+/++"}};
  for (const auto& [bytes, text] : kRows) {
    EXPECT_EQ(Base64Encode(bytes), text);
    EXPECT_EQ(Base64Decode(text), bytes);
  }
  EXPECT_EQ(Base64Decode("Zm9v*YmFy"), "foo") << "up to what is not of the alphabet";
  EXPECT_EQ(Base64Decode("Z"), "") << "six bits are no byte";
}

}  // namespace
}  // namespace galley
