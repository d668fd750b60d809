// SPDX-License-Identifier: Apache-2.0
// Files for tests: a directory that removes itself, and safetensors bytes built from any header text, however wrong.
// Used by tests only.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

namespace galley::io {

class TempDir {
 public:
  TempDir() {
    std::string name = (std::filesystem::temp_directory_path() / "galley-test-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) ADD_FAILURE() << "cannot make a directory " << name;
    path_ = name;
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] std::filesystem::path operator/(std::string_view name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

inline void WriteBytes(const std::filesystem::path& path, std::string_view bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  ASSERT_TRUE(file.good()) << path;
}

inline std::string ReadBytes(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

// Eight bytes of `length`, little-endian.
inline std::string LengthPrefix(std::uint64_t length) {
  std::string prefix;
  for (int i = 0; i < 8; ++i) prefix += static_cast<char>(length >> (8 * i));
  return prefix;
}

// A safetensors file of that header text and `data_bytes` bytes of data.
inline std::string SafetensorsBytes(std::string_view header, std::size_t data_bytes) {
  std::string bytes = LengthPrefix(header.size());
  bytes += header;
  bytes.append(data_bytes, '\x01');
  return bytes;
}

// Replaces the only occurrence of `from`.
inline std::string Replace(std::string text, std::string_view from, std::string_view to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, text.npos) << "no " << from;
  EXPECT_EQ(text.find(from, at + 1), text.npos) << "more than one " << from;
  if (at != text.npos) text.replace(at, from.size(), to);
  return text;
}

// Runs as a user without rights, so that permissions mean something where tests run as root.
class WithoutRights {
 public:
  WithoutRights() {
    if (was_root_ && ::seteuid(65534) != 0) ADD_FAILURE() << "cannot give up rights";
  }
  ~WithoutRights() {
    if (was_root_ && ::seteuid(0) != 0) ADD_FAILURE() << "cannot take rights back";
  }
  WithoutRights(const WithoutRights&) = delete;
  WithoutRights& operator=(const WithoutRights&) = delete;

 private:
  const bool was_root_ = ::geteuid() == 0;
};

}  // namespace galley::io
