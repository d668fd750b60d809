// SPDX-License-Identifier: Apache-2.0
#include "galley/engine/model_digest.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <string>
#include <system_error>
#include <vector>

#include "galley/io/file.h"

namespace galley::engine {
namespace {

constexpr std::size_t kTextBytesMax = std::size_t{256} << 20;  // configuration and tokenizer.json
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
  std::vector<std::filesystem::path> files;
  std::error_code error;
  for (std::filesystem::directory_iterator it(dir, error), end; !error && it != end; it.increment(error)) {
    if (it->path().extension() == ".safetensors") files.push_back(it->path());
  }
  if (error) return Err(ErrorCode::kIo, fmt::format("cannot be listed: {}", error.message()), dir.string());
  std::ranges::sort(files);
  for (const std::filesystem::path& file : files) RETURN_IF_ERROR(AddTensorFile(hasher, file));
  ModelDigest digest;
  digest.weights = hasher.Finish();
  ASSIGN_OR_RETURN(const std::string tokenizer, io::ReadFile(dir / "tokenizer.json", kTextBytesMax));
  digest.tokenizer = hasher.Field(tokenizer).Finish();
  return digest;
}

}  // namespace galley::engine
