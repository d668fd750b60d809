// SPDX-License-Identifier: Apache-2.0
// Weights that FinishUploads reads from a file lie on the device as those do that are copied and arranged whole.
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "galley/backend/cuda/cuda_backend.h"
#include "galley/io/mapped_file.h"
#include "galley/io/test_files.h"

namespace galley::backend {
namespace {

struct Case {
  DType dtype;
  std::int64_t rows, cols;  // of values
};

// Panels of 64 and of 16 rows, no tiles, no order of its own; each small and larger than a buffer of 16 MiB.
constexpr Case kCases[] = {
    {DType::kF8E4M3, 128, 256},   {DType::kF8E4M3, 80, 128},    {DType::kF8E4M3, 33, 96},
    {DType::kI8, 128, 256},       {DType::kI8, 144, 128},       {DType::kI8, 33, 96},
    {DType::kBF16, 33, 70},       {DType::kF8E4M3, 2112, 8192}, {DType::kF8E4M3, 2128, 8192},
    {DType::kF8E4M3, 2100, 8160}, {DType::kI8, 4224, 8192},     {DType::kI8, 4240, 8192},
    {DType::kI8, 4200, 8160},     {DType::kBF16, 2000, 5120},   {DType::kBF16, 32768, 1024},
};

struct Tensors {
  TensorView matrix, scales;  // no scales of bf16
};

// The tensors of the cases, one behind the other from `data` on.
std::vector<Tensors> Lay(const std::byte* data) {
  std::vector<Tensors> all;
  for (const Case& c : kCases) {
    Tensors& t = all.emplace_back();
    t.matrix = {c.dtype, {c.rows, c.dtype == DType::kI8 ? c.cols / 2 : c.cols}, data};
    data += t.matrix.bytes();
    if (c.dtype == DType::kBF16) continue;
    t.scales = {DType::kE8M0, {c.dtype == DType::kI8 ? c.rows : (c.rows + 31) / 32, (c.cols + 31) / 32}, data};
    data += t.scales.bytes();
  }
  return all;
}

std::vector<std::string> Uploaded(Backend& backend, const std::vector<Tensors>& tensors, MatrixUse use) {
  std::vector<const void*> places;
  std::vector<std::size_t> sizes;
  for (const Tensors& t : tensors) {
    places.push_back(backend.UploadMatrix(t.matrix, use).value());
    sizes.push_back(t.matrix.bytes());
    if (t.scales.empty()) continue;
    places.push_back(backend.UploadScales(t.scales, t.matrix, use).value());
    sizes.push_back(t.scales.bytes());
  }
  const Status finished = backend.FinishUploads();
  EXPECT_TRUE(finished) << finished.error().ToString();
  std::vector<std::string> bytes;
  EXPECT_TRUE(backend.Synchronize());
  for (std::size_t i = 0; i < places.size(); ++i) {
    std::string& copy = bytes.emplace_back(sizes[i], '\0');
    if (use == MatrixUse::kChosen) {
      std::memcpy(copy.data(), places[i], sizes[i]);
    } else {
      EXPECT_TRUE(backend.CopyToHost(copy.data(), places[i], sizes[i]));
    }
  }
  return bytes;
}

TEST(UploadCuda, FromFilesAsFromMemory) {
  constexpr std::size_t kOdd = 7;  // the file aligns nothing
  static const std::byte kSomewhere{};
  std::size_t size = kOdd;
  for (const Tensors& t : Lay(&kSomewhere)) size += t.matrix.bytes() + (t.scales.empty() ? 0 : t.scales.bytes());
  std::mt19937_64 random(11);
  std::string content(size, '\0');
  for (std::size_t i = 0; i + 8 <= size; i += 8) {
    const std::uint64_t value = random();
    std::memcpy(content.data() + i, &value, 8);
  }
  const io::TempDir dir;
  io::WriteBytes(dir / "weights", content);
  const auto file = io::MappedFile::Open(dir / "weights");
  ASSERT_TRUE(file);

  const io::WeightFile weights{file->bytes(), dir / "weights"};
  const auto tensors = Lay(file->bytes().data() + kOdd);
  std::vector<std::string> expected;
  // As every matrix lies on the device, and as those of experts lie in main memory.
  for (const MatrixUse use : {MatrixUse::kEveryStep, MatrixUse::kChosen}) {
    const auto copying = MakeCudaBackend({.experts_at = WeightPlace::kHost}),
               reading = MakeCudaBackend({.experts_at = WeightPlace::kHost});
    ASSERT_TRUE(copying) << copying.error().ToString();
    ASSERT_TRUE(reading);
    std::uint64_t done = 0;
    (*reading)->UseFiles({&weights, 1}, [&](std::uint64_t now, std::uint64_t) {
      done = now;
      return true;
    });
    const std::vector<std::string> copied = Uploaded(**copying, tensors, use), got = Uploaded(**reading, tensors, use);
    if (expected.empty()) expected = copied;
    EXPECT_EQ(done, size - kOdd);
    ASSERT_EQ(expected.size(), got.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
      EXPECT_TRUE(expected[i] == copied[i]) << "tensor " << i;
      EXPECT_TRUE(expected[i] == got[i]) << "tensor " << i;
    }
  }
}

// Rows of a table in main memory, from a file and copied, and on disk are those of one on the device.
TEST(UploadCuda, TablesElsewhereGiveTheSameRows) {
  constexpr std::int64_t kRows = 3000, kDim = 256;
  std::mt19937_64 random(12);
  std::string content(static_cast<std::size_t>(kRows * (kDim + kDim / 32)), '\0');
  for (char& c : content) c = static_cast<char>(random() % 126);  // finite codes, scales up to 2^-2
  const io::TempDir dir;
  io::WriteBytes(dir / "table", content);
  const auto file = io::MappedFile::Open(dir / "table");
  ASSERT_TRUE(file);
  const TensorView codes{DType::kF8E4M3, {kRows, kDim}, file->bytes().data()};
  const TensorView scales{DType::kE8M0, {kRows, kDim / 32}, codes.data + codes.bytes()};
  const std::vector<std::int32_t> rows = {0, 2999, 17, 17, 1500};

  std::vector<std::string> gathered;
  for (const auto& [place, from_file] : {std::pair(WeightPlace::kDevice, false), std::pair(WeightPlace::kHost, false),
                                         std::pair(WeightPlace::kHost, true), std::pair(WeightPlace::kDisk, true)}) {
    const auto backend = MakeCudaBackend({.engram_at = place});
    ASSERT_TRUE(backend) << backend.error().ToString();
    const io::WeightFile table{file->bytes(), dir / "table"};
    if (from_file) (*backend)->UseFiles({&table, 1}, {});
    const auto placed_codes = (*backend)->UploadTable(codes), placed_scales = (*backend)->UploadTable(scales);
    ASSERT_TRUE(placed_codes && placed_scales);
    ASSERT_TRUE((*backend)->FinishUploads());
    const auto numbers = (*backend)->Allocate(rows.size() * 4, "rows"), out = (*backend)->Allocate(5 * kDim * 2, "out");
    ASSERT_TRUE(numbers && out);
    ASSERT_TRUE((*backend)->CopyToDevice(numbers->data(), rows.data(), rows.size() * 4));
    (*backend)->EngramGather({.rows = 5,
                              .columns = 1,
                              .dim = static_cast<int>(kDim),
                              .row_numbers = numbers->as<std::int32_t>(),
                              .codes = static_cast<const std::uint8_t*>(*placed_codes),
                              .scales = static_cast<const std::uint8_t*>(*placed_scales),
                              .out = out->as<BFloat16>()});
    ASSERT_TRUE((*backend)->Synchronize());
    ASSERT_TRUE((*backend)->CopyToHost(gathered.emplace_back(out->bytes(), '\0').data(), out->data(), out->bytes()));
  }
  EXPECT_NE(gathered[0], std::string(gathered[0].size(), '\0'));
  for (std::size_t i = 1; i < gathered.size(); ++i) EXPECT_TRUE(gathered[0] == gathered[i]) << i;
}

}  // namespace
}  // namespace galley::backend
