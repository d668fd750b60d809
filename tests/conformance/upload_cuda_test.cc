// SPDX-License-Identifier: Apache-2.0
// Weights that FinishUploads reads from a file lie on the device as those do that are copied and arranged whole.
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
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
    {DType::kF8E4M3, 128, 256},   {DType::kF8E4M3, 80, 128},    {DType::kF8E4M3, 33, 96}, {DType::kI8, 128, 256},
    {DType::kI8, 144, 128},       {DType::kI8, 33, 96},         {DType::kBF16, 33, 70},   {DType::kF8E4M3, 2112, 8192},
    {DType::kF8E4M3, 2128, 8192}, {DType::kF8E4M3, 2100, 8160}, {DType::kI8, 4224, 8192}, {DType::kI8, 4240, 8192},
    {DType::kI8, 4200, 8160},     {DType::kBF16, 2000, 5120},
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

std::vector<std::string> OnDevice(Backend& backend, const std::vector<Tensors>& tensors) {
  std::vector<const void*> places;
  std::vector<std::size_t> sizes;
  for (const Tensors& t : tensors) {
    places.push_back(backend.UploadMatrix(t.matrix).value());
    sizes.push_back(t.matrix.bytes());
    if (t.scales.empty()) continue;
    places.push_back(backend.UploadScales(t.scales, t.matrix).value());
    sizes.push_back(t.scales.bytes());
  }
  const Status finished = backend.FinishUploads();
  EXPECT_TRUE(finished) << finished.error().ToString();
  std::vector<std::string> bytes;
  for (std::size_t i = 0; i < places.size(); ++i)
    EXPECT_TRUE(backend.CopyToHost(bytes.emplace_back(sizes[i], '\0').data(), places[i], sizes[i]));
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

  const auto copying = MakeCudaBackend({}), reading = MakeCudaBackend({});
  ASSERT_TRUE(copying) << copying.error().ToString();
  ASSERT_TRUE(reading);
  const io::WeightFile weights{file->bytes(), dir / "weights"};
  std::uint64_t done = 0;
  (*reading)->UseFiles({&weights, 1}, [&](std::uint64_t now, std::uint64_t) {
    done = now;
    return true;
  });
  const auto tensors = Lay(file->bytes().data() + kOdd);
  const std::vector<std::string> expected = OnDevice(**copying, tensors), got = OnDevice(**reading, tensors);
  EXPECT_EQ(done, size - kOdd);
  ASSERT_EQ(expected.size(), got.size());
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(expected[i] == got[i]) << "tensor " << i;
}

}  // namespace
}  // namespace galley::backend
