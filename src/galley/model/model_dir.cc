// SPDX-License-Identifier: Apache-2.0
#include "galley/model/model_dir.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <system_error>
#include <unordered_set>

#include "galley/io/file.h"
#include "galley/io/text.h"
#include "galley/model/config_file.h"

namespace galley::model {
namespace {

constexpr std::size_t kShown = 20;
constexpr std::size_t kConfigMax = std::size_t{1} << 20;
constexpr std::string_view kConfigFiles[] = {"config.json", "inference/config.json"};
constexpr std::string_view kContents =
    "A model directory holds config.json (or inference/config.json), model.safetensors.index.json with the shards it "
    "names (or one model.safetensors), and tokenizer.json";

std::string Where(const std::filesystem::path& path) {
  return io::Printable(path.native(), 1000);
}

// "layers.12.ffn.experts.3.w1.weight" → "layers.*.ffn.experts.*.w1.weight"
std::string Pattern(std::string_view name) {
  std::string out;
  while (!name.empty()) {
    const std::size_t dot = std::min(name.find('.'), name.size());
    const std::string_view part = name.substr(0, dot);
    const bool number =
        !part.empty() && std::all_of(part.begin(), part.end(), [](unsigned char c) { return c >= '0' && c <= '9'; });
    out += number ? "*" : part;
    if (dot < name.size()) out += '.';
    name.remove_prefix(std::min(dot + 1, name.size()));
  }
  return out;
}

std::string Describe(std::string_view dtype, const Shape& shape) {
  return fmt::format("{} {}", dtype, ToString(shape));
}

}  // namespace

Status CheckModelDir(const std::filesystem::path& dir) {
  std::error_code failure;
  const std::filesystem::file_status status = std::filesystem::status(dir, failure);
  if (status.type() == std::filesystem::file_type::not_found) {
    return Err(ErrorCode::kNotFound, fmt::format("no such directory. {}", kContents), Where(dir));
  }
  if (!std::filesystem::status_known(status)) return Err(io::SystemError("open", dir, failure.value()));
  if (!std::filesystem::is_directory(status)) {
    return Err(ErrorCode::kNotFound, fmt::format("is not a directory. {}", kContents), Where(dir));
  }
  return {};
}

Result<LoadedConfig> LoadConfig(const std::filesystem::path& dir) {
  std::vector<ConfigFile> found;
  LoadedConfig loaded;
  for (const std::string_view name : kConfigFiles) {
    const std::filesystem::path path = dir / name;
    std::error_code failure;
    const bool absent = std::filesystem::symlink_status(path, failure).type() == std::filesystem::file_type::not_found;
    if (absent) continue;
    ASSIGN_OR_RETURN(const std::string text, io::ReadFile(path, kConfigMax));
    ASSIGN_OR_RETURN(ConfigFile file, ParseConfigFile(text, Where(path)));
    for (const std::string& field : file.unknown) loaded.unknown.push_back(fmt::format("{}: {}", name, field));
    loaded.files.emplace_back(name);
    found.push_back(std::move(file));
  }
  if (found.empty()) {
    return Err(ErrorCode::kNotFound, fmt::format("holds no config.json. {}", kContents), Where(dir));
  }
  if (found.size() == 1) {
    loaded.config = std::move(found.front().config);
  } else {
    ASSIGN_OR_RETURN(loaded.config, MergeConfigs(found[0], found[1]));
  }
  return loaded;
}

std::string SummariseNames(const std::vector<std::string>& names) {
  if (names.size() <= kShown) return io::ListNames(names, kShown);
  // Patterns in the order of their first name, which is the order of the model.
  std::vector<std::pair<std::string, std::size_t>> patterns;
  std::unordered_map<std::string, std::size_t> rows;
  for (const std::string& name : names) {
    const auto [row, is_new] = rows.try_emplace(Pattern(name), patterns.size());
    if (is_new) patterns.emplace_back(row->first, 0);
    ++patterns[row->second].second;
  }
  std::vector<std::string> lines;
  lines.reserve(patterns.size());
  for (const auto& [pattern, count] : patterns) {
    lines.push_back(count == 1 ? pattern : fmt::format("{} ({})", pattern, count));
  }
  return io::ListNames(lines, kShown);
}

TensorCheck CheckTensors(const std::vector<ImpliedTensor>& implied, const io::ShardSet& shards,
                         const std::filesystem::path& dir) {
  TensorCheck check;
  std::unordered_map<std::string_view, const io::ShardTensor*> present;
  present.reserve(shards.tensors.size());
  for (const io::ShardTensor& tensor : shards.tensors) present.emplace(tensor.entry.name, &tensor);
  const std::unordered_set<std::string_view> reported(shards.unreadable.begin(), shards.unreadable.end());
  std::vector<std::string> missing, wrong, misaligned, extra;
  check.tensors.reserve(implied.size());
  for (const ImpliedTensor& want : implied) {
    const auto found = present.find(want.name);
    if (found == present.end()) {
      if (!reported.contains(want.name)) missing.push_back(want.name);
      continue;
    }
    const io::SafetensorsEntry& have = found->second->entry;
    const std::byte* data = shards.Data(*found->second).data();
    const DTypeInfo& type = Info(want.dtype);
    if (have.dtype != type.safetensors_name || have.shape != want.shape) {
      wrong.push_back(fmt::format("{} is {}, not {}", want.name, Describe(have.dtype, have.shape),
                                  Describe(type.safetensors_name, want.shape)));
    } else if (reinterpret_cast<std::uintptr_t>(data) % type.bytes != 0) {
      misaligned.push_back(want.name);
    } else {
      check.tensors.emplace(want.name, TensorView{want.dtype, want.shape, data});
    }
    present.erase(found);
  }
  for (const io::ShardTensor& tensor : shards.tensors) {
    if (present.contains(tensor.entry.name)) extra.push_back(tensor.entry.name);
  }
  const auto report = [&](const std::vector<std::string>& names, std::string_view what, const std::string& list) {
    if (names.empty()) return;
    check.problems.push_back(
        {ErrorCode::kCorrupt,
         fmt::format("{} {} {}: {}", names.size(), names.size() == 1 ? "tensor" : "tensors", what, list), Where(dir)});
  };
  report(missing, "that the config implies missing", SummariseNames(missing));
  report(wrong, "of another type or shape than the config implies", io::ListNames(wrong, kShown));
  report(misaligned, "not aligned to the element size; write the file again with aligned data",
         SummariseNames(misaligned));
  report(extra, "not part of a model of this config", SummariseNames(extra));
  return check;
}

}  // namespace galley::model
