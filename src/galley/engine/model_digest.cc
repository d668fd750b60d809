// SPDX-License-Identifier: Apache-2.0
#include "galley/engine/model_digest.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <mutex>
#include <string>
#include <system_error>
#include <vector>

#include "galley/base/thread_pool.h"
#include "galley/io/file.h"

namespace galley::engine {
namespace {

constexpr std::size_t kTextBytesMax = std::size_t{256} << 20;  // configuration and tokenizer.json
constexpr std::uint64_t kPieceBytes = std::uint64_t{64} << 20;
constexpr std::size_t kReadBytes = std::size_t{1} << 20;
constexpr std::uint64_t kHeaderBytesMax = std::uint64_t{512} << 20;

// The header of a safetensors file as it stands there, length first. A file too short for what it says gives what it
// has: whether it is whole is decided where it is opened.
Result<std::string> HeaderBytes(const std::filesystem::path& path, std::uint64_t size) {
  std::ifstream file(path, std::ios::binary);
  std::uint64_t length = 0;
  char prefix[sizeof length] = {};
  if (!file.read(prefix, sizeof prefix)) return std::string();
  std::memcpy(&length, prefix, sizeof length);  // little-endian, as every machine that Galley runs on
  length = std::min({length, size - sizeof length, kHeaderBytesMax});
  std::string bytes(static_cast<std::size_t>(length), '\0');
  if (!file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()))) {
    return Err(ErrorCode::kIo, "the header cannot be read", path.string());
  }
  return std::string(prefix, sizeof prefix) + bytes;
}

// In the order of their names.
Result<std::vector<std::filesystem::path>> TensorFiles(const std::filesystem::path& dir) {
  std::vector<std::filesystem::path> files;
  std::error_code error;
  for (std::filesystem::directory_iterator it(dir, error), end; !error && it != end; it.increment(error)) {
    if (it->path().extension() == ".safetensors") files.push_back(it->path());
  }
  if (error) return Err(ErrorCode::kIo, fmt::format("cannot be listed: {}", error.message()), dir.string());
  std::ranges::sort(files);
  return files;
}

struct Piece {
  std::size_t file;
  std::uint64_t offset, bytes;
  kv::Digest digest;
};

Status DigestPiece(const std::filesystem::path& path, Piece& piece) {
  std::ifstream file(path, std::ios::binary);
  file.seekg(static_cast<std::streamoff>(piece.offset));
  std::vector<char> buffer(kReadBytes);
  kv::Sha256 hasher;
  for (std::uint64_t left = piece.bytes; left > 0;) {
    const auto count = static_cast<std::size_t>(std::min<std::uint64_t>(left, buffer.size()));
    if (!file.read(buffer.data(), static_cast<std::streamsize>(count))) {
      return Err(ErrorCode::kIo, fmt::format("cannot be read at byte {}", piece.offset + piece.bytes - left),
                 path.string());
    }
    hasher.Bytes({reinterpret_cast<const std::uint8_t*>(buffer.data()), count});
    left -= count;
  }
  piece.digest = hasher.Finish();
  return {};
}

Status AddTensorFile(kv::Sha256& hasher, const std::filesystem::path& path) {
  std::error_code error;
  const std::uintmax_t size = std::filesystem::file_size(path, error);
  if (error) return Err(ErrorCode::kIo, fmt::format("cannot tell its size: {}", error.message()), path.string());
  const auto changed = std::filesystem::last_write_time(path, error);
  if (error) return Err(ErrorCode::kIo, fmt::format("cannot tell its time: {}", error.message()), path.string());
  ASSIGN_OR_RETURN(const std::string header, HeaderBytes(path, size));
  hasher.Field(path.filename().string()).I64(static_cast<std::int64_t>(size));
  hasher.I64(static_cast<std::int64_t>(changed.time_since_epoch().count())).Field(header);
  return {};
}

}  // namespace

Result<ModelDigest> DigestModel(const std::filesystem::path& dir) {
  kv::Sha256 hasher;
  hasher.Field("galley model 1");
  for (const char* name : {"config.json", "inference/config.json"}) {
    const Result<std::string> text = io::ReadFile(dir / name, kTextBytesMax);
    if (!text && text.error().code != ErrorCode::kNotFound) return Err(text.error());
    hasher.Field(text ? *text : std::string());
  }
  ASSIGN_OR_RETURN(const std::vector<std::filesystem::path> files, TensorFiles(dir));
  for (const std::filesystem::path& file : files) RETURN_IF_ERROR(AddTensorFile(hasher, file));
  ModelDigest digest;
  digest.weights = hasher.Finish();
  ASSIGN_OR_RETURN(const std::string tokenizer, io::ReadFile(dir / "tokenizer.json", kTextBytesMax));
  digest.tokenizer = hasher.Field(tokenizer).Finish();
  return digest;
}

Result<kv::Digest> DigestWeights(const std::filesystem::path& dir, int threads,
                                 const std::function<bool(std::uint64_t done, std::uint64_t total)>& progress) {
  ASSIGN_OR_RETURN(const std::vector<std::filesystem::path> files, TensorFiles(dir));
  if (files.empty()) return Err(ErrorCode::kNotFound, "holds no .safetensors file", dir.string());
  std::vector<Piece> pieces;
  std::vector<std::uint64_t> sizes;
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < files.size(); ++i) {
    std::error_code error;
    const std::uintmax_t size = std::filesystem::file_size(files[i], error);
    if (error) return Err(ErrorCode::kIo, fmt::format("cannot tell its size: {}", error.message()), files[i].string());
    for (std::uint64_t at = 0; at < size; at += kPieceBytes) {
      pieces.push_back(
          {.file = i, .offset = at, .bytes = std::min<std::uint64_t>(kPieceBytes, size - at), .digest = {}});
    }
    sizes.push_back(size);
    total += size;
  }

  std::mutex mutex;
  Status status;
  std::uint64_t done = 0;
  ThreadPool pool(threads);
  pool.ParallelFor(static_cast<std::int64_t>(pieces.size()), [&](std::int64_t i) {
    Piece& piece = pieces[static_cast<std::size_t>(i)];
    {
      const std::lock_guard lock(mutex);
      if (!status) return;
    }
    Status own = DigestPiece(files[piece.file], piece);
    const std::lock_guard lock(mutex);
    if (!status) return;
    if (!own) {
      status = std::move(own);
      return;
    }
    done += piece.bytes;
    if (!progress(done, total)) status = Err(ErrorCode::kCancelled, "the digest was not finished", dir.string());
  });
  RETURN_IF_ERROR(std::move(status));

  kv::Sha256 hasher;
  hasher.Field("galley weights 1");
  auto piece = pieces.begin();
  for (std::size_t i = 0; i < files.size(); ++i) {
    hasher.Field(files[i].filename().string()).I64(static_cast<std::int64_t>(sizes[i]));
    for (; piece != pieces.end() && piece->file == i; ++piece) hasher.Bytes(piece->digest.bytes);
  }
  return hasher.Finish();
}

}  // namespace galley::engine
