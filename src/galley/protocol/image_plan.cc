// SPDX-License-Identifier: Apache-2.0
#include "galley/protocol/image_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "galley/base/base64.h"

namespace galley::protocol {
namespace {

constexpr int kPatch = 14;
constexpr int kCell = 3 * kPatch;  // one token covers 3 × 3 patches
constexpr int kTokensMax = 1024;
constexpr int kAreaMin = 544 * 544;  // smaller pictures are scaled up to it
constexpr int kSideMax = 16380;      // multiple of 14 below the WebP limit of 16,383
constexpr int kLowDetailSide = 512;
constexpr int kRounds = 10;

int RoundUp(int value, int unit) {
  return (value + unit - 1) / unit * unit;
}

int GridTokens(int width, int height) {
  const int columns = RoundUp(width, kCell) / kCell, rows = RoundUp(height, kCell) / kCell;
  return rows * (columns + 1) + 2;  // a line end after each row, and a start and an end
}

ImagePlan PlanOnce(ImageSize size) {
  double w = size.width, h = size.height;
  if (w * h < kAreaMin) {
    const double scale = std::sqrt(kAreaMin / (w * h));
    w = std::floor(w * scale);
    h = std::floor(h * scale);
  }
  ImagePlan plan;
  plan.size = {RoundUp(static_cast<int>(w), kPatch), RoundUp(static_cast<int>(h), kPatch)};
  plan.tokens = GridTokens(plan.size.width, plan.size.height);
  if (plan.tokens <= kTokensMax) return plan;
  // Largest grid of the same shape within the limit: rows · (columns + 1) = 1,022 solved for columns.
  const double ratio = h / w;
  const double columns = std::sqrt((kTokensMax - 2) / ratio + 0.25) - 0.5, rows = columns * ratio;
  if (columns < 1) {
    plan.size = {kCell, (kTokensMax - 2) / 2 * kCell};
  } else if (rows < 1) {
    plan.size = {(kTokensMax - 3) * kCell, kCell};
  } else {
    const double scale = std::min(std::floor(columns) * kCell / w, std::floor(rows) * kCell / h);
    plan.size = {static_cast<int>(std::floor(w * scale / kPatch)) * kPatch,
                 static_cast<int>(std::floor(h * scale / kPatch)) * kPatch};
  }
  plan.tokens = GridTokens(plan.size.width, plan.size.height);
  return plan;
}

// Scaling can change the shape so that the plan of the result is another one: repeat until it is not.
ImagePlan PlanStable(ImageSize size, int side_max) {
  ImagePlan plan;
  for (int round = 0; round < kRounds; ++round) {
    plan = PlanOnce(size);
    plan.size.width = std::min(plan.size.width, side_max);
    plan.size.height = std::min(plan.size.height, side_max);
    if (plan.size == size) break;
    size = plan.size;
  }
  return plan;
}

// Reading headers -----------------------------------------------------------------------------------------------------

class Bytes {
 public:
  explicit Bytes(std::string_view data) : data_(data) {}
  [[nodiscard]] std::size_t size() const { return data_.size(); }
  [[nodiscard]] bool StartsWith(std::string_view head, std::size_t at = 0) const {
    return data_.size() >= at && data_.substr(at).starts_with(head);
  }
  // Unsigned integers at `at`; 0 beyond the end.
  [[nodiscard]] std::uint32_t At(std::size_t at) const {
    return at < data_.size() ? static_cast<unsigned char>(data_[at]) : 0u;
  }
  [[nodiscard]] std::uint32_t Big16(std::size_t at) const { return At(at) << 8 | At(at + 1); }
  [[nodiscard]] std::uint32_t Big32(std::size_t at) const { return Big16(at) << 16 | Big16(at + 2); }
  [[nodiscard]] std::uint32_t Little16(std::size_t at) const { return At(at) | At(at + 1) << 8; }
  [[nodiscard]] std::uint32_t Little24(std::size_t at) const { return Little16(at) | At(at + 2) << 16; }
  [[nodiscard]] std::uint32_t Little32(std::size_t at) const { return Little16(at) | Little16(at + 2) << 16; }

