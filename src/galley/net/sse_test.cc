// SPDX-License-Identifier: Apache-2.0
#include "galley/net/sse.h"

#include <gtest/gtest.h>

namespace galley::net {
namespace {

TEST(Sse, EveryLineOfDataIsAFieldOfTheEvent) {
  const auto written = [](std::string_view event, std::string_view data) {
    std::string out = "before ";
    AppendSse(out, event, data);
    return out;
  };
  EXPECT_EQ(written("", "[DONE]"), "before data: [DONE]\n\n");
  EXPECT_EQ(written("x", "a\nb\r\nc\rd"), "before event: x\ndata: a\ndata: b\ndata: c\ndata: d\n\n");
  EXPECT_EQ(written("x", ""), "before event: x\ndata: \n\n");
  EXPECT_EQ(written("", " space\n"), "before data:  space\ndata: \n\n");
}

}  // namespace
}  // namespace galley::net
