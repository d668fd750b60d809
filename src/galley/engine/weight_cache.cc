// SPDX-License-Identifier: Apache-2.0
#include "galley/engine/weight_cache.h"

#include <fmt/core.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "galley/base/log.h"
#include "galley/engine/model_digest.h"
#include "galley/io/file.h"
#include "galley/io/safetensors.h"
#include "galley/io/text.h"
#include "galley/model/tensor_list.h"

namespace galley::engine {
namespace {

using Path = std::filesystem::path;

constexpr std::string_view kVersion = "1";  // of the order of tensors and of what the digest covers
constexpr std::size_t kPrefix = 8;          // the length of the header, before it
// How the header of every cache begins, and that of a cache of this version and model goes on.
constexpr std::string_view kMark = R"({"__metadata__":{"galley_weight_cache":")";
std::string HeaderStart(const std::string& digest) {
  return std::string(kMark) + std::string(kVersion) + R"(","model":")" + digest + "\"}";
}

// `count` bytes of the header, or as many as there are. Errors as InputFile::Open, of anything but a regular file too.
Result<std::string> ReadHeaderStart(const Path& path, std::size_t count) {
  ASSIGN_OR_RETURN(const io::InputFile file, io::InputFile::Open(path));
  std::string text(count, '\0');
  const ssize_t got = pread(file.descriptor(), text.data(), count, kPrefix);
  if (got < 0) return Err(io::SystemError("read", path, errno));
  text.resize(static_cast<std::size_t>(got));
  return text;
}

// A file that neither is empty nor has the mark is somebody's own. A cache that ends within its mark is taken for one
// too: Galley leaves none, since caches get their name when they are whole.
Status CheckPlace(const Path& dir, const Path& cache) {
  std::error_code error;
  const Path name = std::filesystem::weakly_canonical(cache, error);
  if (cache.extension() == ".safetensors" && name.parent_path() == std::filesystem::weakly_canonical(dir, error)) {
    return Err(ErrorCode::kInvalidArgument, "lies among the model's own tensor files; give a file elsewhere",
               io::Printable(cache.native(), 1000));
  }
  if (!std::filesystem::is_regular_file(cache, error)) return {};
  ASSIGN_OR_RETURN(const std::string start, ReadHeaderStart(cache, kMark.size()));
  if (start == kMark || std::filesystem::is_empty(cache, error)) return {};
  return Err(ErrorCode::kInvalidArgument, "is a file, but no weight cache; it is left alone, give another name",
             io::Printable(cache.native(), 1000));
}

// The pages of a range count for this process no longer; they stay in the page cache as long as there is room.
void LetGo(std::span<const std::byte> bytes) {
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto first = reinterpret_cast<std::uintptr_t>(bytes.data());
  const std::uintptr_t begin = (first + page - 1) / page * page, end = (first + bytes.size()) / page * page;
  if (begin >= end) return;
  (void)madvise(const_cast<std::byte*>(bytes.data()) + (begin - first), end - begin, MADV_DONTNEED);
}

Status Write(const model::Checkpoint& checkpoint, const Path& cache, const std::string& digest) {
  std::vector<io::SafetensorsTensor> tensors;
  for (const model::ImpliedTensor& tensor : model::ImpliedTensors(checkpoint.config())) {
    const TensorView view = checkpoint.Find(tensor.name);
    tensors.push_back({.name = tensor.name,
                       .dtype = std::string(Info(tensor.dtype).safetensors_name),
                       .shape = {tensor.shape.begin(), tensor.shape.end()},
                       .data = {view.data, view.bytes()}});
  }
  const std::pair<std::string, std::string> metadata[] = {{"galley_weight_cache", std::string(kVersion)},
                                                          {"model", digest}};
  return io::WriteSafetensors(cache, tensors, metadata, LetGo);
}

// The error names the first tensor that differs.
Status Compare(const model::Checkpoint& cached, const model::Checkpoint& own) {
  for (const model::ImpliedTensor& tensor : model::ImpliedTensors(own.config())) {
    const TensorView a = cached.Find(tensor.name), b = own.Find(tensor.name);
    const bool same = a.bytes() == b.bytes() && std::memcmp(a.data, b.data, b.bytes()) == 0;
    LetGo({a.data, a.bytes()});
    LetGo({b.data, b.bytes()});
    if (same) continue;
    return Err(ErrorCode::kCorrupt, fmt::format("its {} is not that of the model", io::Printable(tensor.name, 200)),
               "weights");
  }
  return {};
}

Result<model::Checkpoint> OpenChecked(const Path& dir, const Path& cache, CacheCheck check) {
  ASSIGN_OR_RETURN(model::Checkpoint cached, model::Checkpoint::Open(dir, cache));
  if (check == CacheCheck::kHeader) return cached;
  ASSIGN_OR_RETURN(const model::Checkpoint own, model::Checkpoint::Open(dir));
  RETURN_IF_ERROR(Compare(cached, own));
  return cached;
}

}  // namespace

Result<model::Checkpoint> OpenWithCache(const Path& dir, const Path& cache, CacheCheck check) {
  RETURN_IF_ERROR(CheckPlace(dir, cache));
  const Result<ModelDigest> digests = DigestModel(dir);
  if (!digests) return model::Checkpoint::Open(dir);  // which says better what is wrong
  const std::string digest = digests->weights.ToHex(), expected = HeaderStart(digest);
  const std::string shown = io::Printable(cache.native(), 1000);
  const auto warn = [&](const Error& error) {
    log::Warning("the weight cache {} is not used, weights are read from the model's own files: {}", shown,
                 error.ToString());
  };
  if (ReadHeaderStart(cache, expected.size()).value_or("") == expected) {
    auto cached = OpenChecked(dir, cache, check);
    if (cached) return cached;
    log::Warning("the weight cache {} is damaged and written anew: {}", shown, cached.error().ToString());
  }
  ASSIGN_OR_RETURN(model::Checkpoint own, model::Checkpoint::Open(dir));
  log::Info("writing the weight cache {}", shown);
  if (const Status written = Write(own, cache, digest); !written) {
    warn(written.error());
    return own;
  }
  auto cached = model::Checkpoint::Open(dir, cache);
  if (cached) return cached;
  warn(cached.error());
  return own;
}

}  // namespace galley::engine
