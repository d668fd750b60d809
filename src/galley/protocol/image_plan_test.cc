// SPDX-License-Identifier: Apache-2.0
// File headers and what is refused; sizes and tokens are covered by the vectors.
#include "galley/protocol/image_plan.h"

#include <gtest/gtest.h>

#include "galley/base/base64.h"

namespace galley::protocol {
namespace {

using namespace std::string_literals;

std::string Png(std::uint8_t width, std::uint8_t height) {
  return "\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR\0\0"s + '\x01' + static_cast<char>(width) + "\0\0"s + '\x02' +
         static_cast<char>(height) + "\x08\x02\0\0\0CRC1\0\0\0\0IEND"s + "CRC2";
}
const std::string kJpeg = "\xff\xd8\xff\xe0\0\x04xx\xff\xff\xc0\0\x0b\x08\0\x10\0\x20"s;
const std::string kGif = "GIF89a\x05\0\x06\0\0\0\x3b"s;
std::string Webp(std::string_view rest) {
  return "RIFF"s + static_cast<char>(rest.size() + 4) + "\0\0\0WEBP"s + std::string(rest);
}

TEST(ImageSize, IsReadFromFourKindsOfFile) {
  EXPECT_EQ(*ReadImageSize(Png(4, 5)), (ImageSize{260, 517}));
  EXPECT_EQ(*ReadImageSize(kJpeg), (ImageSize{32, 16}));
  EXPECT_EQ(*ReadImageSize(kGif), (ImageSize{5, 6}));
  EXPECT_EQ(*ReadImageSize(Webp("VP8X\x0a\0\0\0\0\0\0\0\x09\0\0\x13\0\0"s)), (ImageSize{10, 20}));
  EXPECT_EQ(*ReadImageSize(Webp("VP8L\x05\0\0\0\x2f\x63\x40\x0c\0"s)), (ImageSize{100, 50}));
  EXPECT_EQ(*ReadImageSize(Webp("VP8 \x0a\0\0\0\0\0\0\x9d\x01\x2a\x40\0\x30\0"s)), (ImageSize{64, 48}));
}

TEST(ImageSize, EveryCutIsDamage) {
  for (const std::string& file : {Png(4, 5), kJpeg, kGif, Webp("VP8X\x0a\0\0\0\0\0\0\0\x09\0\0\x13\0\0"s)}) {
    for (std::size_t n = 8; n < file.size() - 4; ++n) EXPECT_FALSE(ReadImageSize(file.substr(0, n)).has_value()) << n;
  }
  EXPECT_EQ(ReadImageSize("").error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(ReadImageSize("BM whatever").error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(ReadImageSize("GIF8").error().code, ErrorCode::kCorrupt);
}

ImageRef At(std::string url) {
  ImageRef image;
  image.url = std::move(url);
  image.path = "messages[0]";
  return image;
}

TEST(PlanImages, RefusesByKind) {
  EXPECT_EQ(Base64Decode("R0lGODlhBQAGAAAAOw=="), kGif);
  const auto good = PlanImages({At("data:image/gif;base64,R0lGODlhBQAGAAAAOw==")});
  ASSERT_TRUE(good.has_value());
  EXPECT_EQ(good->bytes, 13);
  EXPECT_EQ(good->sizes.size(), 1u);

  const auto kind = [](const std::vector<ImageRef>& images) -> std::string {
    const auto plan = PlanImages(images, {.images_max = 2});
    return plan.has_value() ? "accepted" : plan.error().kind;
  };
  EXPECT_EQ(kind({At("https://x/y.png")}), "UnsupportedMediaType");
  EXPECT_EQ(kind({At("data:image/png;base64,AAAA")}), "UnsupportedMediaType");
  EXPECT_EQ(kind({At("data:image/gif;base64,R0lG")}), "UnsupportedMediaType");
  EXPECT_EQ(kind({At("data:image/gif;base64,R0lGOA==")}), "EmptyImage");
  EXPECT_EQ(kind({At("data:image/gif;base64,R0lGODlhASD//wAAOw==")}), "ImageDimensionsTooLarge");
  EXPECT_EQ(kind({At("a"), At("b"), At("c")}), "TooManyImages");
}

}  // namespace
}  // namespace galley::protocol
