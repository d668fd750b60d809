// SPDX-License-Identifier: Apache-2.0
// A file mapped read-only. Owns the mapping; pages are read when they are first touched, so mapping a file of any size
// is quick. Reading is safe from any thread. A file that another program shortens while it is mapped ends the process
// with SIGBUS when the lost part is read: model files must not be changed in place while they are in use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

#include "galley/base/error.h"
#include "galley/io/weight_file.h"

namespace galley::io {

enum class Access { kNormal, kSequential, kRandom, kWillNeed };

class MappedFile {
 public:
  // Errors as InputFile::Open, and kResourceExhausted when the address space is used up. An empty file is a valid
  // mapping of no bytes.
  [[nodiscard]] static Result<MappedFile> Open(const std::filesystem::path& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }
  [[nodiscard]] std::size_t size() const { return bytes_.size(); }
  [[nodiscard]] FileId id() const { return id_; }

  // Tells the system how bytes [offset, offset + length) will be read; a hint, so it cannot fail. The range is cut to
  // the file.
  void Advise(Access access, std::size_t offset, std::size_t length) const;

 private:
  MappedFile(std::span<const std::byte> bytes, FileId id) : bytes_(bytes), id_(id) {}
  std::span<const std::byte> bytes_;
  FileId id_;
};

}  // namespace galley::io
