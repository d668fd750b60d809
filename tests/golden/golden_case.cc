// SPDX-License-Identifier: Apache-2.0
#include "golden_case.h"

#include <fmt/core.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "galley/base/check.h"

namespace galley::golden {
namespace {

// Drafts can be compared only along the same tokens: a token that differs changes the Markov bias of the rows after it.
bool DraftsComparable(const std::vector<engine::Difference>& differences) {
  return std::none_of(differences.begin(), differences.end(), [](const engine::Difference& d) {
    return (d.name == "dspark.token" || d.name == "dspark.tokens") && d.value > 0;
  });
}

bool IsLeast(engine::Measure measure) {
  return measure == engine::Measure::kSetOverlap;
}

}  // namespace

Limits Limits::Load(const std::filesystem::path& file) {
  std::ifstream stream(file);
  CHECK(stream.good()) << "cannot read " << file;
  const nlohmann::json json = nlohmann::json::parse(stream);
  Limits limits;
  for (const auto& [kind, names] : json.at("kinds").items()) {
    for (const std::string name : names) limits.kind_of_[name] = kind;
  }
  for (const auto& [set, values] : json.at("sets").items()) {
    for (const auto& [kind, value] : values.items()) limits.sets_[set][kind] = value;
  }
  return limits;
}

// The longest suffix, cut at dots, that the table knows.
std::string Limits::KindOf(const std::string& tensor) const {
  for (std::size_t at = 0; at != std::string::npos; at = tensor.find('.', at)) {
    if (at > 0) ++at;
    const auto found = kind_of_.find(tensor.substr(at));
    if (found != kind_of_.end()) return found->second;
  }
  return "unknown";
}

std::vector<std::string> Limits::Violations(const std::vector<engine::Difference>& differences,
                                            const std::string& set) const {
  std::vector<std::string> complaints;
  const bool comparable = DraftsComparable(differences);
  for (const engine::Difference& d : differences) {
    const std::string kind = KindOf(d.name);
    if (kind == "unlimited") continue;
    if (d.name.starts_with("dspark.") && kind != "exact" && !comparable) continue;
    if (!d.note.empty() || kind == "unknown") {
      complaints.push_back(fmt::format("{}: {}", d.name, d.note.empty() ? "no limit is stated for it" : d.note));
      continue;
    }
    const double limit = kind == "exact" ? 0 : At(set, kind);
    const bool fine = IsLeast(d.measure) ? d.value >= limit : d.value <= limit;
    if (!fine) {
      complaints.push_back(
          fmt::format("{}: {} {:.4g}, limit {:.4g}", d.name, engine::MeasureName(d.measure), d.value, limit));
    }
  }
  return complaints;
}

engine::DumpOptions OptionsFor(const std::filesystem::path& model_dir, const engine::TensorMap& golden) {
  engine::DumpOptions options;
  options.model_dir = model_dir;
  options.ids = engine::Int32Values(golden.at("ids"));
  for (const std::int32_t row : engine::Int32Values(golden.at("rows"))) options.rows.push_back(row);
  options.greedy = static_cast<int>(golden.at("greedy.ids").shape[0]);
  options.drafts = golden.contains("dspark.pos") ? static_cast<int>(golden.at("dspark.pos").shape[0]) : 0;
  for (int layer = 0; layer < 1000; ++layer) {
    if (golden.contains(fmt::format("layers.{}.h_all", layer))) options.full_layers.push_back(layer);
  }
  if (golden.contains("replay.tail_start")) {
    options.truncate_decoder =
        static_cast<int>(options.ids.size()) - engine::Int32Values(golden.at("replay.tail_start"))[0];
    options.replay_greedy = static_cast<int>(golden.at("replay.greedy.ids").shape[0]);
  }
  return options;
}

std::vector<std::filesystem::path> GoldenFiles(const std::filesystem::path& dir) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(dir)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("golden_") && name.ends_with(".safetensors") && name != "golden_image.safetensors") {
      files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace galley::golden