 private:
  std::string_view data_;
};

using MaybeSize = std::optional<ImageSize>;

MaybeSize Sized(std::uint32_t width, std::uint32_t height) {
  constexpr std::uint32_t kLimit = 1u << 30;
  if (width == 0 || height == 0 || width > kLimit || height > kLimit) return std::nullopt;
  return ImageSize{static_cast<int>(width), static_cast<int>(height)};
}

MaybeSize PngSize(const Bytes& file) {
  constexpr std::size_t kSignature = 8, kChunkFrame = 12;
  std::size_t at = kSignature;
  while (at + kChunkFrame <= file.size()) {
    if (file.StartsWith("IEND", at + 4)) return Sized(file.Big32(kSignature + 8), file.Big32(kSignature + 12));
    const std::size_t length = file.Big32(at);
    if (length > file.size()) break;
    at += kChunkFrame + length;
  }
  return std::nullopt;
}

MaybeSize GifSize(const Bytes& file) {
  constexpr std::uint32_t kTrailer = 0x3B;
  if (file.At(file.size() - 1) != kTrailer) return std::nullopt;
  return Sized(file.Little16(6), file.Little16(8));
}

MaybeSize JpegSize(const Bytes& file) {
  std::size_t at = 2;
  while (at + 4 <= file.size()) {
    if (file.At(at) != 0xFF) return std::nullopt;
    const std::uint32_t marker = file.At(at + 1);
    if (marker == 0xFF) {  // padding
      ++at;
      continue;
    }
    // Frame headers are C0–CF without the tables and extensions among them.
    const bool frame = marker >= 0xC0 && marker <= 0xCF && marker != 0xC4 && marker != 0xC8 && marker != 0xCC;
    if (frame) return at + 9 <= file.size() ? Sized(file.Big16(at + 7), file.Big16(at + 5)) : std::nullopt;
    at += 2 + file.Big16(at + 2);
  }
  return std::nullopt;
}

MaybeSize WebpSize(const Bytes& file) {
  constexpr std::size_t kRiffFrame = 8;
  if (kRiffFrame + file.Little32(4) > file.size()) return std::nullopt;
  if (file.StartsWith("VP8X", 12)) return Sized(file.Little24(24) + 1, file.Little24(27) + 1);
  if (file.StartsWith("VP8L", 12)) {
    const std::uint32_t bits = file.Little32(21);
    return Sized((bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1);
  }
  if (file.StartsWith("VP8 ", 12)) return Sized(file.Little16(26) & 0x3FFF, file.Little16(28) & 0x3FFF);
  return std::nullopt;
}

struct FileKind {
  std::string_view head;
  MaybeSize (*size)(const Bytes&);
};
constexpr std::array<FileKind, 4> kFileKinds = {
    {{"\x89PNG\r\n\x1a\n", PngSize}, {"\xff\xd8\xff", JpegSize}, {"GIF8", GifSize}, {"RIFF", WebpSize}}};

}  // namespace

ImagePlan PlanImage(ImageSize source, ImageDetail detail) {
  const int longest = std::max(source.width, source.height);
  if (detail == ImageDetail::kLow && longest > kLowDetailSide) {
    const double scale = static_cast<double>(kLowDetailSide) / longest;
    source.width = std::max(1, static_cast<int>(std::lround(source.width * scale)));
    source.height = std::max(1, static_cast<int>(std::lround(source.height * scale)));
  }
  return PlanStable(source, kSideMax);
}

int ImageTokens(ImageSize scaled) {
  return PlanStable(scaled, 1 << 30).tokens;
}

Result<ImageSize> ReadImageSize(std::string_view file) {
  const Bytes bytes(file);
  for (const FileKind& kind : kFileKinds) {
    if (!file.starts_with(kind.head)) continue;
    if (const MaybeSize size = kind.size(bytes)) return *size;
    return Err(ErrorCode::kCorrupt, "the picture is cut off or its header is damaged");
  }
  return Err(ErrorCode::kUnsupported, "not a PNG, JPEG, GIF or WebP picture");
}

tl::expected<ImageBudget, ImageError> PlanImages(const std::vector<ImageRef>& images, const RequestLimits& limits) {
  constexpr int kSidePixelsMax = 8192, kSidePixelsMaxOfMany = 4096;
  constexpr std::size_t kMany = 15;
  const auto fail = [](std::string kind, std::string message) {
    return tl::unexpected<ImageError>(ImageError{std::move(kind), std::move(message)});
  };
  if (images.size() > limits.images_max)
    return fail("TooManyImages", fmt::format("{}: Too many images: max {} images per request, got {}",
                                             images.front().path, limits.images_max, images.size()));
  const int side_max = images.size() >= kMany ? kSidePixelsMaxOfMany : kSidePixelsMax;
  ImageBudget budget;
  for (std::size_t i = 0; i < images.size(); ++i) {
    const std::string message = fmt::format(
        "{}.image[{}]: You have uploaded an unsupported image. Please make sure your image is valid and has "
        "one of the following formats: webp, png, jpeg, and gif.",
        images[i].path, i);
    const std::string_view url = images[i].url;
    const std::size_t comma = url.find(',');
    if (!images[i].is_data_url() || comma == std::string_view::npos) return fail("UnsupportedMediaType", message);
    const std::string file = Base64Decode(url.substr(comma + 1));
    const Result<ImageSize> size = ReadImageSize(file);
    if (!size)
      return fail(size.error().code == ErrorCode::kUnsupported ? "UnsupportedMediaType" : "EmptyImage", message);
    if (std::max(size->width, size->height) > side_max) return fail("ImageDimensionsTooLarge", message);
    const ImagePlan plan = PlanImage(*size, images[i].detail);
    budget.sizes.push_back(plan.size);
    budget.image_token_adjustment += plan.tokens - 1;
    budget.bytes += static_cast<std::int64_t>(file.size());
  }
  return budget;
}

}  // namespace galley::protocol
