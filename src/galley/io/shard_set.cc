// SPDX-License-Identifier: Apache-2.0
#include "galley/io/shard_set.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <system_error>
#include <unordered_map>

#include "galley/io/file.h"
#include "galley/io/json.h"
#include "galley/io/text.h"

namespace galley::io {
namespace {

// V4.1-Flash, 96,085 tensors, has an index of about 9 MB.
constexpr JsonLimits kIndexLimits = {.max_bytes = 100'000'000, .max_depth = 8, .max_values = 4'000'000};
constexpr std::size_t kNamesShown = 20;
constexpr std::size_t kShardsMax = 10'000;  // every shard is one mapping, of which a process may have some 65,000
constexpr std::string_view kSuffix = ".safetensors";

// The index of a hostile repository must not reach files outside its directory.
bool IsPlainShardName(std::string_view name) {
  return name.size() > kSuffix.size() && name.ends_with(kSuffix) && name.find('/') == name.npos &&
         name.find('\0') == name.npos && !name.starts_with('.');
}

// What the index expects of each shard, in the order of shard names.
using Plan = std::map<std::string, std::vector<std::string>>;

// Maps a shard and asks for its header, which is nearly always shorter; the system reads it meanwhile.
Result<MappedFile> MapShard(const std::filesystem::path& path) {
  constexpr std::size_t kHeaderAsked = std::size_t{512} << 10;
  ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(path));
  file.Advise(Access::kWillNeed, 0, kHeaderAsked);
  return file;
}

Result<std::pair<MappedFile, SafetensorsHeader>> OpenShard(Result<MappedFile> mapped,
                                                           const std::filesystem::path& path) {
  ASSIGN_OR_RETURN(MappedFile file, std::move(mapped));
  ASSIGN_OR_RETURN(SafetensorsHeader header, ParseSafetensors(file.bytes(), Printable(path.native(), 1000)));
  return std::pair(std::move(file), std::move(header));
}

// Takes the tensors of one shard into the set and compares them with what the index says.
void TakeTensors(ShardSet& set, SafetensorsHeader header, const std::string& shard_name,
                 const std::unordered_map<std::string_view, std::string_view>& index,
                 const std::vector<std::string>& expected, const std::string& where) {
  std::vector<std::string> unlisted, elsewhere, absent;
  std::unordered_map<std::string_view, bool> found;
  for (const std::string& name : expected) found.emplace(name, false);
  const std::size_t shard = set.files.size();
  for (SafetensorsEntry& entry : header.tensors) {
    const auto listed = index.find(entry.name);
    if (listed == index.end()) {
      unlisted.push_back(std::move(entry.name));
    } else if (listed->second != shard_name) {
      elsewhere.push_back(std::move(entry.name));
    } else {
      found[listed->first] = true;
      set.tensors.push_back({std::move(entry), shard});
    }
  }
  for (const std::string& name : expected) {
    if (!found[name]) absent.push_back(name);
  }
  const auto report = [&](std::vector<std::string>& names, std::string_view what) {
    if (names.empty()) return;
    std::sort(names.begin(), names.end());
    set.problems.push_back({ErrorCode::kCorrupt,
                            fmt::format("{} tensor{} {}: {}", names.size(), names.size() == 1 ? "" : "s", what,
                                        ListNames(names, kNamesShown)),
                            where});
  };
  report(unlisted, "of this shard not listed in the index");
  report(elsewhere, "of this shard listed in the index as part of another shard");
  report(absent, "listed in the index as part of this shard not in it");
  set.unreadable.insert(set.unreadable.end(), absent.begin(), absent.end());
}

// Reports up to kNamesShown shards that cannot be read, each with its reason, and counts the rest.
class UnreadableShards {
 public:
  UnreadableShards(ShardSet& set, std::size_t all_tensors) : set_(set), all_tensors_(all_tensors) {}

  void Add(Error error, std::vector<std::string> names) {
    if (++shards_ <= kNamesShown) {
      error.message += fmt::format("; the index says that it holds {} of {} tensors", names.size(), all_tensors_);
      set_.problems.push_back(std::move(error));
    } else {
      uncounted_tensors_ += names.size();
    }
    set_.unreadable.insert(set_.unreadable.end(), std::make_move_iterator(names.begin()),
                           std::make_move_iterator(names.end()));
  }
  void Finish(const std::filesystem::path& dir) {
    if (shards_ <= kNamesShown) return;
    set_.problems.push_back(
        {ErrorCode::kNotFound,
         fmt::format("{} more shards cannot be read; the index says that they hold {} of {} tensors",
                     shards_ - kNamesShown, uncounted_tensors_, all_tensors_),
         Printable(dir.native(), 1000)});
  }

