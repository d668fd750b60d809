// SPDX-License-Identifier: Apache-2.0
// Reads at odd places and lengths give the file's bytes; errors of the disk are told apart and name the file.
#include "galley/io/weight_reader.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "galley/base/aligned_bytes.h"

namespace galley::io {
namespace {

constexpr std::size_t kSize = 5 * kReadUnit + 1234;  // does not end on a unit

class ReaderTest : public testing::Test {
 protected:
  void SetUp() override {
    path_ = testing::TempDir() + "weights.XXXXXX";
    const int descriptor = mkstemp(path_.data());
    ASSERT_GE(descriptor, 0);
    std::vector<std::uint8_t> bytes(kSize);
    for (std::size_t i = 0; i < kSize; ++i) bytes[i] = static_cast<std::uint8_t>(i * 31 + i / 4096);
    ASSERT_EQ(write(descriptor, bytes.data(), kSize), static_cast<ssize_t>(kSize));
    mapped_ = static_cast<std::byte*>(mmap(nullptr, kSize, PROT_READ, MAP_SHARED, descriptor, 0));
    ASSERT_NE(mapped_, MAP_FAILED);
    close(descriptor);
    file_ = {{mapped_, kSize}, path_};
  }
  void TearDown() override {
    munmap(mapped_, kSize);
    unlink(path_.c_str());
  }
  [[nodiscard]] Status Read(const WeightReader& reader, std::size_t at, std::size_t bytes) {
    std::fill_n(buffer_.data(), buffer_.size(), std::byte{0xEE});
    return reader.Read(mapped_ + at, bytes, buffer_.data());
  }
  [[nodiscard]] bool Holds(std::size_t at, std::size_t bytes) const {
    return std::memcmp(buffer_.data() + at % kReadUnit, mapped_ + at, bytes) == 0;
  }

  std::string path_;
  std::byte* mapped_ = nullptr;
  WeightFile file_;
  AlignedBytes buffer_{8 * kReadUnit};
};

// The path of a file that was replaced stands for other bytes; those that were checked are still mapped.
TEST_F(ReaderTest, DoesNotReadAFileThatTookItsPlace) {
  struct stat info = {};
  ASSERT_EQ(stat(path_.c_str(), &info), 0);
  file_.id = {info.st_dev, info.st_ino};
  {
    const WeightReader same({&file_, 1});
    EXPECT_GE(same.DirectPlace(mapped_).descriptor, 0);
  }
  const std::string other = path_ + ".other";
  const int descriptor = open(other.c_str(), O_CREAT | O_WRONLY, 0600);
  ASSERT_EQ(ftruncate(descriptor, kSize), 0);
  close(descriptor);
  ASSERT_EQ(rename(other.c_str(), path_.c_str()), 0);
  testing::internal::CaptureStderr();
  const WeightReader reader({&file_, 1});
  EXPECT_NE(testing::internal::GetCapturedStderr().find("it has been replaced"), std::string::npos);
  EXPECT_EQ(reader.DirectPlace(mapped_).descriptor, -1);
  ASSERT_TRUE(Read(reader, 5000, 3000));
  EXPECT_TRUE(Holds(5000, 3000));
}

TEST_F(ReaderTest, GivesTheBytesOfTheFile) {
  const WeightReader reader({&file_, 1}), none;
  for (const auto& [at, bytes] : {std::pair<std::size_t, std::size_t>{0, 1},
                                  {0, kReadUnit},
                                  {1, kReadUnit},
                                  {4095, 2},
                                  {4096, 8192},
                                  {5000, 12345},
                                  {kSize - 1, 1},
                                  {17, kSize - 17},
                                  {0, kSize}}) {
    ASSERT_TRUE(Read(reader, at, bytes));
    EXPECT_TRUE(Holds(at, bytes)) << at << ", " << bytes;
    ASSERT_TRUE(Read(none, at, bytes));  // a copy of what is mapped
    EXPECT_TRUE(Holds(at, bytes)) << at << ", " << bytes;
  }
}

ssize_t InSmallPieces(int descriptor, void* to, std::size_t bytes, off_t offset) {
  // Less than asked for, and not on a unit's border: as after a signal.
  return pread(descriptor, to, std::min<std::size_t>(bytes, bytes > 5000 ? 5000 : kReadUnit), offset);
}
ssize_t Interrupted(int descriptor, void* to, std::size_t bytes, off_t offset) {
  static int calls = 0;
  if (++calls % 2 == 1) {
    errno = EINTR;
    return -1;
  }
  return pread(descriptor, to, bytes, offset);
}
TEST_F(ReaderTest, GoesOnAfterShortAndInterruptedReads) {
  std::vector<WeightFile> files = {file_};
  for (const WeightReader::ReadCall call : {InSmallPieces, Interrupted}) {
    const WeightReader reader(files, call);
    const Status read = Read(reader, 100, 16000);
    ASSERT_TRUE(read) << read.error().ToString();
    EXPECT_TRUE(Holds(100, 16000));
  }
}

TEST_F(ReaderTest, ErrorsNameFileAndPlace) {
  const WeightReader broken({&file_, 1}, [](int, void*, std::size_t, off_t) -> ssize_t {
    errno = EIO;
    return -1;
  });
  const Status read = Read(broken, 5000, 10);
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code, ErrorCode::kIo);
  EXPECT_NE(read.error().ToString().find("Input/output error"), std::string::npos) << read.error().ToString();
  EXPECT_NE(read.error().ToString().find(path_ + " at byte 4096"), std::string::npos) << read.error().ToString();

  // Another program shortens the file: an error, and no signal.
  const WeightReader reader({&file_, 1});
  ASSERT_EQ(truncate(path_.c_str(), 4096), 0);
  const Status shorter = Read(reader, 4000, 200);
  ASSERT_FALSE(shorter);
  EXPECT_EQ(shorter.error().code, ErrorCode::kCorrupt);
  EXPECT_NE(shorter.error().message.find("104 bytes are missing"), std::string::npos) << shorter.error().message;
}

}  // namespace
}  // namespace galley::io
