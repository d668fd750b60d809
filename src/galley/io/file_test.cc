// SPDX-License-Identifier: Apache-2.0
#include "galley/io/file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>

#include "galley/io/mapped_file.h"
#include "galley/io/test_files.h"

namespace galley::io {
namespace {

using ::testing::HasSubstr;

std::size_t FilesIn(const std::filesystem::path& dir) {
  return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(dir), {}));
}

TEST(File, ReadFileGivesAllBytesUpToTheLimit) {
  const TempDir dir;
  WriteBytes(dir / "a", std::string("x\0y", 3));
  EXPECT_EQ(*ReadFile(dir / "a", 3), std::string("x\0y", 3));
  const Result<std::string> longer = ReadFile(dir / "a", 2);
  ASSERT_FALSE(longer);
  EXPECT_EQ(longer.error().code, ErrorCode::kResourceExhausted);
  EXPECT_THAT(longer.error().message, HasSubstr("3 bytes long; a file of this kind may have 2"));
  WriteBytes(dir / "empty", "");
  EXPECT_EQ(*ReadFile(dir / "empty", 2), "");
}

// What may stand in place of a file. None of these may block, crash or be read.
TEST(File, OnlyRegularFilesAreOpened) {
  const TempDir dir;
  std::filesystem::create_directory(dir / "directory");
  ASSERT_EQ(::mkfifo((dir / "pipe").c_str(), 0600), 0);
  const int socket = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string socket_path = dir / "socket";
  ASSERT_LT(socket_path.size(), sizeof(address.sun_path));
  std::memcpy(address.sun_path, socket_path.c_str(), socket_path.size());
  ASSERT_EQ(::bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  std::filesystem::create_symlink("loop_b", dir / "loop_a");
  std::filesystem::create_symlink("loop_a", dir / "loop_b");
  std::filesystem::create_symlink("nowhere", dir / "dangling");
  struct Case {
    std::filesystem::path path;
    ErrorCode code;
    std::string_view message;
  };
  const Case cases[] = {
      {dir / "directory", ErrorCode::kIo, "is a directory, not a regular file"},
      {dir / "pipe", ErrorCode::kIo, "is a pipe, not a regular file"},
      {dir / "socket", ErrorCode::kIo, "is a socket, not a regular file"},
      {"/dev/zero", ErrorCode::kIo, "is a device, not a regular file"},
      {dir / "loop_a", ErrorCode::kIo, "cannot open: Too many levels of symbolic links"},
      {dir / "dangling", ErrorCode::kNotFound, "cannot open: No such file or directory"},
      {dir / "absent", ErrorCode::kNotFound, "cannot open: No such file or directory"},
      {dir / "absent/below", ErrorCode::kNotFound, "cannot open: No such file or directory"},
  };
  for (const Case& c : cases) {
    const Result<std::string> read = ReadFile(c.path, 100);
    ASSERT_FALSE(read) << c.path;
    EXPECT_EQ(read.error().code, c.code) << c.path;
    EXPECT_EQ(read.error().message, c.message);
    EXPECT_EQ(read.error().where, c.path.string());
    EXPECT_FALSE(MappedFile::Open(c.path)) << c.path;
  }
  ::close(socket);
}

TEST(File, UnreadableFileSaysSo) {
  const TempDir dir;
  WriteBytes(dir / "secret", "x");
  std::filesystem::permissions(dir.path(), std::filesystem::perms::all);
  std::filesystem::permissions(dir / "secret", std::filesystem::perms::none);
  const WithoutRights user;
  const Result<std::string> read = ReadFile(dir / "secret", 100);
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code, ErrorCode::kIo);
  EXPECT_EQ(read.error().message, "cannot open: Permission denied");
}

TEST(File, LinksToFilesAreFollowed) {
  const TempDir dir;
  WriteBytes(dir / "blob", "content");
  std::filesystem::create_symlink("blob", dir / "link");
  EXPECT_EQ(*ReadFile(dir / "link", 100), "content");
}

TEST(WriteFileAtomic, ReplacesTheWholeFileAndLeavesNothingElse) {
  const TempDir dir;
  WriteBytes(dir / "out", "old and longer");
  ASSERT_TRUE(WriteFileAtomic(dir / "out", "new"));
  EXPECT_EQ(ReadBytes(dir / "out"), "new");
  EXPECT_EQ(FilesIn(dir.path()), 1u);
}

