// SPDX-License-Identifier: Apache-2.0
#include "galley/model/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>
#include <type_traits>

#include "galley/base/check.h"
#include "galley/io/json.h"
#include "galley/io/text.h"
#include "galley/model/config_file.h"

namespace galley::model {
namespace {

using io::Json;

constexpr io::JsonLimits kLimits = {.max_bytes = std::size_t{1} << 20, .max_depth = 32, .max_values = 100'000};
constexpr std::size_t kListMax = 1024;  // entries of a list field
constexpr std::string_view kSupported = "This version runs DeepSeek-V4.1 (model_type \"deepseek_v41\")";

int LastSource(const std::vector<int>& sources, int layer) {
  const auto after = std::upper_bound(sources.begin(), sources.end(), layer);
  CHECK(after != sources.begin()) << "layer " << layer << " has no source";
  return *std::prev(after);
}

const Json* FindPath(const Json& root, std::string_view path) {
  const Json* json = &root;
  while (json != nullptr && !path.empty()) {
    const std::size_t dot = std::min(path.find('.'), path.size());
    json = json->Find(path.substr(0, dot));
    path.remove_prefix(std::min(dot + 1, path.size()));
  }
  return json;
}

tl::unexpected<Error> Unsupported(std::string found, std::string_view where) {
  return Err(ErrorCode::kUnsupported, fmt::format("{}. {}.", found, kSupported), std::string(where));
}

bool HasV4Ratio(const Json& root) {
  const Json* ratios = root.Find("compress_ratios");
  if (ratios == nullptr || ratios->array() == nullptr) return false;
  return std::any_of(ratios->array()->begin(), ratios->array()->end(), [](const Json& r) {
    return r.integer() != nullptr && (*r.integer() == 4 || *r.integer() == 128);
  });
}

// Refuses what is recognisably another architecture; what is merely incomplete is left to the field checks.
Status CheckArchitecture(const Json& root, std::string_view where) {
  if (const Json* type = root.Find("model_type"); type != nullptr && type->Show() != "\"deepseek_v41\"") {
    const Json* architectures = root.Find("architectures");
    const std::string class_name = architectures == nullptr ? "" : ", architectures " + architectures->Show();
    const bool v4 = type->Show() == "\"deepseek_v4\"";
    return Unsupported(
        fmt::format("model_type {}{}: {}", type->Show(), class_name,
                    v4 ? "DeepSeek V4 is not supported by this version yet" : "this architecture is not supported"),
        where);
  }
  // The flat spelling does not name the architecture; its fields do.
  if (root.Find("text_config") != nullptr) return {};
  if (root.Find("kv_lora_rank") != nullptr) {
    return Unsupported("the field kv_lora_rank belongs to DeepSeek V2 or V3, which are not supported", where);
  }
  if (root.Find("n_hash_layers") != nullptr || root.Find("num_hash_layers") != nullptr || HasV4Ratio(root)) {
    return Unsupported(
        "hash layers or compress_ratios of 4 or 128 belong to DeepSeek V4, which is not supported by this "
        "version yet",
        where);
  }
  const bool named = root.Find("model_type") != nullptr;
  if (!named && root.Find("n_layers") == nullptr && root.Find("compress_ratios") == nullptr) {
    return Unsupported(
        "neither text_config nor the fields of a flat DeepSeek config are here: this is not the config "
        "of a DeepSeek-V4.1 model",
        where);
  }
  return {};
}

class Reader {
 public:
  Reader(const Json& root, std::string_view where) : root_(root) {
    file_.where = where;
    file_.spelling = root.Find("text_config") != nullptr ? Spelling::kNested : Spelling::kFlat;
    file_.stated.assign(Fields().size(), false);
    usable_.assign(Fields().size(), true);
  }

  Result<ConfigFile> Read() {
    for (std::size_t i = 0; i < Fields().size(); ++i) ReadField(i);
    for (const FixedField& field : FixedFields()) CheckFixed(field);
    std::vector<std::string> broken = BrokenRules(file_.config, usable_, file_.spelling);
    problems_.insert(problems_.end(), std::make_move_iterator(broken.begin()), std::make_move_iterator(broken.end()));
    if (!problems_.empty()) {
      return Err(unsupported_ ? ErrorCode::kUnsupported : ErrorCode::kCorrupt, JoinProblems(problems_), file_.where);
    }
    CollectUnknown(root_, "");
    return std::move(file_);
  }

 private:
  [[nodiscard]] std::string_view Name(const Field& field) const {
    return file_.spelling == Spelling::kFlat ? field.flat : field.nested;
  }
  [[nodiscard]] bool HasPart(Presence part) const;
  void ReadField(std::size_t index);
  // The problem with the value, if any; else it is stored.
  std::optional<std::string> Store(const Field& field, const Json& json);
  void CheckFixed(const FixedField& field);
  void CollectUnknown(const Json& object, const std::string& prefix);

  const Json& root_;
  ConfigFile file_;
  std::vector<bool> usable_;
  std::vector<std::string> problems_;
  bool unsupported_ = false;
};

bool Reader::HasPart(Presence part) const {
  switch (part) {
    case Presence::kRequired:
    case Presence::kOptional:
      return true;
    case Presence::kEngram:
      return !file_.config.engram.layer_ids.empty();
    case Presence::kDraft:
      return file_.config.dspark.n_stages > 0;
    case Presence::kVision:
      break;
  }
  if (file_.spelling == Spelling::kNested) {
    const Json* vision = root_.Find("vision_config");
    return vision != nullptr && !vision->is_null();
  }
  const Json* layers = root_.Find("vision_n_layers");
  return layers != nullptr && layers->Show() != "0";
}

void Reader::ReadField(std::size_t index) {
  const Field& field = Fields()[index];
  const Json* json = FindPath(root_, Name(field));
  const bool image_token = field.flat == "image_token_id";  // meaningful without a vision tower too
  if (!HasPart(field.presence) && !(image_token && json != nullptr)) {
    usable_[index] = false;
    return;
  }
  if (json == nullptr) {
    if (field.presence == Presence::kOptional) return;
    usable_[index] = false;
    problems_.push_back(fmt::format("{}: missing", Name(field)));
    return;
  }
  file_.stated[index] = true;
  if (const std::optional<std::string> problem = Store(field, *json)) {
    usable_[index] = false;
    problems_.push_back(fmt::format("{}: {}", Name(field), *problem));
  }
}

// An integer or number of the field's range.
template <typename T>
std::optional<std::string> StoreNumber(const Field& field, const Json& json, T& target) {
  const bool integral = std::is_integral_v<T>;
  double value = 0;
  if (json.integer() != nullptr) {
    value = static_cast<double>(*json.integer());
  } else if (json.floating() != nullptr && (!integral || std::abs(*json.floating()) > 9e18)) {
    value = *json.floating();  // of integer fields only those that do not fit 64 bits, which the range refuses
  } else {
    return fmt::format("{} is not {}", json.Show(), integral ? "an integer" : "a number");
  }
  if (!(value >= field.min && value <= field.max)) {
    if (field.min == field.max) return fmt::format("{} is not supported, only {}", json.Show(), field.min);
    return fmt::format("{} is outside {} to {}", json.Show(), field.min, field.max);
  }
  target = static_cast<T>(value);
  return std::nullopt;
}

template <typename T>
std::optional<std::string> StoreNumber(const Field& field, const Json& json, std::vector<T>& target) {
  if (json.array() == nullptr) return fmt::format("{} is not a list of integers", json.Show());
  if (json.array()->size() > kListMax) {
    return fmt::format("{} entries; the limit is {}", json.array()->size(), kListMax);
  }
  std::vector<T> values(json.array()->size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (const auto problem = StoreNumber(field, (*json.array())[i], values[i])) {
      return fmt::format("entry {}: {}", i, *problem);
    }
  }
  target = std::move(values);
  return std::nullopt;
}

std::optional<std::string> Reader::Store(const Field& field, const Json& json) {
  return std::visit([&](auto target) { return StoreNumber(field, json, target(file_.config)); }, field.target);
}

void Reader::CheckFixed(const FixedField& field) {
  const std::string_view name = file_.spelling == Spelling::kFlat ? field.flat : field.nested;
  if (name.empty()) return;
  const Json* json = FindPath(root_, name);
  if (json == nullptr || json->Show() == field.expected) return;
  unsupported_ = true;
  problems_.push_back(fmt::format("{}: {} is not supported, only {}", name, json->Show(), field.expected));
}

void Reader::CollectUnknown(const Json& object, const std::string& prefix) {
  const auto known = [&](std::string_view path) {
    const bool flat = file_.spelling == Spelling::kFlat;
    const auto is_path = [&](const auto& field) { return (flat ? field.flat : field.nested) == path; };
    return IsIgnoredField(path) || std::any_of(Fields().begin(), Fields().end(), is_path) ||
           std::any_of(FixedFields().begin(), FixedFields().end(), is_path);
  };
  constexpr std::string_view kSections[] = {"text_config", "vision_config", "quantization_config",
                                            "text_config.rope_scaling"};
  for (const auto& [key, value] : *object.object()) {
    const std::string path = prefix + key;
    const bool section = std::find(std::begin(kSections), std::end(kSections), path) != std::end(kSections);
    if (section && value.object() != nullptr) {
      CollectUnknown(value, path + '.');
    } else if (!known(path) && !(section && value.is_null())) {
      file_.unknown.push_back(io::Printable(path));
    }
  }
}

}  // namespace

int Config::kv_source(int layer) const {
  return LastSource(kv_source_layers, layer);
}

int Config::index_source(int layer) const {
  return LastSource(index_source_layers, layer);
}

bool Config::is_kv_source(int layer) const {
  return std::binary_search(kv_source_layers.begin(), kv_source_layers.end(), layer);
}

bool Config::is_index_source(int layer) const {
  return std::binary_search(index_source_layers.begin(), index_source_layers.end(), layer);
}

int Config::engram_index(int layer) const {
  const auto found = std::find(engram.layer_ids.begin(), engram.layer_ids.end(), layer);
  return found == engram.layer_ids.end() ? -1 : static_cast<int>(found - engram.layer_ids.begin());
}

std::string JoinProblems(const std::vector<std::string>& problems) {
  if (problems.size() == 1) return problems.front();
  constexpr std::size_t kShown = 100;
  std::string out = fmt::format("{} problems", problems.size());
  for (std::size_t i = 0; i < std::min(kShown, problems.size()); ++i) out += "\n  - " + problems[i];
  if (problems.size() > kShown) out += fmt::format("\n  and {} more", problems.size() - kShown);
  return out;
}

Result<ConfigFile> ParseConfigFile(std::string_view json, std::string_view where) {
  ASSIGN_OR_RETURN(const Json root, io::ParseJson(json, where, kLimits));
  if (root.object() == nullptr) {
    return Err(ErrorCode::kCorrupt, "is not a JSON object but " + root.Show(), std::string(where));
  }
  RETURN_IF_ERROR(CheckArchitecture(root, where));
  return Reader(root, where).Read();
}

Result<Config> ParseConfig(std::string_view json, std::string_view where) {
  ASSIGN_OR_RETURN(ConfigFile file, ParseConfigFile(json, where));
  return std::move(file.config);
}

Result<Config> MergeConfigs(const ConfigFile& first, const ConfigFile& second) {
  Config merged = first.config;
  std::vector<std::string> problems;
  for (std::size_t i = 0; i < Fields().size(); ++i) {
    const Field& field = Fields()[i];
    if (!second.stated[i]) continue;
    if (!first.stated[i]) {
      // Assigns through the accessor of the same type on both sides.
      Config source = second.config;
      std::visit([&](auto target) { target(merged) = target(source); }, field.target);
      continue;
    }
    const std::string a = FieldText(field, first.config), b = FieldText(field, second.config);
    if (a == b) continue;
    const auto name = [&](const ConfigFile& file) {
      return file.spelling == Spelling::kFlat ? field.flat : field.nested;
    };
    problems.push_back(fmt::format("{} is {}, but {} in {} is {}", name(first), a, name(second), second.where, b));
  }
  const auto compare_part = [&](std::string_view part, bool in_first, bool in_second) {
    if (in_first == in_second) return;
    const std::string_view with = in_first ? first.where : second.where,
                           without = in_first ? second.where : first.where;
    problems.push_back(fmt::format("{} describes {}, {} none", with, part, without));
  };
  const Config &a = first.config, &b = second.config;
  compare_part("a vision tower", a.vision.n_layers > 0, b.vision.n_layers > 0);
  compare_part("Engram layers", !a.engram.layer_ids.empty(), !b.engram.layer_ids.empty());
  compare_part("draft stages", a.dspark.n_stages > 0, b.dspark.n_stages > 0);
  if (!problems.empty()) return Err(ErrorCode::kCorrupt, JoinProblems(problems), first.where);
  return merged;
}

}  // namespace galley::model
