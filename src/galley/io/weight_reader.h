// SPDX-License-Identifier: Apache-2.0
// Reads parts of weight files past the page cache, so that what is read takes no memory but its buffer. A part is named
// by the address at which its file is mapped. Owns the descriptors; reading is safe from any thread.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "galley/base/error.h"
#include "galley/io/weight_file.h"

namespace galley::io {

// Reads begin and end on multiples of this, in the file and in memory.
inline constexpr std::size_t kReadUnit = 4096;

class WeightReader {
 public:
  using ReadCall = ssize_t (*)(int descriptor, void* to, std::size_t bytes, off_t offset);  // as pread

  WeightReader() = default;
  // A file that cannot be opened a second time is read through its mapping, which goes through the page cache: a
  // warning says so. So is one whose path stands for another file by now.
  explicit WeightReader(std::span<const WeightFile> files);
  WeightReader(std::span<const WeightFile> files, ReadCall call) : WeightReader(files) { call_ = call; }
  WeightReader(const WeightReader&) = delete;
  WeightReader& operator=(const WeightReader&) = delete;
  ~WeightReader();

  // Whether both addresses lie in one file, so that they may be read together.
  [[nodiscard]] bool SameFile(const std::byte* a, const std::byte* b) const {
    return FileOf(a) != nullptr && FileOf(a) == FileOf(b);
  }
  // Where `data`, rounded down to a multiple of kReadUnit, can be read directly.
  struct Place {
    int descriptor = -1;  // -1: only Read can
    off_t offset = 0;
  };
  [[nodiscard]] Place DirectPlace(const std::byte* data) const;
  // Errors: kCorrupt when a file is not as long as its mapping, so that what is read may not be what was checked.
  [[nodiscard]] Status CheckSizes() const;
  // Reads [data, data + bytes) so that `to`, a multiple of kReadUnit, stands for `data` rounded down to one; writes up
  // to the next multiple behind it. Errors: kIo with the file, the place and the reason; kCorrupt when the file has
  // become shorter.
  [[nodiscard]] Status Read(const std::byte* data, std::size_t bytes, std::byte* to) const;

 private:
  struct File {
    WeightFile file;
    int direct = -1;  // past the page cache
    int plain = -1;   // where the file system does not allow that
  };
  [[nodiscard]] const File* FileOf(const std::byte* data) const;

  std::vector<File> files_;
  ReadCall call_ = nullptr;  // null: pread; otherwise nothing is read by other calls
};

}  // namespace galley::io
