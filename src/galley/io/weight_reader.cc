// SPDX-License-Identifier: Apache-2.0
#include "galley/io/weight_reader.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <system_error>

#include "galley/base/log.h"

namespace galley::io {

namespace {

// -1 when the path cannot be opened, or not the file that `file` is.
int OpenAgain(const WeightFile& file, int flags) {
  const int descriptor = open(file.path.c_str(), O_RDONLY | O_CLOEXEC | flags);
  if (descriptor < 0 || file.id == FileId()) return descriptor;
  struct stat info = {};
  if (fstat(descriptor, &info) == 0 && FileId{info.st_dev, info.st_ino} == file.id) return descriptor;
  close(descriptor);
  errno = ESTALE;
  return -1;
}

}  // namespace

WeightReader::WeightReader(std::span<const WeightFile> files) {
  std::size_t unopened = 0;
  std::string first;
  for (const WeightFile& file : files) {
    File& opened = files_.emplace_back();
    opened.file = file;
    opened.direct = OpenAgain(file, O_DIRECT);
    opened.plain = OpenAgain(file, 0);
    if (opened.direct >= 0 || opened.plain >= 0) continue;
    const std::string why = errno == ESTALE ? "it has been replaced" : std::system_category().message(errno);
    if (unopened++ == 0) first = fmt::format("{}: {}", file.path.string(), why);
  }
  if (unopened == 0) return;
  log::Warning(
      "{} of {} weight files cannot be opened a second time, the first is {}; they are read through the page "
      "cache instead; if the limit of open files (ulimit -n) is the reason, raise it",
      unopened, files.size(), first);
}

WeightReader::~WeightReader() {
  for (const File& file : files_) {
    if (file.direct >= 0) close(file.direct);
    if (file.plain >= 0) close(file.plain);
  }
}

const WeightReader::File* WeightReader::FileOf(const std::byte* data) const {
  for (const File& file : files_) {
    const std::byte* begin = file.file.mapped.data();
    if (data >= begin && data < begin + file.file.mapped.size()) return &file;
  }
  return nullptr;
}

WeightReader::Place WeightReader::DirectPlace(const std::byte* data) const {
  const File* file = call_ == nullptr ? FileOf(data) : nullptr;
  if (file == nullptr) return {};
  const auto at = static_cast<std::size_t>(data - file->file.mapped.data());
  return {file->direct, static_cast<off_t>(at - at % kReadUnit)};
}

Status WeightReader::CheckSizes() const {
  for (const File& file : files_) {
    const int descriptor = file.plain >= 0 ? file.plain : file.direct;
    struct stat info {};
    if (descriptor < 0 || fstat(descriptor, &info) != 0) continue;  // reading will tell
    if (static_cast<std::size_t>(info.st_size) == file.file.mapped.size()) continue;
    return Err(ErrorCode::kCorrupt,
               fmt::format("has {} bytes and had {} when it was opened: it is being changed; start again when it is "
                           "complete",
                           info.st_size, file.file.mapped.size()),
               file.file.path.string());
  }
  return {};
}

Status WeightReader::Read(const std::byte* data, std::size_t bytes, std::byte* to) const {
  const std::size_t head = reinterpret_cast<std::uintptr_t>(data) % kReadUnit;
  const File* file = FileOf(data);
  if (file == nullptr || (file->direct < 0 && file->plain < 0)) {
    std::memcpy(to + head, data, bytes);
    return {};
  }
  const auto begin = static_cast<std::size_t>(data - file->file.mapped.data()) - head;
  const std::size_t needed = head + bytes, whole = (needed + kReadUnit - 1) / kReadUnit * kReadUnit;
  int descriptor = file->direct >= 0 ? file->direct : file->plain;
  std::size_t done = 0;
  while (done < needed) {
    const std::size_t at = done / kReadUnit * kReadUnit;  // direct reads go on where a unit begins
    const ssize_t got =
        (call_ == nullptr ? pread : call_)(descriptor, to + at, whole - at, static_cast<off_t>(begin + at));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EINVAL && descriptor == file->direct && file->plain >= 0) {
      descriptor = file->plain;
      continue;
    }
    const std::string where = fmt::format("{} at byte {}", file->file.path.string(), begin + at);
    if (got < 0) {
      return Err(ErrorCode::kIo,
                 fmt::format("cannot read weights: {}; the system's log says whether the disk or the network failed: "
                             "start again when it works, or fetch the file anew",
                             std::system_category().message(errno)),
                 where);
    }
    const std::size_t reached = at + static_cast<std::size_t>(got);
    if (reached <= done) {
      return Err(ErrorCode::kCorrupt,
                 fmt::format("{} bytes are missing: the file was changed while it is in use; start again when it is "
                             "complete",
                             needed - done),
                 where);
    }
    done = reached;
  }
  if (descriptor == file->plain) {
    (void)posix_fadvise(descriptor, static_cast<off_t>(begin), static_cast<off_t>(whole), POSIX_FADV_DONTNEED);
  }
  return {};
}

}  // namespace galley::io
