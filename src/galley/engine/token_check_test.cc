// SPDX-License-Identifier: Apache-2.0
#include "galley/engine/token_check.h"

#include <gtest/gtest.h>

namespace galley::engine {
namespace {

TEST(TokenCheck, NamesTheIdAndItsPlace) {
  model::Config config;
  config.vocab_size = 10;
  config.image_token_id = 9;
  EXPECT_TRUE(CheckPromptIds(std::vector<TokenId>{0, 8}, config, "prompt"));
  EXPECT_TRUE(CheckPromptIds({}, config, "prompt"));
  for (const TokenId bad : {-1, 10}) {
    const Status status = CheckPromptIds(std::vector<TokenId>{1, bad}, config, "prompt");
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(status.error().message.find(std::to_string(bad) + " at place 1"), std::string::npos)
        << status.error().message;
  }
  const Status image = CheckPromptIds(std::vector<TokenId>{9}, config, "prompt");
  ASSERT_FALSE(image);
  EXPECT_EQ(image.error().code, ErrorCode::kUnsupported);
  EXPECT_TRUE(CheckVocabulary(std::vector<TokenId>{9}, config, "stop ids")) << "as a stop id it does no harm";
}

}  // namespace
}  // namespace galley::engine
