// SPDX-License-Identifier: Apache-2.0
#include "op_rig.h"

#include <fmt/core.h>

#include <cmath>

namespace galley::conformance {
namespace {

double ValueAt(const Output& output, std::size_t i) {
  if (output.check == Check::kBFloat16) {
    BFloat16 value;
    std::memcpy(&value, output.bytes.data() + i * 2, 2);
    return static_cast<double>(ToFloat(value));
  }
  float value = 0;
  std::memcpy(&value, output.bytes.data() + i * 4, 4);
  return static_cast<double>(value);
}

std::size_t ValueBytes(Check check) {
  return check == Check::kExact ? 1 : check == Check::kBFloat16 ? 2 : 4;
}

std::string PlaceOf(const Output& output, std::size_t i) {
  const std::size_t per_row = output.row_bytes / ValueBytes(output.check);
  return fmt::format("{}[{}][{}]", output.name, i / per_row, i % per_row);
}

std::string ByteComplaint(const Output& ours, const Output& reference) {
  std::size_t differ = 0, first = 0;
  for (std::size_t i = ours.bytes.size(); i-- > 0;) {
    if (ours.bytes[i] != reference.bytes[i]) ++differ, first = i;
  }
  const std::size_t unit = ValueBytes(ours.check);
  const double share = static_cast<double>(differ) / static_cast<double>(ours.bytes.size());
  if (differ == 0 || (ours.check == Check::kList && share <= ours.limit)) return "";
  return fmt::format("{}: byte {:#04x} instead of {:#04x}; {} of {} bytes differ (share {:.3g}, limit {:.3g})\n",
                     PlaceOf(ours, first / unit), std::to_integer<int>(ours.bytes[first]),
                     std::to_integer<int>(reference.bytes[first]), differ, ours.bytes.size(), share, ours.limit);
}

}  // namespace

double Distance(const Output& ours, const Output& reference) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < ours.bytes.size() / ValueBytes(ours.check); ++i) {
    const double a = ValueAt(ours, i), b = ValueAt(reference, i);
    difference += (a - b) * (a - b);
    norm += b * b;
  }
  return std::sqrt(difference) / std::max(std::sqrt(norm), 1e-30);
}

std::string Complaint(const std::vector<Output>& ours, const std::vector<Output>& reference) {
  std::string text;
  for (std::size_t o = 0; o < ours.size(); ++o) {
    const Output &a = ours[o], &b = reference[o];
    if (a.check == Check::kExact || a.check == Check::kList) {
      text += ByteComplaint(a, b);
      continue;
    }
    const double distance = Distance(a, b);
    if (distance <= a.limit) continue;  // false for NaN
    std::size_t worst = 0;
    double most = -1;
    for (std::size_t i = 0; i < a.bytes.size() / ValueBytes(a.check) && most < INFINITY; ++i) {
      const double d = std::fabs(ValueAt(a, i) - ValueAt(b, i));
      if (!(d <= most)) most = std::isnan(d) ? INFINITY : d, worst = i;
    }
    text += fmt::format("{}: {:.6g} instead of {:.6g}; relative L2 {:.3g}, limit {:.3g}\n", PlaceOf(a, worst),
                        ValueAt(a, worst), ValueAt(b, worst), distance, a.limit);
  }
  return text;
}

backend::Weight OpRig::Matrix(backend::WeightFormat format, std::int64_t rows, std::int64_t cols,
                              backend::MatrixUse use) {
  using backend::WeightFormat;
  backend::Weight weight{.format = format, .rows = rows, .cols = cols};
  const auto count = static_cast<std::size_t>(rows * cols);
  const float size = 1.0f / std::sqrt(static_cast<float>(cols));
  // A backend may store weights in an order of its own.
  const auto keep = [&](std::vector<std::uint8_t> bytes) {
    host_weights_.push_back(std::move(bytes));
    return reinterpret_cast<const std::byte*>(host_weights_.back().data());
  };
  if (format == WeightFormat::kBF16) {
    std::vector<std::uint8_t> bytes(count * sizeof(BFloat16));
    for (std::size_t i = 0; i < count; ++i) {
      const BFloat16 value = ToBFloat16(Normal() * size);
      std::memcpy(bytes.data() + i * sizeof(value), &value, sizeof(value));
    }
    const auto placed =
        backend_.UploadMatrix({.dtype = DType::kBF16, .shape = {rows, cols}, .data = keep(std::move(bytes))}, use);
    CHECK(placed) << placed.error().ToString();
    weight.data = *placed;
    return weight;
  }
  if (format == WeightFormat::kF32) {
    weight.data = Floats(count, size);
    return weight;
  }
  const bool fp4 = format == WeightFormat::kMxfp4;
  std::vector<std::uint8_t> codes(fp4 ? count / 2 : count);
  for (std::uint8_t& code : codes) {
    code = fp4 ? static_cast<std::uint8_t>(Integer(0, 255))
               : EncodeE4M3(std::min(448.0f, std::max(-448.0f, Normal() * 16)));
  }
  const std::int64_t groups = (cols + 31) / 32;
  std::vector<std::uint8_t> scales(static_cast<std::size_t>((fp4 ? rows : (rows + 31) / 32) * groups));
  const int center = 127 + static_cast<int>(std::lround(std::log2(size))) - (fp4 ? 1 : 4);
  for (std::uint8_t& scale : scales) scale = static_cast<std::uint8_t>(center + Integer(-1, 1));
  const std::int64_t scale_rows = static_cast<std::int64_t>(scales.size()) / groups;
  const TensorView matrix{.dtype = fp4 ? DType::kI8 : DType::kF8E4M3,
                          .shape = {rows, fp4 ? cols / 2 : cols},
                          .data = keep(std::move(codes))};
  const auto placed = backend_.UploadMatrix(matrix, use);
  CHECK(placed) << placed.error().ToString();
  weight.data = *placed;
  const auto placed_scales = backend_.UploadScales(
      {.dtype = DType::kE8M0, .shape = {scale_rows, groups}, .data = keep(std::move(scales))}, matrix, use);
  CHECK(placed_scales) << placed_scales.error().ToString();
  weight.scales = static_cast<const std::uint8_t*>(*placed_scales);
  return weight;
}

Result<std::vector<Output>> OpRig::Finish() {
  RETURN_IF_ERROR(backend_.Synchronize());
  std::vector<Output> outputs;
  for (Watched& watched : watched_) {
    RETURN_IF_ERROR(backend_.CopyToHost(watched.output.bytes.data(), watched.device, watched.output.bytes.size()));
    outputs.push_back(std::move(watched.output));
  }
  return outputs;
}

}  // namespace galley::conformance