 private:
  ShardSet& set_;
  const std::size_t all_tensors_;
  std::size_t shards_ = 0;
  std::size_t uncounted_tensors_ = 0;
};

void OpenPlanned(ShardSet& set, const std::filesystem::path& dir, const WeightMap& map) {
  Plan plan;
  std::unordered_map<std::string_view, std::string_view> index;
  index.reserve(map.size());
  for (const auto& [name, shard] : map) {
    plan[shard].push_back(name);
    index.emplace(name, shard);
  }
  if (plan.size() > kShardsMax) {
    set.problems.push_back({ErrorCode::kResourceExhausted,
                            fmt::format("the index names {} shards; the limit is {}", plan.size(), kShardsMax),
                            Printable((dir / kIndexFile).native(), 1000)});
    return;
  }
  // All headers are asked for before the first is read: on a busy disk each would wait its turn.
  std::vector<Result<MappedFile>> mapped;
  mapped.reserve(plan.size());
  for (const auto& [shard, names] : plan) mapped.push_back(MapShard(dir / shard));
  UnreadableShards unreadable(set, map.size());
  std::size_t next = 0;
  for (auto& [shard, names] : plan) {
    const std::filesystem::path path = dir / shard;
    auto opened = OpenShard(std::move(mapped[next++]), path);
    if (!opened) {
      unreadable.Add(std::move(opened).error(), std::move(names));
      continue;
    }
    set.total_bytes += opened->first.size();
    TakeTensors(set, std::move(opened->second), shard, index, names, Printable(path.native(), 1000));
    set.files.push_back({shard, std::move(opened->first)});
  }
  unreadable.Finish(dir);
}

// A dangling link or a name behind a closed door is there, and opening it tells what is wrong.
bool IsAbsent(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::symlink_status(path, ignored).type() == std::filesystem::file_type::not_found;
}

void OpenSingle(ShardSet& set, const std::filesystem::path& path, std::string name) {
  auto opened = OpenShard(MapShard(path), path);
  if (!opened) {
    set.problems.push_back(std::move(opened).error());
    return;
  }
  set.total_bytes = opened->first.size();
  set.files.push_back({std::move(name), std::move(opened->first)});
  for (SafetensorsEntry& entry : opened->second.tensors) set.tensors.push_back({std::move(entry), 0});
}

}  // namespace

Result<WeightMap> ParseIndex(std::string_view json, std::string_view where) {
  const auto corrupt = [&](std::string message) {
    return Err(ErrorCode::kCorrupt, std::move(message), std::string(where));
  };
  ASSIGN_OR_RETURN(const Json root, ParseJson(json, where, kIndexLimits));
  const Json* map = root.Find("weight_map");
  if (map == nullptr || map->object() == nullptr) {
    return corrupt("has no \"weight_map\" object that says which file holds which tensor");
  }
  WeightMap result;
  result.reserve(map->object()->size());
  for (const auto& [name, value] : *map->object()) {
    if (value.string() == nullptr || !IsPlainShardName(*value.string())) {
      return corrupt(fmt::format("weight_map \"{}\" is {}; it must name a file *.safetensors of the same directory",
                                 Printable(name), value.Show()));
    }
    result.emplace_back(name, *value.string());
  }
  if (result.empty()) return corrupt("the weight_map lists no tensor");
  return result;
}

ShardSet OpenTensorFile(const std::filesystem::path& path) {
  ShardSet set;
  std::error_code error;
  const std::filesystem::path whole = std::filesystem::absolute(path, error);
  OpenSingle(set, path, error ? path.string() : whole.string());
  return set;
}

ShardSet OpenShards(const std::filesystem::path& dir) {
  ShardSet set;
  const std::filesystem::path index = dir / kIndexFile;
  if (IsAbsent(index)) {
    if (!IsAbsent(dir / kSingleFile)) {
      OpenSingle(set, dir / kSingleFile, std::string(kSingleFile));
    } else {
      set.problems.push_back({ErrorCode::kNotFound,
                              fmt::format("holds neither {} with its shards nor one {}", kIndexFile, kSingleFile),
                              Printable(dir.native(), 1000)});
    }
    return set;
  }
  const Result<std::string> text = ReadFile(index, kIndexLimits.max_bytes);
  if (!text) {
    set.problems.push_back(text.error());
    return set;
  }
  Result<WeightMap> map = ParseIndex(*text, Printable(index.native(), 1000));
  if (!map) {
    set.problems.push_back(std::move(map).error());
    return set;
  }
  OpenPlanned(set, dir, *map);
  return set;
}

std::string ListNames(std::span<const std::string> names, std::size_t shown) {
  std::string out;
  for (std::size_t i = 0; i < std::min(shown, names.size()); ++i) {
    if (i > 0) out += ", ";
    out += Printable(names[i]);
  }
  if (names.size() > shown) out += fmt::format(" and {} more", names.size() - shown);
  return out;
}

}  // namespace galley::io
