// SPDX-License-Identifier: Apache-2.0
#include "galley/io/mapped_file.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "galley/io/file.h"
#include "galley/io/text.h"

namespace galley::io {

Result<MappedFile> MappedFile::Open(const std::filesystem::path& path) {
  ASSIGN_OR_RETURN(const InputFile file, InputFile::Open(path));
  struct stat info = {};
  const bool known = ::fstat(file.descriptor(), &info) == 0;
  const FileId id = known ? FileId{info.st_dev, info.st_ino} : FileId{};
  if (file.size() == 0) return MappedFile({}, id);
  const auto size = static_cast<std::size_t>(file.size());
  void* const address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.descriptor(), 0);
  if (address == MAP_FAILED) {
    const int reason = errno;
    Error error = SystemError("map", path, reason);
    if (reason == ENOMEM) error.code = ErrorCode::kResourceExhausted;
    return Err(std::move(error));
  }
  return MappedFile({static_cast<const std::byte*>(address), size}, id);
}

MappedFile::MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})), id_(other.id_) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  std::swap(id_, other.id_);
  return *this;
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

void MappedFile::Advise(Access access, std::size_t offset, std::size_t length) const {
  if (offset >= size()) return;
  constexpr int kAdvice[] = {MADV_NORMAL, MADV_SEQUENTIAL, MADV_RANDOM, MADV_WILLNEED};
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t begin = offset / page * page;
  const std::size_t end = offset + std::min(length, size() - offset);
  // A refused hint changes nothing but speed.
  (void)::madvise(const_cast<std::byte*>(bytes_.data()) + begin, end - begin,
                  kAdvice[static_cast<std::size_t>(access)]);
}

}  // namespace galley::io
