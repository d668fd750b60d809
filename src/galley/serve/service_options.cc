// SPDX-License-Identifier: Apache-2.0
#include "galley/serve/service_options.h"

#include <fmt/format.h>

#include "galley/protocol/json.h"
#include "galley/serve/number_range.h"

namespace galley::serve {
namespace {

using protocol::Json;

struct Rule {
  NumberRange range;
  void (*set)(SamplingDefaults& defaults, double value);
};

constexpr Rule kRules[] = {
    {kTemperatureRange, [](SamplingDefaults& d, double v) { d.temperature = v; }},
    {kTopPRange, [](SamplingDefaults& d, double v) { d.top_p = v; }},
    {kTopKRange, [](SamplingDefaults& d, double v) { d.top_k = TopKOf(v); }},
    {kMinPRange, [](SamplingDefaults& d, double v) { d.min_p = v; }},
    {kRepetitionRange, [](SamplingDefaults& d, double v) { d.repetition_penalty = v; }},
    {{.name = "max_new_tokens", .low = 1, .high = 1e7, .whole = true},
     [](SamplingDefaults& d, double v) { d.max_tokens = static_cast<std::uint32_t>(v); }},
};

}  // namespace

Result<SamplingDefaults> ReadGenerationConfig(std::string_view json, std::string_view where) {
  const Result<Json> config = protocol::ParseJson(json);
  if (!config) return Err(ErrorCode::kInvalidArgument, config.error().message, std::string(where));
  if (!config->is_object()) return Err(ErrorCode::kInvalidArgument, "must be a JSON object", std::string(where));
  SamplingDefaults defaults;
  for (const Rule& rule : kRules) {
    const Json* member = config->Find(rule.range.name);
    if (member == nullptr || member->is_null()) continue;
    const std::optional<double> value = rule.range.Read(*member);
    if (!value)
      return Err(ErrorCode::kInvalidArgument,
                 fmt::format("{} is {}, but must be within {}; --generation-config none ignores the file",
                             rule.range.name, protocol::DumpJson(*member), rule.range.Text()),
                 std::string(where));
    rule.set(defaults, *value);
  }
  return defaults;
}

}  // namespace galley::serve
