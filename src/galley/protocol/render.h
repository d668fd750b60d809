// SPDX-License-Identifier: Apache-2.0
// Conversation → prompt text with the byte ranges that are control tokens. Everything outside those ranges is plain
// text, to be tokenized piece by piece with the ordinary vocabulary only, so that text which spells a control token
// never becomes one. Pure functions. The rules are recipe 4 and behaviour 1.3; the fixed texts are what the models
// were trained on and must match byte for byte.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "galley/protocol/conversation.h"

namespace galley::protocol {

// Spellings of the control tokens in the model's vocabulary. The defaults are those of the released tokenizers.
struct SpecialTokens {
  std::string begin_of_sentence = "<｜begin▁of▁sentence｜>";
  std::string end_of_sentence = "<｜end▁of▁sentence｜>";
  std::string system = "<｜System｜>";
  std::string user = "<｜User｜>";
  std::string assistant = "<｜Assistant｜>";
  std::string think_start = "<think>";
  std::string think_end = "</think>";
  std::string dsml = "｜DSML｜";
  std::string latest_reminder = "<｜latest_reminder｜>";
  std::string image = "<｜deepseek_image｜>";
  // Grounding: places in a picture, special in what the assistant says and thinks.
  std::array<std::string, 8> grounding = {"<｜ref｜>",   "<｜/ref｜>",   "<｜box｜>",     "<｜/box｜>",
                                          "<｜point｜>", "<｜/point｜>", "<｜polygon｜>", "<｜/polygon｜>"};

  // Sets the spelling of the token called `name` ("user", "image", "box", "/box", …); false for an unknown name.
  [[nodiscard]] bool Override(std::string_view name, std::string_view spelling);
};

struct ByteRange {
  std::size_t begin = 0;
  std::size_t end = 0;  // one past the last byte

  friend bool operator==(const ByteRange&, const ByteRange&) = default;
};

struct Prompt {
  std::string text;
  std::vector<ByteRange> special;  // ascending, one control token each, never empty
  std::vector<ImageRef> images;    // in prompt order; offsets are those of the messages
};

struct RenderOptions {
  SpecialTokens tokens{};
  // V4 only. The original moves every system message to the front and sorts the calls of a turn by id, which rewrites
  // an old prompt's beginning and so costs the prefix cache. True keeps system messages where they stand, as user
  // text, and calls in their order.
  bool keep_order = false;
};

// Any conversation renders; texts are taken as they are.
[[nodiscard]] Prompt RenderConversation(const Conversation& conversation, ModelVersion version,
                                        const RenderOptions& options = {});

// Fill in the middle: the model writes what stands between `prefix` and `suffix`.
[[nodiscard]] Prompt RenderFim(std::string_view prefix, std::string_view suffix);

// A bare text after the begin-of-sentence token, for legacy completions without a suffix.
[[nodiscard]] Prompt RenderText(std::string_view text);

// Names of the three DSML tags. V4.1's begin with a blank, so that the word is one ordinary token.
struct DsmlNames {
  std::string_view block;
  std::string_view invoke;
  std::string_view parameter;
};
[[nodiscard]] DsmlNames NamesOf(ModelVersion version);

}  // namespace galley::protocol
