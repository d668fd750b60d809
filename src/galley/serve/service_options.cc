// SPDX-License-Identifier: Apache-2.0
#include "galley/serve/service_options.h"

#include <fmt/format.h>

#include "galley/protocol/json.h"

namespace galley::serve {
namespace {

using protocol::Json;

struct Rule {
  std::string_view name;
  double low;
  double high;
  bool low_open;  // `low` itself is not allowed
  bool whole;
  void (*set)(SamplingDefaults& defaults, double value);
};

constexpr Rule kRules[] = {
    {"temperature", 0, 2, false, false, [](SamplingDefaults& d, double v) { d.temperature = v; }},
    {"top_p", 0, 1, true, false, [](SamplingDefaults& d, double v) { d.top_p = v; }},
    {"top_k", -1, 1e6, false, true, [](SamplingDefaults& d, double v) { d.top_k = v < 0 ? 0 : static_cast<int>(v); }},
    {"min_p", 0, 1, false, false, [](SamplingDefaults& d, double v) { d.min_p = v; }},
    {"repetition_penalty", 0, 100, true, false, [](SamplingDefaults& d, double v) { d.repetition_penalty = v; }},
    {"max_new_tokens", 1, 1e7, false, true,
     [](SamplingDefaults& d, double v) { d.max_tokens = static_cast<std::uint32_t>(v); }},
};

}  // namespace

Result<SamplingDefaults> ReadGenerationConfig(std::string_view json, std::string_view where) {
  const Result<Json> config = protocol::ParseJson(json);
  if (!config) return Err(ErrorCode::kInvalidArgument, config.error().message, std::string(where));
  if (!config->is_object()) return Err(ErrorCode::kInvalidArgument, "must be a JSON object", std::string(where));
  SamplingDefaults defaults;
  for (const Rule& rule : kRules) {
    const Json* member = config->Find(rule.name);
    if (member == nullptr || member->is_null()) continue;
    const double value = member->is_number() ? member->AsDouble() : -1e9;
    const bool inside = (rule.low_open ? value > rule.low : value >= rule.low) && value <= rule.high;
    if (!inside || (rule.whole && value != static_cast<double>(static_cast<std::int64_t>(value))))
      return Err(ErrorCode::kInvalidArgument,
                 fmt::format("{} is {}, but must be {} within {}{}, {}]; --generation-config none ignores the file",
                             rule.name, protocol::DumpJson(*member), rule.whole ? "a whole number" : "a number",
                             rule.low_open ? "(" : "[", rule.low, rule.high),
                 std::string(where));
    rule.set(defaults, value);
  }
  return defaults;
}

}  // namespace galley::serve
