// SPDX-License-Identifier: Apache-2.0
#include "galley/backend/engram_file.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "galley/io/mapped_file.h"
#include "galley/io/test_files.h"

namespace galley::backend {
namespace {

// Rows of a table that begins at an odd byte of its file and ends with it: in the order of their numbers, twice if
// asked for twice.
TEST(EngramFileTest, CopiesTheRows) {
  constexpr std::size_t kOdd = 5, kRows = 1000, kDim = 64, kScales = kDim / 32;
  std::string content(kOdd + kRows * (kDim + kScales), '\0');
  for (std::size_t i = 0; i < content.size(); ++i) content[i] = static_cast<char>(i * 37 + i / 251);
  const io::TempDir dir;
  io::WriteBytes(dir / "table", content);
  const auto file = io::MappedFile::Open(dir / "table");
  ASSERT_TRUE(file);
  const auto* codes = reinterpret_cast<const std::uint8_t*>(file->bytes().data()) + kOdd;
  const std::vector<std::int32_t> numbers = {999, 0, 17, 17, 500, 998};
  const EngramGatherArgs args = {.rows = 3,
                                 .columns = 2,
                                 .dim = static_cast<int>(kDim),
                                 .row_numbers = numbers.data(),
                                 .codes = codes,
                                 .scales = codes + kRows * kDim};
  AskForRows(args);
  std::vector<std::uint8_t> got_codes(numbers.size() * kDim), got_scales(numbers.size() * kScales);
  CopyRows(args, got_codes.data(), got_scales.data());
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const auto row = static_cast<std::size_t>(numbers[i]);
    for (std::size_t d = 0; d < kDim; ++d) ASSERT_EQ(got_codes[i * kDim + d], args.codes[row * kDim + d]) << i;
    for (std::size_t d = 0; d < kScales; ++d)
      ASSERT_EQ(got_scales[i * kScales + d], args.scales[row * kScales + d]) << i;
  }
}

}  // namespace
}  // namespace galley::backend