TEST(WriteFileAtomic, AFailedWriterLeavesTheOldFile) {
  const TempDir dir;
  WriteBytes(dir / "out", "old");
  const Status status = WriteFileAtomic(dir / "out", [](const Sink& sink) -> Status {
    RETURN_IF_ERROR(sink(std::as_bytes(std::span("half"))));
    return Err(ErrorCode::kCancelled, "stopped");
  });
  EXPECT_EQ(status.error().code, ErrorCode::kCancelled);
  EXPECT_EQ(ReadBytes(dir / "out"), "old");
  EXPECT_EQ(FilesIn(dir.path()), 1u);
}

TEST(WriteFileAtomic, AWriterThatIsKilledLeavesNothing) {
  const TempDir dir;
  const int nameless = ::open(dir.path().c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
  if (nameless < 0) GTEST_SKIP() << "this file system has no files without a name";
  ::close(nameless);
  const pid_t child = ::fork();
  if (child == 0) {
    (void)WriteFileAtomic(dir / "out", [](const Sink& sink) -> Status {
      (void)sink(std::as_bytes(std::span(std::string_view("half"))));
      ::raise(SIGKILL);
      return {};
    });
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

TEST(WriteFileAtomic, WhatALinkStandsForIsReplaced) {
  const TempDir dir;
  WriteBytes(dir / "target", "old");
  std::filesystem::create_symlink("target", dir / "link");
  ASSERT_TRUE(WriteFileAtomic(dir / "link", "new"));
  EXPECT_TRUE(std::filesystem::is_symlink(dir / "link"));
  EXPECT_EQ(ReadBytes(dir / "target"), "new");
}

TEST(WriteFileAtomic, UnwritableOutputsAreErrors) {
  const TempDir dir;
  std::filesystem::create_directory(dir / "directory");
  const Status onto_directory = WriteFileAtomic(dir / "directory", "x");
  ASSERT_FALSE(onto_directory);
  EXPECT_THAT(onto_directory.error().message, HasSubstr("is a directory, not a regular file"));
  EXPECT_EQ(FilesIn(dir.path()), 1u);
  // Renaming onto a pipe or device would put a file in its place.
  ASSERT_EQ(::mkfifo((dir / "pipe").c_str(), 0600), 0);
  const Status onto_pipe = WriteFileAtomic(dir / "pipe", "x");
  ASSERT_FALSE(onto_pipe);
  EXPECT_THAT(onto_pipe.error().message, HasSubstr("is a pipe, not a regular file"));
  EXPECT_TRUE(std::filesystem::is_fifo(dir / "pipe"));
  std::filesystem::remove(dir / "pipe");
  const Status no_parent = WriteFileAtomic(dir / "absent/out", "x");
  ASSERT_FALSE(no_parent);
  EXPECT_EQ(no_parent.error().code, ErrorCode::kNotFound);
  std::filesystem::permissions(dir.path(), std::filesystem::perms::owner_read | std::filesystem::perms::others_read |
                                               std::filesystem::perms::others_exec |
                                               std::filesystem::perms::owner_exec);
  {
    const WithoutRights user;
    const Status denied = WriteFileAtomic(dir / "out", "x");
    ASSERT_FALSE(denied);
    EXPECT_EQ(denied.error().ToString(), (dir / "out").string() + ": cannot write: Permission denied");
  }
  std::filesystem::permissions(dir.path(), std::filesystem::perms::owner_all);
}

TEST(MappedFile, ShowsTheFileAndMoves) {
  const TempDir dir;
  WriteBytes(dir / "a", "mapped");
  Result<MappedFile> file = MappedFile::Open(dir / "a");
  ASSERT_TRUE(file) << file.error().ToString();
  const MappedFile moved = std::move(*file);
  EXPECT_EQ(file->size(), 0u);
  ASSERT_EQ(moved.size(), 6u);
  EXPECT_EQ(std::memcmp(moved.bytes().data(), "mapped", 6), 0);
  for (const Access access : {Access::kNormal, Access::kSequential, Access::kRandom, Access::kWillNeed}) {
    moved.Advise(access, 2, 100);  // cut to the file
    moved.Advise(access, 100, 1);  // outside: nothing
  }
  WriteBytes(dir / "empty", "");
  const Result<MappedFile> empty = MappedFile::Open(dir / "empty");
  ASSERT_TRUE(empty);
  EXPECT_EQ(empty->size(), 0u);
}

}  // namespace
}  // namespace galley::io
