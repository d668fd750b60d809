// SPDX-License-Identifier: Apache-2.0
#include "galley/io/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "galley/io/text.h"

namespace galley::io {
namespace {

std::string_view KindName(mode_t mode) {
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

// Writes all of `bytes`; a full disk or a closed descriptor is an error with its reason.
Status WriteAll(int descriptor, std::span<const std::byte> bytes, const std::filesystem::path& path) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return Err(SystemError("write", path, errno));
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  return {};
}

struct Temporary {
  std::filesystem::path path;
  int descriptor;  // -1: errno says why
};

// Names beside `path` until `take` gets one: others may write the same path at once, so one that is taken is never
// reused. `take` returns what it got, or -1 and errno.
template <typename Take>
Temporary TakeName(const std::filesystem::path& path, const Take& take) {
  Temporary temporary{{}, -1};
  for (int attempt = 0; attempt < 1000; ++attempt) {
    temporary.path = path;
    temporary.path += fmt::format(".{}-{}.tmp", ::getpid(), attempt);
    temporary.descriptor = take(temporary.path.c_str());
    if (temporary.descriptor >= 0 || errno != EEXIST) break;
  }
  return temporary;
}

// Where the file system can, a file that has no name until it is whole, so that a process that is killed leaves none;
// else -1.
int CreateNameless(const std::filesystem::path& path) {
#if defined(O_TMPFILE)
  if (::access("/proc/self/fd", X_OK) != 0) return -1;  // it could not be named
  const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : ".";
  return ::open(folder.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
#else
  return -1;
#endif
}

// Gives a nameless file a name beside `path`.
Temporary NameBeside(const std::filesystem::path& path, int descriptor) {
  const std::string self = fmt::format("/proc/self/fd/{}", descriptor);
  return TakeName(path, [&](const char* name) {
    return ::linkat(AT_FDCWD, self.c_str(), AT_FDCWD, name, AT_SYMLINK_FOLLOW) == 0 ? descriptor : -1;
  });
}

// A new file beside `path`.
Temporary CreateBeside(const std::filesystem::path& path) {
  return TakeName(path, [](const char* name) { return ::open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666); });
}

}  // namespace

Error SystemError(std::string_view verb, const std::filesystem::path& path, int errno_value) {
  const bool absent = errno_value == ENOENT || errno_value == ENOTDIR;
  return Error{absent ? ErrorCode::kNotFound : ErrorCode::kIo,
               fmt::format("cannot {}: {}", verb, std::generic_category().message(errno_value)),
               Printable(path.native(), 1000)};
}

Result<InputFile> InputFile::Open(const std::filesystem::path& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return Err(SystemError("open", path, errno));
  const auto refuse = [&] {
    return Err(ErrorCode::kIo, fmt::format("is {}, not a regular file", KindName(info.st_mode)),
               Printable(path.native(), 1000));
  };
  if (!S_ISREG(info.st_mode)) return refuse();
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (descriptor < 0) return Err(SystemError("open", path, errno));
  InputFile file(descriptor, 0);
  // The name may have been given to something else between the two calls.
  if (::fstat(descriptor, &info) != 0) return Err(SystemError("inspect", path, errno));
  if (!S_ISREG(info.st_mode)) return refuse();
  file.size_ = static_cast<std::uint64_t>(info.st_size);
  return file;
}

InputFile::InputFile(InputFile&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)), size_(std::exchange(other.size_, 0)) {}

InputFile& InputFile::operator=(InputFile&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(size_, other.size_);
  return *this;
}

InputFile::~InputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

Result<std::string> ReadFile(const std::filesystem::path& path, std::size_t max_bytes) {
  ASSIGN_OR_RETURN(const InputFile file, InputFile::Open(path));
  if (file.size() > max_bytes) {
    return Err(ErrorCode::kResourceExhausted,
               fmt::format("{} bytes long; a file of this kind may have {}", file.size(), max_bytes),
               Printable(path.native(), 1000));
  }
  std::string content(static_cast<std::size_t>(file.size()), '\0');
  std::size_t done = 0;
  while (done < content.size()) {
    const ssize_t got = ::read(file.descriptor(), content.data() + done, content.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Err(SystemError("read", path, errno));
    if (got == 0) break;  // shorter than it was a moment ago
    done += static_cast<std::size_t>(got);
  }
  content.resize(done);
  return content;
}

Status WriteFileAtomic(const std::filesystem::path& given, const std::function<Status(const Sink&)>& write) {
  struct stat info {};
  if (::stat(given.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) {  // renaming would put a file in a device's place
    return Err(ErrorCode::kIo, fmt::format("is {}, not a regular file", KindName(info.st_mode)),
               Printable(given.native(), 1000));
  }
  // A link stays one: what it stands for is replaced.
  std::error_code error;
  const std::filesystem::path target = std::filesystem::canonical(given, error), path = error ? given : target;
  Temporary temporary{{}, CreateNameless(path)};
  if (temporary.descriptor < 0) temporary = CreateBeside(path);
  const int descriptor = temporary.descriptor;
  if (descriptor < 0) return Err(SystemError("write", path, errno));
  Status status = write([&](std::span<const std::byte> bytes) { return WriteAll(descriptor, bytes, path); });
  if (status && ::fsync(descriptor) != 0) status = Err(SystemError("write", path, errno));
  if (status && temporary.path.empty()) {
    temporary = NameBeside(path, descriptor);
    if (temporary.descriptor < 0) {
      status = Err(SystemError("write", path, errno));
      temporary.path.clear();  // it is somebody else's
    }
  }
  if (::close(descriptor) != 0 && status) status = Err(SystemError("write", path, errno));
  if (status && ::rename(temporary.path.c_str(), path.c_str()) != 0) status = Err(SystemError("replace", path, errno));
  if (!status && !temporary.path.empty()) ::unlink(temporary.path.c_str());
  return status;
}

Status WriteFileAtomic(const std::filesystem::path& path, std::string_view content) {
  return WriteFileAtomic(path, [&](const Sink& sink) { return sink(std::as_bytes(std::span(content))); });
}

}  // namespace galley::io
