// SPDX-License-Identifier: Apache-2.0
#include "galley/protocol/codec_serve.h"

#include <fmt/format.h>

#include <array>
#include <string>
#include <vector>

#include "galley/protocol/codec_case.h"
#include "galley/protocol/image_plan.h"
#include "galley/protocol/shape.h"
#include "galley/text/utf8.h"

namespace galley::protocol {
namespace {

using internal::RunRenderCase;
using internal::RunStreamCase;

// How a value appears in a prompt: as the argument of a call.
Json RunNumberCase(const Json& row, const CodecServeOptions&) {
  const Result<Json> value = ParseJson(Text(row, "json"));
  if (!value) return Json::MakeObject({{"json", Get(row, "json")}, {"invalid", true}});
  const std::string* string = value->if_string();
  const std::string v41 = string != nullptr ? *string : DumpJson(*value, JsonStyle::kPromptV41);
  const std::string v4 = string != nullptr ? *string : DumpJson(*value, JsonStyle::kPromptV4);
  Json result = Json::MakeObject({{"json", Get(row, "json")}, {"string", string != nullptr}, {"text", v41}});
  if (v4 != v41) result.Set("text_v4", v4);
  return result;
}

Json RunImageCase(const Json& row, const CodecServeOptions&) {
  constexpr std::uint64_t kLargestSide = 1 << 20;
  const std::uint64_t width = Unsigned(Get(row, "width")), height = Unsigned(Get(row, "height"));
  if (width < 1 || height < 1 || width > kLargestSide || height > kLargestSide)
    return Json::MakeObject(
        {{"error", fmt::format("width {} and height {} must be within [1, {}]", width, height, kLargestSide)}});
  const ImageSize size{static_cast<int>(width), static_cast<int>(height)};
  Json result = Json::MakeObject({{"kind", Get(row, "kind")}});
  if (Text(row, "kind") == "tokens") {
    result.Set("width", Json(width)).Set("height", Json(height)).Set("tokens", ImageTokens(size));
    return result;
  }
  const std::string_view detail = Text(row, "detail");
  const ImagePlan plan = PlanImage(size, detail == "low" ? ImageDetail::kLow : ImageDetail::kHigh);
  result.Set("detail", Json(detail)).Set("width", Json(width)).Set("height", Json(height));
  result.Set("result", Json(Json::Array{plan.size.width, plan.size.height})).Set("tokens", plan.tokens);
  return result;
}

Json RunTokenizeCase(const Json& row, const CodecServeOptions& options) {
  if (options.tokenizer == nullptr) return Json::MakeObject({{"error", "needs a tokenizer"}});
  std::string text(Text(row, "text"));
  if (const std::span<const Json> repeat = Elements(Get(row, "repeat")); repeat.size() == 2) {
    constexpr std::size_t kLargestText = 64u << 20;
    for (std::uint64_t n = Unsigned(repeat[1]); n > 0 && text.size() < kLargestText; --n) text += Text(repeat[0]);
  }
  const auto all = options.tokenizer->Encode(text, text::AddedTokens::kMatch);
  const auto plain = options.tokenizer->Encode(text, text::AddedTokens::kAsText);
  if (!all || !plain) return Json::MakeObject({{"error", (all ? plain : all).error().message}});
  Json result = Json::MakeObject({{"ids", internal::IdsJson(*all)}});
  if (*plain != *all) result.Set("plain", internal::IdsJson(*plain));
  return result;
}

// The plain string behind `"key":` in a line that is not JSON, so that its answer can be told apart; null without one.
Json StringInBrokenLine(std::string_view line, std::string_view key) {
  const std::size_t at = line.find(fmt::format("\"{}\":", key));
  if (at == std::string_view::npos) return {};
  const std::size_t begin = line.find('"', at + key.size() + 3);
  const std::size_t end = begin == std::string_view::npos ? begin : line.find('"', begin + 1);
  if (end == std::string_view::npos) return {};
  const std::string_view text = line.substr(begin + 1, end - begin - 1);
  return text.find('\\') == std::string_view::npos && text::IsValidUtf8(text) ? Json(text) : Json();
}

Json BrokenLine(std::string_view line, const Error& error) {
  Json result(Json::Object{});
  for (std::string_view key : {"file", "id"})
    if (Json value = StringInBrokenLine(line, key); !value.is_null()) result.Set(key, std::move(value));
  return result.Set("error", error.message);
}

struct Kind {
  std::string_view file;
  Json (*run)(const Json& row, const CodecServeOptions& options);
};
constexpr std::array<Kind, 5> kKinds = {{{"render", RunRenderCase},
                                         {"stream", RunStreamCase},
                                         {"numbers", RunNumberCase},
                                         {"images", RunImageCase},
                                         {"tokenize", RunTokenizeCase}}};

}  // namespace

Json RunCodecCase(const Json& row, const CodecServeOptions& options) {
  const std::string_view file = Text(row, "file");
  Json result = Json::MakeObject({{"file", Get(row, "file")}, {"id", Get(row, "id")}});
  for (const Kind& kind : kKinds) {
    if (file.substr(0, file.find('.')) != kind.file) continue;
    const Json members = kind.run(row, options);
    for (const Json::Member& member : *members.if_object()) result.Set(member.key, member.value);
    return result;
  }
  return result.Set("error", fmt::format("file `{}` is not one of render, stream, numbers, images, tokenize", file));
}

std::string AnswerCodecLine(std::string_view line, const CodecServeOptions& options) {
  constexpr int kCaseDepthMax = 1000;  // deeper than a request may be, so that such requests can be cases
  const Result<Json> row = ParseJson(line, {.depth_max = kCaseDepthMax});
  return DumpJson(row ? RunCodecCase(*row, options) : BrokenLine(line, row.error()));
}

}  // namespace galley::protocol
