// SPDX-License-Identifier: Apache-2.0
// Sizes of pictures: what a picture's file says, what size it is scaled to before the vision tower sees it, and how
// many tokens that takes (v41 2.11). Only file headers are read; decoding pixels is the model's side. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "galley/base/error.h"
#include "galley/protocol/conversation.h"
#include "galley/protocol/request.h"

namespace galley::protocol {

struct ImageSize {
  int width = 0;   // pixels
  int height = 0;  // pixels

  friend bool operator==(const ImageSize&, const ImageSize&) = default;
};

struct ImagePlan {
  ImageSize size;  // after scaling: multiples of 14
  int tokens = 0;  // all tokens of the picture, the placeholder included
};

// Size and tokens of a picture whose sides are at least 1.
[[nodiscard]] ImagePlan PlanImage(ImageSize source, ImageDetail detail);
// Tokens of a picture that was scaled before.
[[nodiscard]] int ImageTokens(ImageSize scaled);

// Width and height in the header of a PNG, JPEG, GIF or WebP file that is there to its end. kUnsupported: another kind
// of file; kCorrupt: the file is cut off or its header makes no sense.
[[nodiscard]] Result<ImageSize> ReadImageSize(std::string_view file);

struct ImageError {
  std::string kind;  // "TooManyImages", "ImageDimensionsTooLarge", "UnsupportedMediaType", "EmptyImage"
  std::string message;
};
struct ImageBudget {
  std::vector<ImageSize> sizes;             // after scaling, in prompt order
  std::int64_t image_token_adjustment = 0;  // what pictures add to the prompt beyond their placeholders
  std::int64_t bytes = 0;                   // of the files
};
// Plans all pictures of a prompt. Pictures at web addresses must have been fetched before and be passed as data URLs.
[[nodiscard]] tl::expected<ImageBudget, ImageError> PlanImages(const std::vector<ImageRef>& images,
                                                               const RequestLimits& limits = {});

}  // namespace galley::protocol
