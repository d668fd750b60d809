// SPDX-License-Identifier: Apache-2.0
// Whole files, read and written. Only regular files are read: a directory, pipe, device or socket in its place is an
// error and is never opened, so that nothing blocks. Safe from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "galley/base/error.h"

namespace galley::io {

// The regular file at `path`, links followed, opened for reading. Owns the descriptor. Errors: kNotFound (no such
// file, dangling link), kIo (no permission, link loop, not a regular file).
class InputFile {
 public:
  [[nodiscard]] static Result<InputFile> Open(const std::filesystem::path& path);
  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&& other) noexcept;
  ~InputFile();

  [[nodiscard]] int descriptor() const { return descriptor_; }
  [[nodiscard]] std::uint64_t size() const { return size_; }  // when it was opened

 private:
  InputFile(int descriptor, std::uint64_t size) : descriptor_(descriptor), size_(size) {}
  int descriptor_ = -1;
  std::uint64_t size_ = 0;
};

// Content of the file, at most `max_bytes`; a longer file is kResourceExhausted and is not read.
[[nodiscard]] Result<std::string> ReadFile(const std::filesystem::path& path, std::size_t max_bytes);

// Replaces the file at `path`: `write` fills a temporary file beside it, which is then renamed, so that a reader sees
// the old content or the whole new one. On failure the temporary file is removed and `path` is untouched.
using Sink = std::function<Status(std::span<const std::byte>)>;
[[nodiscard]] Status WriteFileAtomic(const std::filesystem::path& path,
                                     const std::function<Status(const Sink&)>& write);
[[nodiscard]] Status WriteFileAtomic(const std::filesystem::path& path, std::string_view content);

// An Error for the errno of a failed call on `path`: "cannot <verb>: <reason>". ENOENT is kNotFound, the rest kIo.
[[nodiscard]] Error SystemError(std::string_view verb, const std::filesystem::path& path, int errno_value);

}  // namespace galley::io
